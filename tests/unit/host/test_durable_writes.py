"""Durable writes: owner and mode, failures, publishing. tests/integration traces their order."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from fleet_host import durable
from fleet_host.errors import HostError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_mode_holds_before_the_content_is_there(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    durable.write_file(path, b"x", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    durable.write_file(path, b"y", mode=0o644)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"y", 0o644)


def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    durable.write_file(path, "old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        durable.write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_publishing_over_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(FileExistsError):
        durable.publish_directory(tmp_path / "a", tmp_path / "b")


def test_json_that_somebody_broke_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(HostError, match=r"a\.json"):
        durable.read_json(tmp_path / "a.json")
    assert durable.read_json(tmp_path / "none.json") is None


def test_read_only_trees_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("x")
    (tmp_path / "a" / "b").chmod(0o555)
    durable.remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()
