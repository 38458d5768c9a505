"""An engine's proof, upgrade and watch on a real host, with stand-ins that can be proven.

On Debian 12 alone, by `--limit`: the other host keeps the stand-in that all tests share.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub.places import hub_directory, wheels_directory
from tests.hosts import pyinfra_run
from tests.hosts.lab_session import DEBIAN12, shell, upper_of, wait_for
from tests.hosts.mended import ROOT
from tests.hosts.service import Stream
from tests.hosts.standin_inventory import NAME
from tests.hosts.traffic import Capture
from tests.standin import proving_wheels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.hosts.pyinfra_run import Ran
    from tests.hosts.standin_inventory import Checkout

OLD, NEW = proving_wheels.VERSIONS
UNIT = "llm-engine@main.service"
CGROUP = "/sys/fs/cgroup/system.slice/system-llm*engine.slice/llm-engine@main.service/cgroup.procs"
CACHE = "/var/cache/llm-engine/main"
# As quick as the settings allow: three looks of 5 + 2 seconds.
WATCH = {"enabled": True, "interval_seconds": 5, "answer_seconds": 2}


@pytest.fixture(scope="module", autouse=True)
def wheels(steady: Checkout) -> Iterator[None]:
    """Both versions on the hub; afterwards the host runs what all tests share again."""
    paths = proving_wheels.publish(wheels_directory(hub_directory()))
    yield
    for path in paths:
        path.unlink(missing_ok=True)
    shell(DEBIAN12, f"rm -f {CACHE}/stuck")
    steady.write()
    steady.deploy("--limit", DEBIAN12).done()


def write(checkout: Checkout, version: str, env: dict[str, str] | None = None) -> None:
    checkout.write(
        runtime={"vllm": version, "lock": proving_wheels.lock_of(version)},
        engine={"proof": "required", "watch": WATCH, "env": env or {}, "args": {}},
    )


def deploy(checkout: Checkout, version: str, env: dict[str, str] | None = None) -> Ran:
    write(checkout, version, env)
    return checkout.deploy("--limit", DEBIAN12)


def runtimes() -> dict[str, str]:
    """Name -> digest of all names, modes and bytes below it."""
    names = ("vllm-0.28.0", "vllm-0.32.0")
    found = sorted((upper_of(DEBIAN12) / ROOT / "runtimes").iterdir())
    return {path.name: _digest(path) for path in found if path.name.startswith(names)}


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        digest.update(f"{path.relative_to(directory)} {path.lstat().st_mode:o}\0".encode())
        if path.is_symlink():
            digest.update(str(path.readlink()).encode())
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def current() -> str:
    return shell(DEBIAN12, f"readlink /{ROOT}/engines/main/current").strip()


def proof_of(release: str) -> dict[str, Any]:
    name = release.removeprefix("releases/")
    text = shell(DEBIAN12, f"cat /{ROOT}/engines/main/proofs/{name}.json")
    document: dict[str, Any] = json.loads(text)
    return document


def events() -> list[dict[str, Any]]:
    text = shell(DEBIAN12, f"/{ROOT}/bin/fleet-host events tail < /dev/null")
    found: list[dict[str, Any]] = json.loads(text)["events"]
    return found


def invocation() -> str:
    return shell(DEBIAN12, f"systemctl show --value -p InvocationID {UNIT}").strip()


def state_of_unit() -> str:
    return shell(DEBIAN12, f"systemctl show --value -p ActiveState {UNIT}").strip()


def plan(checkout: Checkout) -> str:
    """What `fleet plan` says of the host by the settings as they are, in one line."""
    argv = [str(pyinfra_run.BIN / "fleet"), "plan", NAME, "--limit", DEBIAN12]
    return " ".join(pyinfra_run.run(argv, root=checkout.root).stdout.split())


def processes() -> set[str]:
    return set(shell(DEBIAN12, f"cat {CGROUP}").split())


def test_the_old_version_goes_live_proven(checkout: Checkout) -> None:
    deploy(checkout, OLD).done()
    record = proof_of(current())
    assert record["state"] == "passed"
    assert record["seen"]["vllm"] == OLD
    assert "matrix product" in record["seconds"]
    assert checkout.service(DEBIAN12).answers()


def test_upgrade_and_back_leave_both_runtimes_as_they_were(checkout: Checkout) -> None:
    old_release = current()
    old_runtimes = runtimes()
    write(checkout, NEW)
    assert f"upgrade: vLLM {OLD} to {NEW}: 33 new arguments, 1 gone" in plan(checkout)
    deploy(checkout, NEW).done()
    new_release = current()
    assert proof_of(new_release)["seen"]["vllm"] == NEW
    proven = proof_of(old_release)
    both = runtimes()
    assert {name: both[name] for name in old_runtimes} == old_runtimes
    back = deploy(checkout, OLD).done()
    assert "install vLLM" not in back.log
    assert proof_of(old_release) == proven, "it was proven before, with the same binding"
    assert (current(), runtimes()) == (old_release, both)
    assert checkout.service(DEBIAN12).answers()
    again = deploy(checkout, OLD).done()
    assert again.unchanged, again.log


def test_a_release_that_cannot_run_here_stops_nothing(checkout: Checkout) -> None:
    """It dies of a signal in the sandbox, as a library for another CPU does."""
    before = current(), invocation()
    ran = deploy(checkout, OLD, {"STANDIN_PROOF": json.dumps({"import": {"vllm": 11}})})
    assert ran.code == 1
    ran.said("cannot run on this host", "stays live", "SIGSEGV during 'import vllm'")
    assert (current(), invocation()) == before
    assert checkout.service(DEBIAN12).answers()
    assert deploy(checkout, OLD).done().unchanged


def test_a_killed_server_leaves_no_worker_behind(checkout: Checkout) -> None:
    """The worker ignores SIGTERM, as one that waits for a GPU does; its memory must be free."""
    before, started = processes(), invocation()
    assert len(before) >= 2
    shell(DEBIAN12, f"kill -9 $(systemctl show --value -p MainPID {UNIT})")
    wait_for(lambda: invocation() != started and len(processes()) >= 2, 60)
    assert not before & processes()
    alive = shell(DEBIAN12, f"ls -d {' '.join(f'/proc/{pid}' for pid in before)}", check=False)
    assert alive.strip() == ""
    checkout.service(DEBIAN12).wait(60)


def test_an_engine_that_hangs_is_killed_and_serves_again(checkout: Checkout) -> None:
    """/health says 200 all the while."""
    service = checkout.service(DEBIAN12)
    shell(DEBIAN12, f"systemctl is-active llm-watch@main.service; rm -f {CACHE}/stuck")
    state = "cat /run/llm-watch-main/state.json"
    wait_for(lambda: json.loads(shell(DEBIAN12, state))["answered"], 60)
    started = invocation()
    shell(DEBIAN12, f"touch {CACHE}/stuck")
    assert service.request("GET", "/health", key=None).status == 200
    wait_for(lambda: invocation() != started, 120)
    shell(DEBIAN12, f"rm {CACHE}/stuck")
    service.wait(60)
    event = next(event for event in reversed(events()) if event["what"] == "engine hung")
    assert event["who"] == "watch"
    assert deploy(checkout, OLD).done().unchanged


def test_an_engine_that_keeps_dying_ends_failed_and_the_next_deploy_starts_it(
    checkout: Checkout,
) -> None:
    """systemd's limit, without its pauses; the drop-in is away again before anybody looks."""
    drop_in = f"/run/systemd/system/{UNIT}.d/dying.conf"
    dying = "[Service]\nRestartSec=0\nExecStart=\nExecStart=/bin/false\n"
    shell(DEBIAN12, f"install -D -m 0644 /dev/stdin {drop_in}", input_text=dying)
    shell(DEBIAN12, f"systemctl daemon-reload; systemctl reset-failed {UNIT}")
    try:
        shell(DEBIAN12, f"kill -9 $(systemctl show --value -p MainPID {UNIT})")
        wait_for(lambda: state_of_unit() == "failed", 60)
    finally:
        shell(DEBIAN12, f"rm -r {drop_in.rpartition('/')[0]}; systemctl daemon-reload")
    assert re.search(
        rf"{UNIT} is failed \([a-z-]+, started again \d times in vain\)", plan(checkout)
    )
    assert state_of_unit() == "failed"
    deploy(checkout, OLD).done()
    assert checkout.service(DEBIAN12).answers()


