"""Models side by side on a host: listed with who needs them, removed only when nobody does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import durable, events, locking, models, snapshot, staging
from fleet_host.errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.pull_world import PullWorld

NAME, OTHER = "Qwen--Tiny/master", "Qwen--Tiny/v1.0"


@pytest.fixture
def two(world: PullWorld) -> PullWorld:
    world.pull()
    world.pull(revision="v1.0")
    return world


def refer(world: PullWorld, name: str, release: str, *, current: bool = False) -> None:
    home = world.target.parent / "engines" / "main"
    (home / "releases" / release).mkdir(parents=True)
    (home / "releases" / release / "model").symlink_to(world.target / name)
    if current:
        (home / "current").symlink_to(f"releases/{release}")


def test_models_are_listed_with_who_refers_to_them(two: PullWorld) -> None:
    refer(two, NAME, "r1", current=True)
    refer(two, NAME, "r2")
    (two.target / ".incoming" / "Qwen--Big" / "master" / "model").mkdir(parents=True)
    (two.target / ".incoming" / "Qwen--Big" / "master" / "model" / "part").write_bytes(b"x" * 9000)
    listed = models.listing({})
    first, second = listed["models"]
    assert (first["name"], first["model_id"], first["revision"]) == (NAME, "Qwen/Tiny", "master")
    assert first["releases"] == ["main/r1", "main/r2"]
    assert first["engines"] == ["main"]
    assert first["bytes"] == sum(len(body) for body in two.hub.files.values())
    assert first["used_bytes"] >= first["bytes"]
    assert (second["name"], second["releases"], second["engines"]) == (OTHER, [], [])
    ((left),) = listed["unfinished"]
    assert left["name"] == "Qwen--Big/master"
    assert left["bytes"] >= 9000
    assert listed["free_bytes"] > 0


def test_one_that_a_release_refers_to_stays_and_so_does_what_was_asked_for_with_it(
    two: PullWorld,
) -> None:
    refer(two, NAME, "r1")
    with pytest.raises(HostError, match="is not removed") as caught:
        models.remove({"models": [OTHER, NAME]})
    assert "main/r1" in caught.value.why
    assert (two.target / OTHER).is_dir()
    assert (two.target / NAME).is_dir()


def test_removing_leaves_the_others_and_a_line_in_the_log(two: PullWorld) -> None:
    refer(two, NAME, "r1", current=True)
    digest = models.listing({})["models"][1]["model_digest"]
    assert models.remove({"models": [OTHER], "dry": True})["freed_bytes"] > 0
    assert (two.target / OTHER).is_dir()
    answer = models.remove({"models": [OTHER]})
    assert answer["removed"] == [OTHER]
    assert answer["freed_bytes"] > 0
    assert [row["name"] for row in models.listing({})["models"]] == [NAME]
    assert not (two.target / OTHER).exists()
    assert not (two.target / f"{OTHER}.json").exists()
    said = events.tail({"lines": 2})["events"]
    assert [(event["what"], event["model"], event["model_digest"]) for event in said] == [
        ("removing model", OTHER, digest),
        ("model removed", OTHER, digest),
    ]


def test_files_that_do_not_belong_are_listed(two: PullWorld) -> None:
    (two.target / NAME).chmod(0o755)
    (two.target / NAME / "notes.txt").write_text("an operator's")
    rows = {row["name"]: row["extra"] for row in models.listing({})["models"]}
    assert rows == {NAME: ["notes.txt"], OTHER: []}


def test_a_removal_that_is_killed_has_said_what_it_was_about_to_do(
    two: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable, "remove_file", killed)
    with pytest.raises(KeyboardInterrupt):
        models.remove({"models": [OTHER]})
    assert events.tail({"lines": 1})["events"][0]["what"] == "removing model"


def test_a_removal_that_was_killed_is_listed_and_finished_by_the_same_request(
    two: PullWorld,
) -> None:
    (two.target / f"{OTHER}.json").unlink()
    listed = models.listing({})
    assert [row["name"] for row in listed["models"]] == [NAME]
    ((left),) = listed["unfinished"]
    assert left["name"] == OTHER
    assert left["bytes"] >= sum(len(body) for body in two.hub.files.values())
    # And what a pull of the same has begun since counts with it.
    part = two.target / ".incoming" / OTHER / "model" / "part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 9000)
    ((both),) = models.listing({})["unfinished"]
    assert (both["name"], both["bytes"] >= left["bytes"] + 9000) == (OTHER, True)
    assert models.remove({"models": [OTHER]})["removed"] == [OTHER]
    assert not (two.target / OTHER).exists()
    assert models.listing({})["unfinished"] == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"files": [3]}',
        '{"files": [{"path": "x"}]}',
        '{"files": [{"path": "x", "size": "9", "sha256": "a", "mtime_ns": 1, "inode": 1}]}',
        '{"files": [], "schema": 99}',
        '{"files": [], "schema": "1"}',
    ],
)
def test_a_record_that_cannot_be_read_hides_no_other_model(two: PullWorld, text: str) -> None:
    (two.target / f"{OTHER}.json").write_text(text)
    first, second = models.listing({})["models"]
    assert (first["name"], first["problem"]) == (NAME, None)
    assert (second["name"], second["files"]) == (OTHER, 0)
    assert str(two.target / f"{OTHER}.json") in second["problem"]
    seen: Any = snapshot.models_section({"llm_root": str(two.target.parent)})
    assert seen["Qwen--Tiny"]["master"]["intact"]
    assert not seen["Qwen--Tiny"]["v1.0"]["intact"] or "schema" in text
    assert models.remove({"models": [OTHER]})["freed_bytes"] > 0
    assert [row["name"] for row in models.listing({})["models"]] == [NAME]


def test_what_a_pull_that_was_given_up_has_left_goes_under_its_name(two: PullWorld) -> None:
    left = two.target / ".incoming" / "Qwen--Big" / "master"
    (left / "model").mkdir(parents=True)
    (left / "model" / "part").write_bytes(b"x" * 9000)
    assert models.remove({"models": ["Qwen--Big/master"]})["freed_bytes"] >= 9000
    assert not left.exists()
    assert events.tail({})["events"][-1]["what"] == "unfinished pull removed"
    assert len(models.listing({})["models"]) == 2


def test_one_that_is_being_pulled_is_not_removed(two: PullWorld) -> None:
    with (
        staging.held(staging.places(two.target, "Qwen/Tiny", "v1.0")),
        pytest.raises(locking.Busy, match="being pulled"),
    ):
        models.remove({"models": [OTHER]})
    assert (two.target / OTHER).is_dir()


@pytest.mark.parametrize("name", ["../x", "Qwen--Tiny", ".incoming/x", "a/../b", "/srv/x", ""])
def test_what_is_no_model_is_not_removed(two: PullWorld, name: str) -> None:
    with pytest.raises(HostError):
        models.remove({"models": [name]})
    assert (two.target / OTHER).is_dir()


def test_one_that_is_not_there_is_said(two: PullWorld) -> None:
    with pytest.raises(HostError, match="is not on this host"):
        models.remove({"models": ["Qwen--Other/master"]})


def test_a_directory_outside_is_never_removed(two: PullWorld, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (two.target / "Qwen--Link").mkdir()
    (two.target / "Qwen--Link" / "master").symlink_to(outside)
    (two.target / "Qwen--Link" / "master.json").write_text(json.dumps({"files": []}))
    models.remove({"models": ["Qwen--Link/master"]})
    assert (outside / "kept").exists()
