"""The verify job beside pulls, and as the timer starts it."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import (
    events,
    hashing,
    job_record,
    jobs,
    locking,
    model_record,
    staging,
    verification,
)
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.fakes.model_hub import SECOND
from tests.integration.host.test_verification import NAME, flip, verify, writable

if TYPE_CHECKING:
    from pathlib import Path

    from fleet_host.integrity import Verdict

    from tests.fakes.pull_world import PullWorld


def test_a_model_that_is_being_pulled_is_left_to_the_pull(world: PullWorld) -> None:
    world.pull()
    place = staging.places(world.target, "Qwen/Tiny", "master")
    with staging.held(place):
        answer = verify(deep=True)
    assert (answer["models"], answer["skipped"]) == ([], [NAME])


def test_a_verification_gives_way_to_a_pull_and_keeps_what_it_has_found(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pull()
    flip(writable(world) / "config.json")
    pulled: list[dict[str, Any]] = []
    kept: list[Verdict] = []
    began = threading.Event()
    real_hash, real_renew = hashing.sha256_of, model_record.renew

    def slow(path: Path, tally: hashing.Tally | None = None, **options: Any) -> str:
        if path.name != SECOND or began.is_set():
            return real_hash(path, tally, **options)
        while tally is not None and not tally.cancelled:  # a shard of hours
            began.set()
            time.sleep(0.01)
        raise hashing.Cancelled

    def renew(directory: Path, record: Any, verdicts: list[Verdict], *, deep: bool) -> bool:
        kept.extend(verdicts)
        return real_renew(directory, record, verdicts, deep=deep)

    monkeypatch.setattr(hashing, "sha256_of", slow)
    monkeypatch.setattr(model_record, "renew", renew)

    def pull() -> None:
        assert began.wait(30)
        time.sleep(0.5)  # the other files are small
        pulled.append(world.pull())

    thread = threading.Thread(target=pull)
    thread.start()
    answer = verify(deep=True)
    thread.join(60)
    assert [it.entry.path for it in kept if it.problem] == ["config.json"]
    assert (answer["models"], answer["skipped"]) == ([], [NAME])
    assert pulled[0]["state"] == "mended"
    world.assert_whole()
    assert verify(deep=True)["models"][0]["hashed"] == 6


def test_a_holder_that_does_not_give_way_is_named_for_what_it_is(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pull()
    monkeypatch.setattr(staging, "GIVE_WAY_SECONDS", 0.1)

    def pulls(*_: Any, **__: Any) -> None:
        with pytest.raises(locking.Busy, match="is being verified or removed") as caught:
            world.pull()
        assert "llm-verify@*" in caught.value.fix

    monkeypatch.setattr(verification, "verify_model", pulls)
    verification.verify_held(world.final, deep=False, progress=Progress(None))


# --- the timer


def test_the_timer_s_job_needs_no_request_and_its_damage_gets_into_the_log(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = world.target.parent
    for name in ("run", "state", "etc"):
        monkeypatch.setenv(f"FLEET_{name.upper()}_ROOT", str(root / name))
        (root / name / "llm-verify/scheduled").mkdir(parents=True)
    monkeypatch.setenv("INVOCATION_ID", "i1")
    request = {"kind": "verify", "id": "scheduled"}
    world.pull()
    previous = signal.getsignal(signal.SIGTERM)
    try:
        assert jobs.run(request)["state"] == "done"
        flip(writable(world) / SECOND)
        with pytest.raises(HostError, match="is not as it was verified"):
            jobs.run(request)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert job_record.record(request) == {"events": 1}
    (event,) = events.tail({})["events"]
    assert (event["who"], event["what"]) == ("llm-verify.timer", "model damaged")
    assert (event["model"], event["damaged"]) == (NAME, [SECOND])


def scheduled(world: PullWorld, monkeypatch: pytest.MonkeyPatch, days: int | None, age: str) -> int:
    """How many files were hashed."""
    etc = world.target.parent / "etc"
    (etc / "llm").mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("FLEET_ETC_ROOT", str(etc))
    (etc / "llm/verify.json").write_text(json.dumps({"every_days": days}))
    record = model_record.require_record(world.final)
    record["deep_verified_at"] = age
    model_record.record_path(world.final).write_text(json.dumps(record))
    answer = verification.run({"scheduled": True}, Progress(None))
    return int(answer["models"][0]["hashed"])


@pytest.mark.parametrize(
    ("days", "age", "files"),
    [
        (30, "2001-01-01T00:00:00Z", 6),
        (30, "2999-01-01T00:00:00Z", 0),
        (None, "2001-01-01T00:00:00Z", 0),
        (30, "not a date", 6),
    ],
)
def test_a_scheduled_run_reads_what_is_due(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch, days: int | None, age: str, files: int
) -> None:
    world.pull()
    assert scheduled(world, monkeypatch, days, age) == files
    again = verification.run({"scheduled": True}, Progress(None))
    assert again["models"][0]["hashed"] == 0
