"""What makes a file of a model good, and what a published model's check finds."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from fleet_host import hashing, integrity, verification
from fleet_host.errors import HostError, SpecError
from fleet_host.listing import FileEntry

from tests.fakes.model_hub import FIRST, safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.pull_world import PullWorld


def entry(path: str, content: bytes) -> FileEntry:
    return FileEntry(path, len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (safetensors(b"abc"), None),
        (safetensors(b"abc") + b"d", "safetensors header says"),
        (safetensors(b"abc")[:-1], "safetensors header says"),
        (b"short", "does not fit"),
        ((2**40).to_bytes(8, "little") + b"{}", "does not fit"),
        ((2).to_bytes(8, "little") + b"[]" + b"x", "header"),
        ((9).to_bytes(8, "little") + b'{"w": {}}', "unreadable"),
    ],
)
def test_a_shard_must_agree_with_its_own_header(
    tmp_path: Path, content: bytes, expected: str | None
) -> None:
    # A hub that lists a cut shard with the cut shard's hash passes every other check.
    (tmp_path / "m.safetensors").write_bytes(content)
    (verdict,) = integrity.verify_files(tmp_path, [entry("m.safetensors", content)])
    problem = verdict.problem
    assert (problem is None) if expected is None else (expected in str(problem))


def test_a_link_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    assert integrity.verify_file(tmp_path, entry("link", b"x")).problem == "is missing"


def test_a_disk_error_is_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")

    def fails(*_: object, **__: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(hashing, "sha256_of", fails)
    assert "Input/output error" in str(integrity.verify_file(tmp_path, entry("a", b"x")).problem)


def test_hashing_stops_when_its_caller_stops(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    tally = hashing.Tally()
    tally.cancelled = True
    with pytest.raises(hashing.Cancelled):
        hashing.sha256_of(tmp_path / "a", tally)


def test_verify_command_says_ok_or_names_the_files(world: PullWorld) -> None:
    world.pull()
    request = {"path": str(world.final), "deep": True}
    assert verification.verify_command(request)["ok"] is True
    victim = world.final / FIRST
    before = victim.stat()
    victim.chmod(0o644)
    victim.write_bytes(b"\0" * before.st_size)
    world.final.chmod(0o755)  # published models are read-only, for root alone it does not matter
    (world.final / "extra").write_text("x")
    with pytest.raises(HostError) as caught:
        verification.verify_command(request)
    assert any(f"{FIRST} has SHA-256" in line for line in caught.value.detail)
    assert "Qwen--Tiny/master: extra does not belong to the model" in caught.value.detail
    with pytest.raises(HostError):
        verification.verify_command({**request, "deep": False})


@pytest.mark.parametrize("path", [None, "relative", "/a/../b", 3])
def test_verify_command_refuses_paths_that_are_none(path: object) -> None:
    with pytest.raises(SpecError):
        verification.verify_command({"path": path})
