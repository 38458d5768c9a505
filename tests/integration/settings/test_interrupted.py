"""Ctrl-C in a run of the real pyinfra, which by itself (3.10) ends with exit code 0 then."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.repository import HOSTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakes.repository import Repository

REPOSITORY = Path(__file__).parents[3]
PATIENCE_SECONDS = 60


def _inventory(repository: Repository, variables: str) -> None:
    repository.write(
        "inventories/prod/hosts.yml",
        HOSTS.replace("vars: {", f"vars: {{{variables}, ").replace("[01:02]", "01"),
    )
    repository.write(
        "inventories/prod.py",
        "from pyinfra_deploy.settings import pyinfra_inventory\n"
        "globals().update(pyinfra_inventory(__file__))\n",
    )


@contextmanager
def _started(repository: Repository, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """pyinfra with a terminal's stdin that stays silent. It is ended with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pyinfra", *arguments],
        cwd=repository.root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": str(repository.root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(repository.root / "stderr").open("w"),
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert process.poll() is None, "pyinfra ended too soon"
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.05)


def _interrupt(repository: Repository, process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, stdout, (repository.root / "stderr").read_text()


def _check(outcome: tuple[int, str, str]) -> None:
    code, stdout, stderr = outcome
    assert code == 130, stderr
    assert "Exiting upon user request!" in stdout
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr


def test_in_an_operation(repository: Repository) -> None:
    _inventory(repository, "ansible_connection: local")
    begun, end = repository.root / "begun", repository.root / "end"
    command = f"touch {begun}; while [ ! -e {end} ]; do sleep 0.1; done"
    try:
        with _started(repository, "-y", "inventories/prod.py", "exec", "--", command) as process:
            _wait_for(begun.exists, process)
            _check(_interrupt(repository, process))
    finally:
        end.touch()  # for the command, which nobody else ends
    assert "Disconnecting from hosts" in (repository.root / "stderr").read_text()


def test_at_the_question_whether_to_go_on(repository: Repository) -> None:
    _inventory(repository, "ansible_connection: local")
    repository.write(
        "deploy.py", "from pyinfra.operations import server\nserver.shell(commands=['true'])\n"
    )
    with _started(repository, "inventories/prod.py", "deploy.py") as process:
        asked = repository.root / "stderr"
        _wait_for(lambda: "Press enter to execute" in asked.read_text(), process)
        _check(_interrupt(repository, process))


def test_while_it_connects(repository: Repository) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        port = server.getsockname()[1]
        _inventory(repository, f"ansible_host: 127.0.0.1, ansible_port: {port}")
        with _started(repository, "-y", "inventories/prod.py", "exec", "--", "true") as process:
            silent, _ = server.accept()
            with silent:
                _check(_interrupt(repository, process))


def test_in_a_python_step_of_a_deploy(repository: Repository) -> None:
    """What a callback of python.call does runs in a host's greenlet, as our own jobs' waiting."""
    _inventory(repository, "ansible_connection: local")
    repository.write(
        "deploy.py",
        "import time\n"
        "from pathlib import Path\n"
        "from pyinfra.operations import python\n"
        "def wait():\n"
        "    Path('begun').touch()\n"
        "    time.sleep(600)\n"
        "python.call(name='wait', function=wait)\n",
    )
    with _started(repository, "-y", "inventories/prod.py", "deploy.py") as process:
        _wait_for((repository.root / "begun").exists, process)
        _check(_interrupt(repository, process))


def test_a_run_that_is_not_interrupted_still_ends_with_0(repository: Repository) -> None:
    _inventory(repository, "ansible_connection: local")
    with _started(repository, "-y", "inventories/prod.py", "exec", "--", "true") as process:
        process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0
