"""The pull of a locked model: what the lock says counts, whatever the hub lists."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import borrow
from fleet_host.errors import HostError, SpecError

from pyinfra_deploy.planning.model_files import content_digest
from tests.fakes.lab_hub import make_directory
from tests.fakes.model_hub import FIRST, SECOND, entry_of, safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.pull_world import PullWorld

COMMIT = "c" * 40


def locked(world: PullWorld, **changes: Any) -> dict[str, Any]:
    """The additions to a spec that a lock of the hub's present files gives."""
    rows = [entry_of(path, body) for path, body in world.hub.files.items()]
    files = [{"path": row["Path"], "size": row["Size"], "sha256": row["Sha256"]} for row in rows]
    return {"files": files, "directory": "master-123456789abc", "commit": None, **changes}


def place(world: PullWorld) -> Path:
    return world.target / "Qwen--Tiny" / "master-123456789abc"


def test_a_locked_model_is_pulled_without_asking_for_a_listing(world: PullWorld) -> None:
    answer = world.pull(**locked(world))
    assert answer["path"] == str(place(world))
    assert not any("/repo/files" in url and headers.get("User-Agent") == "fleet-host"
                   for url, headers in world.hub.requests)  # fmt: skip
    found = {
        path.relative_to(place(world)).as_posix(): path.read_bytes()
        for path in place(world).rglob("*")
        if path.is_file()
    }
    assert found == world.hub.files


def test_its_digest_is_the_one_that_the_lock_has(world: PullWorld) -> None:
    spec = locked(world)
    rows = [(file["path"], file["size"], file["sha256"]) for file in spec["files"]]
    assert world.pull(**spec)["model_digest"] == content_digest(rows)


def test_the_commit_is_what_the_client_asks_for(world: PullWorld) -> None:
    world.pull(**locked(world, commit=COMMIT))
    (start,) = world.starts()
    assert start["argv"][start["argv"].index("--revision") + 1] == COMMIT
    record = json.loads((place(world).parent / f"{place(world).name}.json").read_text())
    assert (record["revision"], record["commit"]) == ("master", COMMIT)


def test_what_the_hub_has_beside_the_lock_is_not_pulled(world: PullWorld) -> None:
    spec = locked(world)
    world.hub.files["pytorch_model.bin"] = b"\x80\x04"
    world.pull(**spec)
    assert world.hub.downloads("pytorch_model.bin") == 0
    assert not (place(world) / "pytorch_model.bin").exists()


def test_a_hub_that_has_moved_on_is_refused_with_the_file_that_differs(world: PullWorld) -> None:
    spec = locked(world)
    world.hub.files[SECOND] = safetensors(b"\x03" * 200_000, "b")
    with pytest.raises(HostError) as caught:
        world.pull(**spec)
    assert "is not what was locked" in caught.value.what
    assert any(SECOND in line for line in caught.value.detail)
    assert not place(world).exists()
    assert (world.target / ".incoming/Qwen--Tiny" / place(world).name / "model" / FIRST).exists()


def test_two_locks_of_a_branch_live_side_by_side(world: PullWorld) -> None:
    world.pull(**locked(world))
    world.hub.files["config.json"] = b'{"model_type": "qwen3", "more": 1}'
    world.pull(**locked(world, directory="master-aaaaaaaaaaaa"))
    assert (place(world) / "config.json").read_bytes() == b'{"model_type": "qwen3"}'
    other = place(world).with_name("master-aaaaaaaaaaaa")
    assert (other / "config.json").read_bytes() == world.hub.files["config.json"]


def test_another_model_under_the_locks_name_is_refused_not_taken_for_it(
    world: PullWorld,
) -> None:
    world.pull(**locked(world))
    world.hub.files["config.json"] = b'{"model_type": "other"}'
    with pytest.raises(HostError) as caught:
        world.pull(**locked(world))
    assert "holds another model than the lock says" in caught.value.what


def test_damage_is_mended_from_a_hub_whose_listing_is_broken(world: PullWorld) -> None:
    spec = locked(world)
    world.pull(**spec)
    world.hub.entries = [entry for entry in world.hub.listing() if entry["Path"] != "config.json"]
    path = place(world) / SECOND
    path.chmod(0o644)
    path.write_bytes(b"x")
    assert world.pull(**spec)["state"] == "mended"
    assert path.read_bytes() == world.hub.files[SECOND]


