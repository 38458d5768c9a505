"""Switching hosts that serve: one by one, streams to their end, and back when it is no good."""

from __future__ import annotations

import contextlib
import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts import host_state
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell
from tests.hosts.service import Poll, Streaming
from tests.hosts.standin_inventory import SETTINGS

if TYPE_CHECKING:
    from tests.hosts.standin_inventory import Checkout

BOTH = (DEBIAN12, DEBIAN13)

pytestmark = pytest.mark.usefixtures("steady")


def release_of(host: str) -> str:
    return shell(host, "readlink /srv/llm/engines/main/current").strip()


# A good change: it becomes what all later tests begin with.
GOOD: dict[str, Any] = {"args": {"seed": 2, "additional-config": {"start_seconds": 1.5}}}


def behaving(**behaviour: Any) -> dict[str, Any]:
    """Engine settings under which the stand-in does that, and failure is seen soon."""
    return {
        **SETTINGS["engine"],
        "args": {"additional-config": behaviour},
        "start_timeout_seconds": 6,
        "stall_timeout_seconds": 4,
    }


def test_a_change_goes_one_by_one_and_streams_end(checkout: Checkout) -> None:
    """While one host drains and starts the other answers; what streams is not cut."""
    before = {host: release_of(host) for host in BOTH}
    services = {host: checkout.service(host) for host in BOTH}
    checkout.base["engine"].update(GOOD)
    checkout.write()
    with contextlib.ExitStack() as stack:
        # 200 tokens are 4 seconds, and there are two of them at a time, of different lengths: some
        # stream is always under way, also when the drain begins.
        streaming = {
            host: [stack.enter_context(Streaming(services[host], tokens)) for tokens in (200, 310)]
            for host in BOTH
        }
        polls = {host: stack.enter_context(Poll(services[host])) for host in BOTH}
        checkout.deploy().done()
    for host in BOTH:
        assert release_of(host) != before[host]
        streams = [stream for one in streaming[host] for stream in one.streams]
        assert [stream.error for stream in streams if not stream.finished] == []
        assert {len(stream.events) for stream in streams} == {200, 310}
        drained = min(polls[host].down)
        assert any(stream.events[0] < drained < stream.events[-1] for stream in streams)
    windows = sorted((min(poll.down), max(poll.down)) for poll in polls.values())
    assert windows[0][1] < windows[1][0], f"both hosts were down at once: {windows}"
    for poll in polls.values():
        assert poll.statuses() == {200, 503}
        assert all(
            headers["retry-after"].isdigit() for _, status, headers in poll.seen if status == 503
        )


# What the plan refuses, gone on with in spite of it.
ACCEPTED = {
    "accept_findings": [
        {"id": "compat.argument-misspelt", "reason": "the go-live is what is tested",
         "until": datetime.date(2099, 12, 31), "by": "tests"}
    ]
}  # fmt: skip


def test_an_argument_that_this_vllm_does_not_know_is_refused_before_anything(
    checkout: Checkout,
) -> None:
    before = {host: host_state.tree(host) for host in BOTH}
    starts = {host: host_state.invocations(host) for host in BOTH}
    checkout.write(engine={"args": {"disable-log-requests": True, "max-model-lens": 7}})
    ran = checkout.deploy()
    assert ran.code == 1
    assert ran.failed == set(BOTH)
    ran.said(
        "vLLM 0.32.0 does not have disable-log-requests any more",
        "enable-log-requests takes its place",
        "vLLM 0.32.0 has no argument max-model-lens",
        "write max-model-len",
    )
    for host in BOTH:
        assert host_state.differences(before[host], host_state.tree(host)) == []
    assert {host: host_state.invocations(host) for host in BOTH} == starts


def test_a_bad_release_is_tried_on_one_host_only(checkout: Checkout) -> None:
    """It goes back by itself; the others are left alone, say so, and never stop answering."""
    before = {host: release_of(host) for host in BOTH}
    accepted = dict.fromkeys(BOTH, ACCEPTED)
    checkout.write(engine={"args": {"no-such-flag": 7}}, host_variables=accepted)
    services = {host: checkout.service(host) for host in BOTH}
    with Poll(services[DEBIAN12]) as first, Poll(services[DEBIAN13]) as second:
        ran = checkout.deploy()
    assert ran.code == 1
    assert ran.failed == set(BOTH)
    tried = next(host for host in BOTH if f"[{host}]" in line_of(ran.log, "did not go live"))
    other = next(host for host in BOTH if host != tried)
    ran.said(
        "serves again",
        "vllm: error: unrecognized arguments: --no-such-flag 7",
        "vLLM exits with 2",
        f"left alone: the go-live on {tried} failed; this host still serves its present release",
    )
    assert f"[{other}]" in line_of(ran.log, "left alone")
    assert {DEBIAN12: first, DEBIAN13: second}[other].statuses() == {200}
    still_serving(checkout, before)


def line_of(log: str, words: str) -> str:
    return next(line for line in log.splitlines() if words in line)


def still_serving(checkout: Checkout, releases: dict[str, str]) -> None:
    """The releases of before answer, and nothing is left to do for them. What follows settings
    beside the release, the watch's patience, follows them back."""
    assert {host: release_of(host) for host in releases} == releases
    for host in releases:
        assert checkout.service(host).answers()
    checkout.write()
    ran = checkout.deploy().done()
    assert "go live" not in ran.log
    assert {host: release_of(host) for host in releases} == releases
    ran = checkout.deploy().done()
    assert ran.unchanged, ran.log


@pytest.mark.parametrize(
    "failures",
    [
        {
            DEBIAN12: ("exit-1", ["Engine core initialization failed", "status 1"]),
            DEBIAN13: ("no-socket", ["no new log line", "has not opened its socket", "for ever"]),
        },
        {
            DEBIAN12: ("answer-500", ["was answered 500", "start_timeout_seconds = 6", "fatal"]),
            DEBIAN13: ("empty-text", ["empty text", "start_timeout_seconds = 6"]),
        },
    ],
    ids=["dies or hangs", "answers badly"],
)
def test_an_engine_that_does_not_serve_is_taken_back(
    checkout: Checkout, failures: dict[str, tuple[str, list[str]]]
) -> None:
    """One way of failing a host, each host in a run of its own, both runs at once."""
    before = {host: release_of(host) for host in BOTH}
    engines = {host: {"engine": behaving(fail=way)} for host, (way, _) in failures.items()}
    checkout.write(host_variables=engines)
    runs = {host: checkout.start("--limit", host) for host in BOTH}
    for host, (_, words) in failures.items():
        ran = runs[host].finish()
        assert ran.code == 1
        assert ran.failed == {host}
        ran.said("go-live:", "did not go live", "serves again", *words)
    still_serving(checkout, before)
