"""An engine that may have loaded damaged files is restarted by a go-live of the release it runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fleet_host import engine, events, golive, release
from fleet_host.status import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

RESTART = "restart llm-engine@main.service"


def go(host: FakeHost) -> dict[str, Any]:
    return golive.run(host.golive_spec("r1"), Progress(None))


def record_of(host: FakeHost) -> Path:
    model = (engine.release_directory("main", "r1") / "model").readlink()
    return model.with_name(f"{model.name}.json")


def test_an_engine_that_was_started_before_its_model_was_mended_is_restarted_once(
    host: FakeHost,
) -> None:
    release.stage(host.release_request("r1"))
    go(host)
    record = json.loads(record_of(host).read_text())
    mended = {**record, "mended": {"when": "2026 0a", "files": ["one"]}}
    record_of(host).write_text(json.dumps(mended))
    restarts = host.calls().count(RESTART)
    assert go(host)["changed"] is True
    assert host.calls().count(RESTART) == restarts + 1
    assert go(host)["changed"] is False
    assert host.calls().count(RESTART) == restarts + 1


def test_a_record_that_was_only_written_anew_restarts_nothing(host: FakeHost) -> None:
    release.stage(host.release_request("r1"))
    go(host)
    record = json.loads(record_of(host).read_text())
    record_of(host).write_text(json.dumps({**record, "verified_at": "later", "mended": None}))
    restarts = host.calls().count(RESTART)
    assert go(host)["changed"] is False
    assert host.calls().count(RESTART) == restarts


def test_what_went_live_is_logged_with_its_model(host: FakeHost) -> None:
    release.stage(host.release_request("r1"))
    go(host)
    published, staged, live = events.tail({})["events"]
    # Nobody has pulled it here: the log says so before a release refers to it.
    assert published["what"] == "model published"
    for event, what in ((staged, "release staged"), (live, "went live")):
        assert event["what"] == what
        model = engine.release_directory("main", "r1") / "model"
        assert event["model"] == "/".join(model.readlink().parts[-2:])
        document = json.loads((model.parent / "release.json").read_text())
        assert event["model_digest"] == document.get("model_digest")