def copied_in(world: PullWorld, spec: dict[str, Any]) -> Path:
    """As an operator without internet brings the files (docs/models.md)."""
    directory = world.target / ".incoming" / "Qwen--Tiny" / spec["directory"] / "model"
    return make_directory(directory, world.hub.files)


def test_files_that_were_copied_in_need_no_hub(world: PullWorld) -> None:
    spec = locked(world, endpoint="http://127.0.0.1:9")
    (copied_in(world, spec) / "stray").write_bytes(b"")
    assert world.pull(**spec)["state"] == "pulled"
    assert world.hub.requests == []
    assert world.starts() == []
    assert (place(world) / FIRST).read_bytes() == world.hub.files[FIRST]
    assert not (place(world) / "stray").exists()


def test_of_files_that_were_copied_in_damaged_ones_alone_are_pulled(world: PullWorld) -> None:
    spec = locked(world)
    (copied_in(world, spec) / SECOND).write_bytes(b"cut")
    world.pull(**spec)
    assert (place(world) / SECOND).read_bytes() == world.hub.files[SECOND]
    assert world.hub.downloads(SECOND) >= 1
    assert world.hub.downloads(FIRST) == 0


@pytest.fixture
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's shards are smaller than what is worth a copy."""
    monkeypatch.setattr(borrow, "LEAST_BYTES", 100_000)


@pytest.mark.usefixtures("small_counts")
def test_a_new_revision_downloads_only_what_is_new(world: PullWorld) -> None:
    world.pull()
    world.hub.files[SECOND] = safetensors(b"\x03" * 200_000, "b")
    before = world.hub.downloads(FIRST)
    world.pull(**locked(world))
    assert world.hub.downloads(FIRST) == before
    assert (place(world) / FIRST).read_bytes() == world.hub.files[FIRST]
    assert (place(world) / SECOND).read_bytes() == world.hub.files[SECOND]
    # The other revision is as it was: nothing of it is linked, and it counts as untouched.
    assert (place(world) / FIRST).stat().st_ino != (world.final / FIRST).stat().st_ino
    assert world.hub.files[SECOND] != (world.final / SECOND).read_bytes()
    world.hub.statuses = [("/", 500)] * 99
    assert world.pull(revision="master")["state"] == "present"


@pytest.mark.usefixtures("small_counts")
def test_nothing_is_taken_from_files_that_somebody_touched(world: PullWorld) -> None:
    world.pull()
    path = world.final / FIRST
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    before = world.hub.downloads(FIRST)
    world.pull(**locked(world))
    assert world.hub.downloads(FIRST) > before
    assert (place(world) / FIRST).read_bytes() == world.hub.files[FIRST]


@pytest.mark.usefixtures("small_counts")
def test_without_the_kernels_call_it_is_copied_all_the_same(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: Any) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    world.pull()
    before = world.hub.downloads(FIRST)
    monkeypatch.setattr(os, "copy_file_range", lacking)
    world.pull(**locked(world))
    assert world.hub.downloads(FIRST) == before
    assert (place(world) / FIRST).read_bytes() == world.hub.files[FIRST]


@pytest.mark.usefixtures("small_counts")
def test_a_record_that_cannot_be_read_costs_a_download_not_the_pull(world: PullWorld) -> None:
    world.pull()
    record = world.final.with_name("master.json")
    record.write_text('{"schema": 99, "files": []}')
    world.pull(**locked(world))
    assert (place(world) / FIRST).read_bytes() == world.hub.files[FIRST]


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": "x"},
        {"files": [{"path": "../x", "size": 1, "sha256": "0" * 64}]},
        {"files": [{"path": "x", "sha256": "0" * 64}]},
        {"directory": "../x"},
        {"directory": "x.json"},
        {"commit": "master"},
    ],
)
def test_a_lock_that_cannot_be_used_is_refused(world: PullWorld, change: dict[str, Any]) -> None:
    with pytest.raises((HostError, SpecError)):
        world.pull(**locked(world, **change))
    assert world.starts() == []
