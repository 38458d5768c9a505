"""Two real vLLMs, one after the other and back, by settings alone: `make soak` only, since each
installation takes minutes. tests/hosts does the same with stand-ins (test_55)."""

from __future__ import annotations

import datetime
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests import vllm_parser
from tests.hosts import pyinfra_run
from tests.hosts.installed_vllm import parser_of, source_of
from tests.hosts.lab_session import DEBIAN12, shell, wait_for
from tests.hosts.mended import ROOT
from tests.hosts.standin_inventory import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.service import Service
    from tests.hosts.standin_inventory import Checkout

OLD, NEW = "0.28.0", "0.32.0"
RUNTIMES = f"/{ROOT}/runtimes"
ENGINE: dict[str, Any] = {
    "args": {"dtype": "bfloat16", "max-model-len": 1024, "enforce-eager": True},
    "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    "start_timeout_seconds": 900,
    "stall_timeout_seconds": 300,
    "proof": "required",
    "watch": {"enabled": True, "interval_seconds": 5, "answer_seconds": 10},
}
UNIT = "llm-engine@main.service"
# Its default, said aloud: 0.28.0 has it, 0.32.0 has not (tables/vllm_serve.tsv).
GONE = "no-enable-bf16x3-router-gemm"
ACCEPTED = {
    "accept_findings": [
        {"id": "compat.argument-gone", "reason": "the host's own check is what is tested",
         "until": datetime.date(2099, 12, 31), "by": "tests"}
    ]
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("afterwards")


@pytest.fixture(scope="module")
def afterwards(steady: Checkout) -> Iterator[None]:
    """The host runs what all tests share again."""
    yield
    steady.write()
    steady.deploy("--limit", DEBIAN12).done()


def write(checkout: Checkout, version: str, **more: Any) -> None:
    """more: arguments of the engine, and accepted findings of the host."""
    lock = f"locks/runtime/vllm-cpu-{version}-py311-linux_x86_64.txt"
    accepted = {DEBIAN12: more.pop("accepted", {})}
    engine = {**ENGINE, "args": {**ENGINE["args"], **more}}
    checkout.write(
        DEBIAN12, runtime={"vllm": version, "lock": lock}, engine=engine, host_variables=accepted
    )


def plan(checkout: Checkout) -> str:
    argv = [str(pyinfra_run.BIN / "fleet"), "plan", NAME, "--limit", DEBIAN12]
    return " ".join(pyinfra_run.run(argv, root=checkout.root).stdout.split())


def invocation() -> str:
    return shell(DEBIAN12, f"systemctl show --value -p InvocationID {UNIT}").strip()


def completes(service: Service) -> bool:
    """Whether tokens come. The model is a random one: they may be blanks."""
    answer = service.request("POST", "/v1/chat/completions", service.chat_body(4))
    return answer.status == 200 and answer.json()["usage"]["completion_tokens"] > 0


def runtime_of(version: str) -> str:
    """The real one: the host has others of the version from tests with a stand-in."""
    found = shell(DEBIAN12, f"ls -d {RUNTIMES}/vllm-{version}-*/lib/python3*/site-packages/numpy")
    return found.strip().rpartition("/lib/")[0]


def digest(directory: str) -> str:
    """Of all names, modes, links and bytes below it, on the host: there are 40,000 files."""
    script = (
        f"cd {directory} && {{ find . -printf '%P %m %l\\n' | sort; "
        "find . -type f -print0 | sort -z | xargs -0 sha256sum; } | sha256sum"
    )
    return shell(DEBIAN12, script, timeout_seconds=900).split()[0]


def test_upgrade_and_back_leave_both_runtimes_as_they_were(
    checkout: Checkout, say: Callable[[str], None]
) -> None:
    service = checkout.service(DEBIAN12)
    before: dict[str, str] = {}
    for version in (OLD, NEW, OLD):
        write(checkout, version)
        if version == NEW:
            assert f"upgrade: vLLM {OLD} to {NEW}: 33 new arguments, 1 gone" in plan(checkout)
        began = time.monotonic()
        ran = checkout.deploy("--limit", DEBIAN12).done()
        say(f"vLLM {version} went live in {time.monotonic() - began:.0f} s")
        if version == NEW:
            # By the installed ones, whose versions end in +cpu.
            told = rf"vLLM {re.escape(OLD)}\S* to {re.escape(NEW)}\S*: 33 new arguments, 1 gone"
            assert re.search(told, ran.log), ran.log
            ran.said("in engine.args: nothing of it", "gone: enable-bf16x3-router-gemm")
        assert completes(service), service.request(
            "POST", "/v1/chat/completions", service.chat_body(4)
        )
        record = shell(DEBIAN12, f"cat /{ROOT}/engines/main/current/release.json")
        assert json.loads(record)["vllm"] == version
        name = shell(DEBIAN12, f"basename $(readlink /{ROOT}/engines/main/current)").strip()
        proof = json.loads(shell(DEBIAN12, f"cat /{ROOT}/engines/main/proofs/{name}.json"))
        assert proof["seen"]["vllm"].startswith(version)
        assert proof["seen"]["architectures"] == ["Qwen3MoeForCausalLM"]
        for other, known in before.items():
            assert digest(runtime_of(other)) == known
        if version in before:
            assert "install vLLM" not in ran.log
        before[version] = digest(runtime_of(version))
    ran = checkout.deploy("--limit", DEBIAN12).done()
    assert ran.unchanged, ran.log


@pytest.mark.parametrize("version", [OLD, NEW])
def test_tables_and_source_say_what_the_installed_parser_says(version: str) -> None:
    runtime = runtime_of(version)
    parser = parser_of(DEBIAN12, runtime)
    assert set(parser) == set(vllm_parser.recorded(version))
    assert vllm_parser.with_tables(version, parser) == []
    assert vllm_parser.with_reader(source_of(DEBIAN12, runtime)["flags"], parser) == []


def test_a_flag_that_the_new_version_does_not_know_stops_nothing(checkout: Checkout) -> None:
    """Under the version that knows it it serves; the plan refuses the other, and the host itself,
    where somebody has accepted the plan's finding."""
    write(checkout, OLD, **{GONE: True})
    checkout.deploy("--limit", DEBIAN12).done()
    before = invocation()
    write(checkout, NEW, **{GONE: True})
    assert f"in engine.args: {GONE} is gone" in plan(checkout)
    ran = checkout.deploy("--limit", DEBIAN12)
    assert ran.failed == {DEBIAN12}
    ran.said("compat.argument-gone", GONE)
    assert invocation() == before
    write(checkout, NEW, accepted=ACCEPTED, **{GONE: True})
    ran = checkout.deploy("--limit", DEBIAN12)
    assert ran.failed == {DEBIAN12}
    ran.said("does not take engine.args", GONE, "was not touched")
    assert invocation() == before
    assert completes(checkout.service(DEBIAN12))


def test_a_hang_is_found(checkout: Checkout) -> None:
    """Its engine core stopped as a hung GPU stops it: the server still says that it is healthy."""
    service = checkout.service(DEBIAN12)
    started = invocation()
    state = "cat /run/llm-watch-main/state.json"
    wait_for(lambda: json.loads(shell(DEBIAN12, state))["answered"], 120)
    shell(DEBIAN12, "pkill -STOP -f '^VLLM::EngineCore'")
    assert service.request("GET", "/health", key=None).status == 200
    wait_for(lambda: invocation() != started, 300)
    wait_for(lambda: completes(service), 600)
