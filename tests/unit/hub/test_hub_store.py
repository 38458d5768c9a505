"""Models on disk: nothing half made, hashes of what is there now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lab import durable
from lab.errors import LabError
from lab.hub import store
from lab.hub.places import models_directory
from tests.fakes.lab_hub import FILES, MODEL, SHARD, make_directory

if TYPE_CHECKING:
    from pathlib import Path


def test_same_files_are_the_same_revision(hub_directory: Path, tmp_path: Path) -> None:
    models = models_directory(hub_directory)
    first = store.branches(models, MODEL)["master"]
    again = make_directory(tmp_path / "again", FILES)
    assert store.publish(models, again, MODEL, "copy") == first
    changed = make_directory(tmp_path / "changed", {**FILES, "config.json": b"[]\n"})
    assert store.publish(models, changed, MODEL) != first
    assert store.branches(models, MODEL)["copy"] == first


def test_published_files_can_be_read_by_everyone(hub_directory: Path, tmp_path: Path) -> None:
    made = make_directory(tmp_path / "made", {"sub/weights": b"w"})
    (made / "sub/weights").chmod(0o600)
    made.chmod(0o700)
    models = models_directory(hub_directory)
    store.publish(models, made, "lab/other")
    found = store.revision(models, "lab/other", "master")
    assert (found.directory / "sub/weights").stat().st_mode & 0o777 == 0o644
    assert found.directory.stat().st_mode & 0o777 == 0o755


def test_a_change_on_disk_is_hashed_again(hub_directory: Path) -> None:
    models = models_directory(hub_directory)
    before = {file.path: file for file in store.revision(models, MODEL, "master").files}
    path = store.revision(models, MODEL, "master").directory / SHARD
    path.write_bytes(b"x" * 2048)
    os.utime(path, ns=(1, before[SHARD].modified_ns + 1))
    after = {file.path: file for file in store.revision(models, MODEL, "master").files}
    assert after[SHARD].sha256 == store.sha256_of(path) != before[SHARD].sha256


def test_unchanged_files_are_not_read_again(
    hub_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads(path: Path) -> str:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(store, "sha256_of", reads)
    assert store.revision(models_directory(hub_directory), MODEL, "master").files


def test_a_damaged_hash_file_is_made_again(hub_directory: Path) -> None:
    models = models_directory(hub_directory)
    found = store.revision(models, MODEL, "master")
    found.directory.with_name(f"{found.commit}.json").write_text("[{")
    assert store.revision(models, MODEL, "master") == found


def test_killed_while_publishing_leaves_the_model_as_it_was(
    hub_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = models_directory(hub_directory)
    before = store.revision(models, MODEL, "master")

    def power_loss(directory: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "sync_tree", power_loss)
    made = make_directory(tmp_path / "made", {"config.json": b"other"})
    with pytest.raises(KeyboardInterrupt):
        store.publish(models, made, MODEL)
    assert store.revision(models, MODEL, "master") == before
    assert store.model_ids(models) == [MODEL]


def test_a_failed_write_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        durable.write_atomic(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "one", "../x", "a/b/c", "a/.b", "a/b c"])
def test_names_that_are_no_model(hub_directory: Path, tmp_path: Path, name: str) -> None:
    models = models_directory(hub_directory)
    with pytest.raises(store.UnknownModelError):
        store.revision(models, name, "master")
    with pytest.raises(LabError, match="not a model's name"):
        store.publish(models, make_directory(tmp_path / "made", FILES), name)


def test_an_empty_model_is_refused(hub_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabError, match="is empty"):
        store.publish(models_directory(hub_directory), tmp_path / "empty", "lab/empty")
