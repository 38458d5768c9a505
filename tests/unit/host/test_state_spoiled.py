"""State files that somebody else wrote, and a full disk: words with the path, never a traceback."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import environment, events, lease, release, snapshot
from fleet_host.errors import HostError

from tests.unit.host.test_state import asked, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.engine_host import FakeHost


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "its 'owner' is None"),
        ("[]", "instead of an object"),
        ("null", "instead of an object"),
        ('{"owner": "a", "machine": "m:1:2", "run": "r", "since": 1, "until": null}', "'until'"),
        (
            '{"owner": "a", "machine": "m:1:2", "run": "r", "since": 1, "until": Infinity, '
            '"ttl_seconds": 900}',
            "not a time",
        ),
        ("{cut", "not valid JSON"),
    ],
)
def test_a_lease_that_is_none_is_named_with_what_to_do(
    host: FakeHost, text: str, said: str
) -> None:
    path = host.llm_root / "state/lease.json"
    path.write_text(text)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: lease.acquire(asked("r2", None)),
        lambda: lease.status({}),
        lambda: lease.renew({"run": "r", "ttl_seconds": 60}),
        lambda: lease.release({"run": "r"}),
    )
    for call in calls:
        with pytest.raises(HostError) as caught:
            call()
        assert str(path) in caught.value.what
        assert said in caught.value.why
        assert "run again" in caught.value.fix


def test_a_lease_longer_than_one_may_be_holds_nobody_up(host: FakeHost) -> None:
    path = host.llm_root / "state/lease.json"
    far = {**asked("r1"), "since": 1, "until": 1e11, "ttl_seconds": 10**12}
    path.write_text(json.dumps(far))
    assert lease.status({})["live"] is False
    assert lease.acquire(asked("r2", None))["taken_over"] == "r1"
    within = {**far, "since": 1e300, "until": time.time() + 80_000, "run": "r3"}
    path.write_text(json.dumps(within))
    error = refused(asked("r4", None))
    assert f"sudo rm {path}" in error.fix


def test_a_line_that_is_no_event_is_shown_by_number_and_hides_no_other(host: FakeHost) -> None:
    events.record("first", "alice")
    path = events.events_path()
    with path.open("ab") as handle:
        handle.write(b"\xff garbage\n[1]\n")
    events.record("second", "alice")
    found = events.tail({})
    assert [event["what"] for event in found["events"]] == ["first", "second"]
    assert found["unreadable"] == [
        f"line 2 of {path} is no event: \\xff garbage",
        f"line 3 of {path} is no event: [1]",
    ]
    path.write_text("[1]\n")
    with pytest.raises(HostError, match="line 1"):
        events.verify({})


def full_disk(monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"os.{of}", full)


@pytest.mark.parametrize("of", ["write", "fsync", "open"])
def test_a_full_disk_is_told_in_words_and_leaves_nothing_begun(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    events.record("before", "alice")
    log = events.events_path().read_text()
    with monkeypatch.context() as patch:
        full_disk(patch, of)
        calls: tuple[Callable[[], Any], ...] = (
            lambda: lease.acquire(asked("r1")),
            lambda: events.record("x", "alice"),
        )
        for call in calls:
            with pytest.raises(HostError) as caught:
                call()
            assert "state/" in caught.value.what
            assert "bytes and" in caught.value.why
            assert "df -h" in caught.value.fix
    assert events.events_path().read_text() == log
    assert {path.name for path in (host.llm_root / "state").iterdir()} <= {
        "events.jsonl",
        "lease.lock",
    }


@pytest.mark.parametrize("of", ["fsync", "symlink", "mkdir"])
def test_a_release_that_finds_no_room_leaves_no_staging(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    release.stage(host.release_request("r0"))
    with monkeypatch.context() as patch:
        full_disk(patch, of)
        with pytest.raises(HostError) as caught:
            release.stage(host.release_request("r1"))
    assert "releases/r1" in caught.value.what
    assert "bytes are needed" in caught.value.why
    assert [path.name for path in (host.home / "releases").iterdir()] == ["r0"]


@pytest.mark.parametrize("text", ["", '{"digest": "a', "[]"])
def test_a_cut_completion_record_is_none(host: FakeHost, text: str) -> None:
    record = host.llm_root / "runtimes/vllm/.fleet-complete.json"
    record.write_text(text)
    with pytest.raises(HostError, match="cannot run here") as caught:
        release.stage(host.release_request("r1"))
    assert "not there in full" in caught.value.why
    assert environment.read_record(record.parent) is None
    seen = snapshot.environments_section({"llm_root": str(host.llm_root)})
    assert "error" in seen[str(record.parent)]


def test_a_generation_that_is_no_number_is_named_by_the_snapshot(host: FakeHost) -> None:
    path = host.llm_root / "state/generation"
    path.write_text("abc")
    section = snapshot.collect({"llm_root": str(host.llm_root)})["state"]
    assert str(path) in section["error"]
    assert "remove it" in section["error"]