def test_an_engine_that_its_watch_gives_up_ends_failed(checkout: Checkout) -> None:
    """By the program's own call; what leads to it takes five starts (tests/integration)."""
    code = f"from fleet_host import watch; watch._give_up('main', '{UNIT}', watch.State())"
    before = processes()
    shell(
        DEBIAN12,
        f'export FLEET_LLM_ROOT=/{ROOT} PYTHONPATH=/{ROOT}/bin/fleet-host; python3 -c "{code}"',
    )
    # One that is to be started again would be activating (auto-restart).
    assert state_of_unit() == "failed"
    alive = shell(DEBIAN12, f"ls -d {' '.join(f'/proc/{pid}' for pid in before)}", check=False)
    assert alive.strip() == ""
    assert f"{UNIT} is failed (signal" in plan(checkout)
    assert events()[-1]["what"] == "engine given up"
    deploy(checkout, OLD).done()
    assert checkout.service(DEBIAN12).answers()


def test_serving_sends_nothing_outside_the_inventory(checkout: Checkout) -> None:
    """Start and requests, seen from the other end of the host's cable."""
    service = checkout.service(DEBIAN12)
    with Capture(DEBIAN12) as capture:
        shell(DEBIAN12, f"systemctl restart {UNIT}")
        service.wait(60)
        for _ in range(20):
            assert service.answers()
        stream = Stream(service, tokens=100)
        stream.run()
        assert stream.finished
    assert len(capture.sent()) > 100
    assert capture.foreign([DEBIAN12]) == []


def test_the_search_for_foreign_packets_finds_them() -> None:
    """Were something sent or a name asked for, it would be seen."""
    send = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        "s.sendto(b'x', ('192.0.2.1', 9)); s.sendto(b'x', ('10.213.77.1', 53)); "
        "s.sendto(b'x', ('10.213.77.250', 9))"
    )
    with Capture(DEBIAN12) as capture:
        shell(DEBIAN12, f'python3 -c "{send}"')
    found = capture.foreign([DEBIAN12])
    for target in ("192.0.2.1 udp 9", "10.213.77.1 udp 53", "10.213.77.250 arp"):
        assert any(line.endswith(f"-> {target}") for line in found), found
