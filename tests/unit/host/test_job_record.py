"""What jobs of the build user did, in the event log: by whom, and from what they themselves say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import events, job_record, jobs
from fleet_host.errors import HostError

if TYPE_CHECKING:
    from tests.fakes.job_systemd import FakeSystemd

DIGEST = "d" * 64
SPEC = {"model_id": "Qwen/Tiny", "revision": "master", "hub": "modelscope",
        "endpoint": "https://hub.example", "token_file": "hub-token"}  # fmt: skip
PULLED = {"state": "pulled", "model_digest": DIGEST, "files": 6, "bytes": 500}
JOB = {"kind": "pull", "id": "m1"}


@pytest.fixture
def host(systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    jobs.start({**JOB, "spec": SPEC, "who": "alice@desk"})
    monkeypatch.setenv("INVOCATION_ID", "i1")
    (systemd.root / "state/llm-verify/scheduled").mkdir(parents=True)
    return systemd


def ended(document: Any, kind: str = "pull", identifier: str = "m1") -> None:
    jobs.result_path(kind, identifier).write_text(json.dumps(document))


def logged() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = events.tail({"lines": 50})["events"]
    return found


@pytest.mark.parametrize(
    ("state", "what"),
    [("pulled", "model published"), ("verified", "model verified"), ("mended", "model mended")],
)
def test_a_pull_is_logged_with_who_asked_for_it_and_from_where(
    host: FakeSystemd, state: str, what: str
) -> None:
    published = host.root / "llm/models/Qwen--Tiny"
    published.mkdir(parents=True)
    (published / "master.json").write_text(json.dumps({"files": [], "commit": "c0ffee"}))
    ended({"invocation_id": "i1", "state": "done", "result": {**PULLED, "state": state}})
    assert job_record.record(JOB) == {"events": 1}
    (event,) = logged()
    assert (event["who"], event["what"]) == ("alice@desk", what)
    assert (event["model"], event["model_digest"]) == ("Qwen--Tiny/master", DIGEST)
    assert (event["commit"], event["endpoint"]) == ("c0ffee", "https://hub.example")
    assert "hub-token" not in json.dumps(event)


def test_a_locked_model_is_logged_by_its_directory_and_the_lock_s_digest(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = {**SPEC, "directory": "master-dddddddddddd", "files": []}
    jobs.start({**JOB, "spec": locked, "who": "alice@desk"})
    monkeypatch.setenv("INVOCATION_ID", "i1")
    ended({"invocation_id": "i1", "state": "done", "result": PULLED})
    job_record.record(JOB)
    (event,) = logged()
    assert (event["model"], event["locked"]) == ("Qwen--Tiny/master-dddddddddddd", True)
    assert event["model_digest"] == DIGEST


def test_the_hosts_that_gave_files_or_wrong_bytes_are_logged(host: FakeSystemd) -> None:
    peers = {"from": {"gpu02": 5, "gpu01": 7}, "dropped": {"gpu03": "it gave wrong bytes"}}
    ended({"invocation_id": "i1", "state": "done", "result": {**PULLED, "peers": peers}})
    job_record.record(JOB)
    (event,) = logged()
    assert event["from_hosts"] == ["gpu01", "gpu02"]
    assert event["dropped_hosts"] == ["gpu03"]


@pytest.mark.parametrize("peers", [None, 5, [], {"from": 5, "dropped": None}, {"from": {}}])
def test_a_pull_from_the_hub_alone_names_no_hosts(host: FakeSystemd, peers: Any) -> None:
    ended({"invocation_id": "i1", "state": "done", "result": {**PULLED, "peers": peers}})
    job_record.record(JOB)
    (event,) = logged()
    assert not {"from_hosts", "dropped_hosts"} & set(event)


def test_the_lock_the_licence_and_what_was_accepted_are_in_the_log(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    provenance = {
        "lock": "locks/models/Qwen--Tiny/master.json",
        "lock_sha256": "a" * 64,
        "license": "apache-2.0",
        "accepted": ["code"],
    }
    jobs.start({**JOB, "spec": {**SPEC, "provenance": provenance}, "who": "alice@desk"})
    monkeypatch.setenv("INVOCATION_ID", "i1")
    ended({"invocation_id": "i1", "state": "done", "result": PULLED})
    job_record.record(JOB)
    (event,) = logged()
    assert {key: event[key] for key in provenance} == provenance


def test_a_publication_that_a_power_cut_kept_out_of_the_log_is_written_once(
    systemd: FakeSystemd,
) -> None:
    published = systemd.root / "llm/models/Qwen--Tiny"
    published.mkdir(parents=True)
    record = {"files": [], "commit": "c0ffee", "model_digest": DIGEST, "hub": "modelscope"}
    (published / "master.json").write_text(json.dumps(record))
    for _ in range(2):
        job_record.published_after_all(published / "master")
    (event,) = logged()
    assert (event["what"], event["model"]) == ("model published", "Qwen--Tiny/master")
    assert (event["model_digest"], event["commit"]) == (DIGEST, "c0ffee")
    job_record.published_after_all(published / "nothing-here")
    assert len(logged()) == 1


def test_what_was_there_already_is_logged_once(host: FakeSystemd) -> None:
    ended({"invocation_id": "i1", "state": "done", "result": {**PULLED, "state": "present"}})
    # A power cut kept the run that published it from saying so.
    assert job_record.record(JOB) == {"events": 1}
    assert logged()[0]["what"] == "model published"
    assert job_record.record(JOB) == {"events": 0}
    other = {**PULLED, "state": "present", "model_digest": "e" * 64}
    ended({"invocation_id": "i1", "state": "done", "result": other})
    assert job_record.record(JOB) == {"events": 1}


def test_a_pull_that_failed_is_logged_with_the_reason(host: FakeSystemd) -> None:
    ended({"invocation_id": "i1", "state": "failed", "error": {"what": "the disk is full"}})
    job_record.record(JOB)
    (event,) = logged()
    assert (event["what"], event["why"]) == ("pull failed", "the disk is full")


@pytest.mark.parametrize("left", [None, {"invocation_id": "of an earlier run", "state": "done"}])
def test_a_job_that_was_killed_is_logged_with_how(
    host: FakeSystemd, monkeypatch: pytest.MonkeyPatch, left: Any
) -> None:
    monkeypatch.setenv("SERVICE_RESULT", "oom-kill")
    if left:
        ended(left)
    job_record.record(JOB)
    (event,) = logged()
    assert (event["what"], event["how"]) == ("pull ended without a result", "oom-kill")


def verified(*rows: Any) -> dict[str, Any]:
    return {"invocation_id": "i1", "state": "done", "result": {"models": list(rows)}}


def test_a_verification_is_logged_when_it_read_something(host: FakeSystemd) -> None:
    row = {"name": "Qwen--Tiny/master", "model_digest": DIGEST, "hashed": 6, "damaged": []}
    ended(verified(row, {**row, "hashed": 0}), "verify", "scheduled")
    job_record.record({"kind": "verify", "id": "scheduled"})
    (event,) = logged()
    assert (event["who"], event["what"]) == ("llm-verify.timer", "model verified")
    assert (event["model"], event["hashed"]) == ("Qwen--Tiny/master", 6)


def test_damage_is_logged_with_its_files(host: FakeSystemd) -> None:
    row = {"name": "Qwen--Tiny/master", "model_digest": DIGEST, "hashed": 6, "extra": ["x"],
           "damaged": [{"path": "a.safetensors", "problem": "has SHA-256 0"}]}  # fmt: skip
    failed = {**verified(row), "state": "failed", "error": {"what": "is not as it was verified"}}
    ended(failed, "verify", "scheduled")
    job_record.record({"kind": "verify", "id": "scheduled"})
    (event,) = logged()
    assert event["what"] == "model damaged"
    assert (event["damaged"], event["extra"]) == (["a.safetensors"], ["x"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"[" * 100_000,
        json.dumps({"invocation_id": "i1", "state": "done", "result": 7}).encode(),
        json.dumps({"invocation_id": "i1", "state": 7, "error": [1]}).encode(),
        json.dumps(
            {"invocation_id": "i1", "state": "done", "result": {"state": "pulled", "files": [1]}}
        ).encode(),
    ],
)
def test_a_result_of_nonsense_breaks_neither_root_s_step_nor_the_chain(
    host: FakeSystemd, content: bytes
) -> None:
    jobs.result_path("pull", "m1").write_bytes(content)
    job_record.record(JOB)
    assert events.verify({})["events"] <= 1


def test_a_result_that_is_a_link_is_not_followed(host: FakeSystemd) -> None:
    secret = host.root / "secret"
    secret.write_text(
        json.dumps({"invocation_id": "i1", "state": "failed", "error": {"what": "s"}})
    )
    jobs.result_path("pull", "m1").symlink_to(secret)
    job_record.record(JOB)
    assert logged()[0]["what"] == "pull ended without a result"


def test_a_large_result_is_not_read(host: FakeSystemd) -> None:
    ended({"invocation_id": "i1", "state": "done", "x": "y" * (5 << 20)})
    job_record.record(JOB)
    assert logged()[0]["what"] == "pull ended without a result"


# --- the chain


def test_the_chain_is_whole_and_is_held_to_what_was_seen_before(host: FakeSystemd) -> None:
    for number in range(4):
        events.record("something", "alice", number=number)
    early = events.verify({})
    seen = {"events": early["events"], "head": early["head"]}
    events.record("more", "bob")
    now = events.verify({"seen": seen})
    assert (now["events"], now["last"]["what"]) == (5, "more")
    assert now["head"] != early["head"]


def test_lines_missing_at_the_end_are_found_by_what_was_seen(host: FakeSystemd) -> None:
    for number in range(4):
        events.record("something", "alice", number=number)
    full = events.verify({})
    path = events.events_path()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert events.verify({})["events"] == 2  # a chain alone does not tell
    with pytest.raises(HostError, match="not the one that was verified"):
        events.verify({"seen": {"events": 4, "head": full["head"]}})


def test_a_log_written_anew_is_found_by_what_was_seen(host: FakeSystemd) -> None:
    events.record("something", "alice")
    seen = events.verify({})
    events.events_path().unlink()
    for _ in range(3):
        events.record("something", "mallory")
    with pytest.raises(HostError) as caught:
        events.verify({"seen": {"events": 1, "head": seen["head"]}})
    assert "line 1 is another" in caught.value.why


@pytest.mark.parametrize("harm", [0, 1, 2])
def test_any_line_that_is_changed_removed_or_put_in_breaks_it(host: FakeSystemd, harm: int) -> None:
    for number in range(4):
        events.record("something", "alice", number=number)
    path = events.events_path()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1:2] = [[lines[1].replace(b"alice", b"alyce")], [], [lines[1], lines[1]]][harm]
    path.write_bytes(b"".join(lines))
    with pytest.raises(HostError, match="broken at line"):
        events.verify({})


def test_only_lines_with_a_text_are_told_when_asked(host: FakeSystemd) -> None:
    events.record("went live", "alice", model="Qwen--Tiny/master")
    events.record("keys pushed", "alice")
    found = events.tail({"lines": 5, "containing": "Qwen--Tiny"})["events"]
    assert [event["what"] for event in found] == ["went live"]
