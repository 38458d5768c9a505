"""The main job on real parts: a bare host, the modelscope client, vLLM, Nginx. Begun in test_10.

One installation of vLLM and two starts of it: the first deploy, and a reboot (test_95).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import ssl
import stat
import subprocess
import time
from typing import TYPE_CHECKING

import httpx2
import openai
import pytest

from lab import demo, hosts
from lab.plan import address_of
from pyinfra_deploy.keys import keyfile
from pyinfra_deploy.planning.engine_log import read_engine_log
from pyinfra_deploy.settings import Secret, load_fleet
from tests.clients.clients import Addressed
from tests.hosts import host_state, pyinfra_run
from tests.hosts.lab_session import REAL, shell
from tests.hosts.pyinfra_run import BIN, REPOSITORY
from tests.hosts.real_deploy import deploy, real_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from openai.types.chat import ChatCompletionMessageParam

    from pyinfra_deploy.settings import Fleet
    from tests.hosts.real_deploy import RealDeploy
    from tests.hosts.service import Service

pytestmark = pytest.mark.usefixtures("real_deploy")


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return load_fleet("lab", REPOSITORY)


@pytest.fixture(scope="module")
def service(fleet: Fleet) -> Service:
    return real_service(fleet)


@contextlib.contextmanager
def official_client(service: Service, key: str) -> Iterator[openai.OpenAI]:
    context = ssl.create_default_context(cafile=str(service.ca))
    transport = Addressed(address_of(service.host), context)
    with httpx2.Client(transport=transport, timeout=120) as http:
        yield openai.OpenAI(
            base_url=f"https://{service.server_name}/v1",
            api_key=key,
            http_client=http,
            max_retries=0,
        )


def test_first_deploy(fleet: Fleet, real_deploy: RealDeploy, say: Callable[[str], None]) -> None:
    ran = real_deploy.end().done()
    say(f"the real vLLM's first deploy took {real_deploy.seconds:.0f} s, beside other tests")
    assert ran.finished(REAL)
    ran.said("verify: stream:", "verify: burst:", "verify: long prompt: {'status': 413")
    key = keyfile.first_key_path(fleet)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().strip() not in ran.log


def test_second_run_changes_nothing() -> None:
    files, starts = host_state.tree(REAL), host_state.invocations(REAL)
    ran = deploy().done()
    assert ran.unchanged, ran.log
    assert host_state.invocations(REAL) == starts
    assert host_state.differences(files, host_state.tree(REAL)) == []


def test_what_the_engine_said_of_its_memory_is_kept(fleet: Fleet) -> None:
    """In the words of the real engine: of the release that serves, of this very start, and legible
    for a plan."""
    home = "/srv/llm/engines/main"
    start = json.loads(shell(REAL, f"cat {home}/start.json"))
    assert start["release"] == shell(REAL, f"basename $(readlink {home}/current)").strip()
    invocation = host_state.invocations(REAL)["llm-engine@main.service"]
    journal = shell(REAL, f"journalctl -o cat --no-pager _SYSTEMD_INVOCATION_ID={invocation}")
    said = [line[:400] for line in journal.splitlines()]
    assert [line for line in start["lines"] if line not in said] == []
    figures = read_engine_log(start["lines"])
    settings = fleet.hosts[REAL].settings
    assert settings.runtime is not None
    assert figures.complete
    assert figures.vllm_version == settings.runtime.vllm
    assert figures.available_bytes is not None
    assert figures.available_bytes > 2**20
    assert figures.tokens is not None
    length = settings.engine.args["max-model-len"]
    assert figures.max_model_len == length
    assert figures.concurrency is not None
    # vLLM rounds the concurrency to hundredths.
    least, most = ((figures.concurrency + change) * length for change in (-0.006, 0.006))
    assert least <= figures.tokens <= most


def test_ansible_reads_the_same_hosts_and_variables(tmp_path: Path) -> None:
    # A copy: tests beside this one bring up hosts and take others away.
    for directory in ("inventories", "group_vars"):
        shutil.copytree(
            REPOSITORY / directory, tmp_path / directory, ignore=shutil.ignore_patterns("*.tmp")
        )
    shutil.copy(REPOSITORY / "ansible.cfg", tmp_path)
    (tmp_path / "locks").symlink_to(REPOSITORY / "locks")
    fleet = load_fleet("lab", tmp_path)
    done = pyinfra_run.run(
        [str(BIN / "ansible-inventory"), "-i", "inventories/lab/hosts.yml", "--list"],
        root=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    variables = listed["_meta"]["hostvars"]
    assert set(variables) == set(fleet.hosts)
    for name, host in fleet.hosts.items():
        ours = {
            key: value for key, value in host.variables.items() if not isinstance(value, Secret)
        }
        assert variables[name] == ours
        theirs = {group for group, content in listed.items() if name in content.get("hosts", [])}
        assert host.groups >= theirs - {"_meta"}
        assert theirs >= host.groups & {"gpu", "gateway", "lab"}


def test_official_client_chats_and_streams(service: Service) -> None:
    with official_client(service, service.key) as client:
        assert [model.id for model in client.models.list().data] == [service.model]
        question: list[ChatCompletionMessageParam] = [
            {"role": "user", "content": "Say hello to the operator."}
        ]
        whole = client.chat.completions.create(
            model=service.model, messages=question, max_tokens=16
        )
        assert (whole.choices[0].message.content or "").strip()
        arrivals, words = [], ""
        for chunk in client.chat.completions.create(
            model=service.model,
            messages=question,
            max_tokens=48,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            if chunk.choices and chunk.choices[0].delta.content:
                arrivals.append(time.monotonic())
                words += chunk.choices[0].delta.content
    assert words.strip()
    assert len(arrivals) > 10
    # Buffered on the way they would all arrive at once, at the end.
    spread = arrivals[-1] - arrivals[0]
    assert spread > 0.05
    assert max(b - a for a, b in itertools.pairwise(arrivals)) < 0.8 * spread


def test_the_demo_ends_with_an_answer_and_a_line_to_try(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `make lab` prints at its end, the line as an operator pastes it into a shell."""
    assert REAL in demo.gateways(fleet)
    demo.answer(fleet, REAL)
    printed = capsys.readouterr().out
    assert re.fullmatch(
        rf"{REAL}: .*\S.*\n  \[\d+ events, the first after [\d.]+ s, the last after [\d.]+ s\]\n",
        printed,
        re.DOTALL,
    ), printed
    done = subprocess.run(
        ["bash", "-c", demo.curl_line(fleet, REAL)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [words for line in done.stdout.splitlines() for words in demo.words_of(line)]
    assert "data: [DONE]" in done.stdout


def test_wrong_key_is_refused_as_the_official_client_expects(service: Service) -> None:
    wrong = service.key[:-4] + "AAAA"
    with official_client(service, wrong) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert service.request("GET", "/v1/models", key=None).status == 401
    assert service.request("GET", "/health", key=None).status == 200
    assert service.request("GET", "/metrics").status == 404


def test_nothing_but_nginx_and_sshd_listens() -> None:
    found = {line.rsplit(":", 1)[1] for line in host_state.listeners(REAL)}
    assert found == {"22 sshd", "80 nginx", "443 nginx"}


def test_units_are_hardened() -> None:
    figures = host_state.exposures(REAL)
    assert set(figures) >= host_state.HARDENED
    assert {name: figure for name, figure in figures.items() if figure > 2.0} == {}


def test_secrets_are_nowhere_they_can_be_read(fleet: Fleet, service: Service) -> None:
    """The clients' key and the CA's are not on the host at all; its own key only where it must."""
    authority = (fleet.directory / "ca.key").read_text().splitlines()[1]
    for secret in (service.key, authority):
        assert host_state.places_of(REAL, secret) == []
    own = shell(REAL, "cat /etc/llm/verify-key").strip()
    assert own.startswith("sk-")
    assert host_state.places_of(REAL, own) == ["here /etc/llm/verify-key"]


def test_the_search_for_secrets_finds_them() -> None:
    """Were one in the journal, in a process's arguments or in an open file, it would be seen."""
    shell(
        REAL,
        "logger sought-bd3f; echo sought-bd3f > /tmp/open; chmod 644 /tmp/open; "
        "systemd-run -q --unit=sought sh -c 'sleep 20; : sought-bd3f'",
    )
    assert set(host_state.places_of(REAL, "sought-bd3f")) >= {
        "journal", "arguments", "readable /tmp/open", "here /tmp/open",
    }  # fmt: skip
    shell(REAL, "rm /tmp/open; systemctl stop sought; systemctl reset-failed sought || true")


def test_reboot_begins(real_deploy: RealDeploy) -> None:
    """From inside, as an operator does it. What came back by itself: test_95."""
    real_deploy.starts_before_reboot = host_state.invocations(REAL)
    hosts.run(REAL, ["sudo", "-n", "systemctl", "reboot"])
