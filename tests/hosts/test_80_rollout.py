"""Rollouts: a release that is good goes everywhere without a cut stream; one that is not stops at
the canary, which serves the old one again while the others never noticed."""

from __future__ import annotations

import contextlib
import datetime
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from tests.hosts import rollouts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, FIRST_MODEL, SECOND_MODEL, shell, wait_for
from tests.hosts.rollouts import BOTH, GATES, engine_with, release_of
from tests.hosts.service import Poll, Streaming
from tests.hosts.standin_inventory import NAME, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.standin_inventory import Checkout

ACCEPTED = {
    "accept_findings": [
        {"id": "compat.argument-misspelt", "reason": "the go-live is what is tested",
         "until": datetime.date(2099, 12, 31), "by": "tests"}
    ]
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def gated(steady: Checkout) -> Iterator[Checkout]:
    steady.base["rollout"] = GATES
    steady.write()
    yield steady
    del steady.base["rollout"]


def test_a_rolling_upgrade_cuts_no_stream(checkout: Checkout) -> None:
    before = {host: release_of(host) for host in BOTH}
    services = {host: checkout.service(host) for host in BOTH}
    checkout.base["engine"] = engine_with(80)
    checkout.write()
    with contextlib.ExitStack() as stack:
        streaming = {
            host: [stack.enter_context(Streaming(services[host], tokens)) for tokens in (200, 310)]
            for host in BOTH
        }
        polls = {host: stack.enter_context(Poll(services[host])) for host in BOTH}
        rollouts.rollout(checkout).ended(
            0, "what differs on", "--seed", f"canary of {FIRST_MODEL}: {DEBIAN12}",
            f"canary of {SECOND_MODEL}: {DEBIAN13}",
            f"{DEBIAN12}: serves the release", "complete (exit code 0)",
        )  # fmt: skip
    for host in BOTH:
        assert release_of(host) != before[host]
        streams = [stream for one in streaming[host] for stream in one.streams]
        assert [stream.error for stream in streams if not stream.finished] == []
        assert polls[host].statuses() == {200, 503}
    windows = sorted((min(poll.down), max(poll.down)) for poll in polls.values())
    assert windows[0][1] < windows[1][0], f"both hosts were down at once: {windows}"
    rollouts.nothing_is_left()
    whats = [event["what"] for event in rollouts.events_of(DEBIAN12)]
    since = whats[len(whats) - whats[::-1].index("rollout began") :]
    assert [what for what in since if what in ("went live", "rollout ended")] == [
        "went live", "rollout ended",
    ]  # fmt: skip
    report = rollouts.fleet(checkout, "report", "show", NAME).ended(0)
    assert '"asked": ' in report.text
    assert checkout.deploy().done().unchanged


def crash_in_the_soak() -> None:
    rollouts.in_phase(DEBIAN12, "judging")
    # Its golden prompt is a chat; what comes after it is the soak.
    log = "journalctl _SYSTEMD_INVOCATION_ID=$(systemctl show -P InvocationID llm-engine@main)"
    wait_for(lambda: '/v1/chat/completions HTTP/1.1" 200' in shell(DEBIAN12, log))
    shell(DEBIAN12, "systemctl kill -s KILL llm-engine@main.service")


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "never healthy": (
        engine_with(81, fail="no-socket")
        | {"start_timeout_seconds": 60, "stall_timeout_seconds": 4},
        ["no new log line", "for ever"],
    ),
    "answers slowly": (
        engine_with(82, token_seconds=2),
        ["rollout.answer_seconds = 5", "was not answered within"],
    ),
    "crashes after a while": (engine_with(83), ["It died during its soak"]),
    "an unknown argument": (
        {**SETTINGS["engine"], "args": {"no-such-flag": 7}},
        ["unrecognized arguments: --no-such-flag 7"],
    ),
}


@pytest.mark.parametrize("way", BAD)
def test_a_bad_release_stops_at_the_canary(checkout: Checkout, way: str) -> None:
    engine, words = BAD[way]
    before = {host: release_of(host) for host in BOTH}
    # A soak that the kill surely meets.
    gates = GATES | ({"soak_seconds": 60} if way == "crashes after a while" else {})
    checkout.write(
        host_variables={host: {"engine": engine, "rollout": gates, **ACCEPTED} for host in BOTH}
    )
    if way == "crashes after a while":
        threading.Thread(target=crash_in_the_soak, daemon=True).start()
    with Poll(checkout.service(DEBIAN13)) as other:
        said = rollouts.rollout(checkout, "--max-failures", "1")
    said.ended(
        3, f"{DEBIAN12}: went back and serves its previous release", f"not touched: {DEBIAN13}",
        "serves again", *words,
    )  # fmt: skip
    assert other.statuses() == {200}
    assert {host: release_of(host) for host in BOTH} == before
    assert checkout.service(DEBIAN12).answers()
    rollouts.nothing_is_left()
    checkout.write()


def test_a_wrong_answer_to_a_golden_prompt_stops_it_too(checkout: Checkout) -> None:
    before = release_of(DEBIAN12)
    prompts = [{"prompt": "Count.", "must_contain": ["uno dos"]}]
    both = {"engine": engine_with(84), "rollout": GATES | {"golden_prompts": prompts}}
    checkout.write(host_variables=dict.fromkeys(BOTH, both))
    rollouts.rollout(checkout).ended(3, "'Count.' was answered 'one two", "without 'uno dos'")
    assert release_of(DEBIAN12) == before
    checkout.write()


def test_a_host_that_loses_its_power_in_its_turn_is_mended_by_the_next(
    checkout: Checkout,
) -> None:
    """It comes back at once; one that stays away is tests/soak/test_lost_in_its_turn.py's."""
    checkout.base["engine"] = engine_with(85)
    checkout.write()
    running = rollouts.start(checkout, "rollout", NAME, "--yes")
    rollouts.in_phase(DEBIAN13, "starting", "judging")
    hosts.kill(DEBIAN13)
    hosts.boot(DEBIAN13)
    said = running.finish()
    # 3: its boot has undone it, which the run still saw.
    said.ended(6 if "was not reached to its end" in said.text else 3,
               f"{DEBIAN12}: serves the release")  # fmt: skip
    checkout.service(DEBIAN13).wait(60)
    # Its lock is still there, of a run of this machine that is gone.
    rollouts.rollout(checkout).ended(0)
    rollouts.nothing_is_left()
    assert len({golive["to"] for golive in map(rollouts.golive, BOTH)}) == 2
    assert checkout.deploy().done().unchanged


def test_a_single_host_is_told_its_downtime(checkout: Checkout) -> None:
    checkout.write(DEBIAN12, host_variables={DEBIAN12: {"engine": engine_with(86)}})
    said = rollouts.fleet(checkout, "rollout", NAME, "--dry")
    said.ended(0, f"DOWNTIME: {DEBIAN12} is the only host that serves", "503 with Retry-After",
               "draining (at most 20 s)", "the soak (4 s)")  # fmt: skip
    checkout.write()
