"""Three engines behind one gateway: one dies, one loses its power, keys come and go, and only who
was reading an answer of a dead engine notices."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from lab import hosts
from tests.hosts import pyinfra_run, three_engines
from tests.hosts.lab_session import shell, wait_for
from tests.hosts.pyinfra_run import BIN
from tests.hosts.service import Asking, Streaming
from tests.hosts.standin_inventory import NAME
from tests.hosts.three_engines import ENGINES, SECOND, THIRD, all_are_well, backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.service import Service, Stream
    from tests.hosts.standin_inventory import Checkout


@pytest.fixture(scope="module")
def service(steady: Checkout) -> Iterator[Service]:
    with three_engines.deployed(steady) as service:
        yield service


class Load:
    """Streams and short answers of clients, one after the other each, while it is open."""

    def __init__(self, service: Service) -> None:
        self.streaming = [Streaming(service, tokens) for tokens in (40, 70, 110)]
        self.asking = [Asking(service, tokens) for tokens in (2, 5, 9)]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Load:
        for stream in self.streaming:
            self._stack.enter_context(stream)
        for short in self.asking:
            self._stack.enter_context(short)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def refused(self) -> list[str]:
        """Why a request failed whose answer had not begun."""
        streams = [one.error for load in self.streaming for one in load.refused]
        short = [str(answer) for load in self.asking for answer in load.answers
                 if answer.status != 200]  # fmt: skip
        return streams + short

    @property
    def broken(self) -> list[Stream]:
        return [stream for load in self.streaming for stream in load.streams
                if not stream.finished]  # fmt: skip

    @property
    def count(self) -> int:
        return sum(len(load.streams) for load in self.streaming) + sum(
            len(load.answers) for load in self.asking
        )


def test_all_three_get_requests_and_a_second_run_changes_nothing(
    checkout: Checkout, service: Service
) -> None:
    wait_for(all_are_well, 30)
    with Load(service) as load:
        seen: set[str] = set()
        began = time.monotonic()
        while seen != set(ENGINES):
            seen |= {host for host, one in backends().items() if one["outstanding"]}
            assert time.monotonic() - began < 30, f"only {seen} had anything to do"
    assert (load.refused, load.broken) == ([], [])
    assert checkout.deploy().done().unchanged


def kill_engine() -> None:
    shell(SECOND, "systemctl kill -s KILL llm-engine@main.service")


def cut_power() -> None:
    hosts.kill(THIRD)


@pytest.mark.parametrize(
    ("host", "end", "back"),
    [(SECOND, kill_engine, None), (THIRD, cut_power, hosts.boot)],
    ids=["its engine is killed", "its host loses its power"],
)
def test_one_of_them_ends_and_no_request_fails_that_had_not_begun(
    service: Service,
    host: str,
    end: Callable[[], None],
    back: Callable[[str], None] | None,
    say: Callable[[str], None],
) -> None:
    with Load(service) as load:
        wait_for(lambda: bool(backends()[host]["outstanding"]), 30)
        end()
        wait_for(lambda: backends()[host]["breaker"] != "closed", 60)
        # What was under way there is over, one way or the other.
        wait_for(lambda: not backends()[host]["outstanding"], 60)
        time.sleep(2)
    if back is not None:
        back(host)
    assert load.refused == []
    assert len(load.broken) <= len(load.streaming)
    assert all(stream.events for stream in load.broken)
    say(f"{load.count} requests, {len(load.broken)} broke off that had begun")
    wait_for(all_are_well, 120)


def test_keys_come_and_go_under_load_and_nothing_is_dropped(
    checkout: Checkout, service: Service
) -> None:
    def fleet(*words: str) -> None:
        done = pyinfra_run.run([str(BIN / "fleet"), "keys", *words], root=checkout.root)
        assert done.returncode == 0, done.stdout + done.stderr

    def status(name: str) -> int:
        return service.request("GET", "/v1/models", key=keys[name]).status

    first, second = checkout.root / "load.key", checkout.root / "load-next.key"
    keys = {}
    with Load(service) as load:
        fleet("create", NAME, "load", "--out", str(first))
        keys["first"] = first.read_text().strip()
        assert status("first") == 200
        fleet("rotate", NAME, "load", "--out", str(second))
        keys["second"] = second.read_text().strip()
        assert status("second") == 200
        fleet("revoke", NAME, "load")
        # The rotated one has its own name and its own end, a week from now.
        assert (status("first"), status("second")) == (200, 401)
    assert (load.refused, load.broken) == ([], [])
    assert load.count > 20
