"""Switching hosts that serve: one by one, streams to their end, and back when it is no good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell
from tests.hosts.service import Poll, Stream

if TYPE_CHECKING:
    from tests.hosts.standin_inventory import Checkout

BOTH = (DEBIAN12, DEBIAN13)

pytestmark = pytest.mark.usefixtures("steady")


def release_of(host: str) -> str:
    return shell(host, "readlink /srv/llm/engines/main/current").strip()


def behaving(**behaviour: Any) -> dict[str, Any]:
    """Engine settings under which the stand-in does that, and failure is seen soon."""
    return {
        "args": {"max-model-len": 1024, "additional-config": behaviour},
        "start_timeout_seconds": 6,
        "stall_timeout_seconds": 4,
    }


def test_a_change_goes_one_by_one_and_streams_end(checkout: Checkout) -> None:
    """While one host drains and starts the other answers; what streams is not cut."""
    checkout.write(engine={"args": {"seed": 1, "additional-config": {"token_seconds": 0.05}}})
    checkout.deploy().done()
    before = {host: release_of(host) for host in BOTH}
    services = {host: checkout.service(host) for host in BOTH}
    checkout.write(engine={"args": {"seed": 2, "additional-config": {"start_seconds": 1.5}}})
    streams = {host: Stream(services[host], 120).running() for host in BOTH}
    with Poll(services[DEBIAN12]) as first, Poll(services[DEBIAN13]) as second:
        checkout.deploy().done()
    for host, stream in streams.items():
        stream.join(30)
        assert stream.finished, f"{host}: {stream.error or 'cut off'}"
        assert len(stream.events) == 120
        assert release_of(host) != before[host]
    windows = sorted((min(poll.down), max(poll.down)) for poll in (first, second))
    assert windows[0][1] < windows[1][0], f"both hosts were down at once: {windows}"
    for poll in (first, second):
        assert poll.statuses() == {200, 503}
        assert all(
            headers["retry-after"].isdigit() for _, status, headers in poll.seen if status == 503
        )


def test_a_bad_release_is_tried_on_one_host_only(checkout: Checkout) -> None:
    """It goes back by itself; the others are left alone, say so, and never stop answering."""
    checkout.write()
    checkout.deploy().done()
    before = {host: release_of(host) for host in BOTH}
    checkout.write(engine={"args": {"max-model-len": 1024, "no-such-flag": 7}})
    services = [checkout.service(host) for host in BOTH]
    with Poll(services[0]) as first, Poll(services[1]) as second:
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
    polls = {service.host: poll for service, poll in zip(services, (first, second), strict=True)}
    assert polls[other].statuses() == {200}
    assert {host: release_of(host) for host in BOTH} == before
    for service in services:
        assert service.answers()
    checkout.write()
    assert checkout.deploy().done().unchanged


def line_of(log: str, words: str) -> str:
    return next(line for line in log.splitlines() if words in line)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("exit-1", ["Engine core initialization failed", "status 1"]),
        ("no-socket", ["no new log line", "has not opened its socket", "loading weights"]),
        ("answer-500", ["was answered 500", "start_timeout_seconds = 6", "fatal error"]),
        ("empty-text", ["empty text", "start_timeout_seconds = 6"]),
    ],
)
def test_an_engine_that_does_not_serve_is_taken_back(
    checkout: Checkout, failure: str, words: list[str]
) -> None:
    before = release_of(DEBIAN12)
    checkout.write(engine=behaving(fail=failure))
    ran = checkout.deploy("--limit", DEBIAN12)
    assert ran.code == 1
    ran.said("go-live:", "did not go live", "serves again", *words)
    assert release_of(DEBIAN12) == before
    assert checkout.service(DEBIAN12).answers()
    checkout.write()
    assert checkout.deploy().done().unchanged
