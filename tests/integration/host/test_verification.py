"""The verify job on a published model with real files, and what the next pull makes of it.

A published model is read-only; whoever damages one here is root, a bad disk or a careless admin.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import (
    durable,
    hashing,
    model_record,
    snapshot,
    verification,
)
from fleet_host.errors import HostError, SpecError
from fleet_host.status import Progress

from tests.fakes.model_hub import FIRST, SECOND, safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.pull_world import PullWorld

NAME = "Qwen--Tiny/master"


def verify(*, deep: bool = False, **spec: Any) -> dict[str, Any]:
    return verification.run({"deep": deep, **spec}, Progress(None))


def found_wrong(*, deep: bool = False) -> HostError:
    with pytest.raises(HostError) as caught:
        verify(deep=deep)
    return caught.value


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read from now on."""
    names: list[str] = []
    real = hashing.sha256_of

    def noting(path: Path, *args: Any, **options: Any) -> str:
        names.append(path.name)
        return real(path, *args, **options)

    monkeypatch.setattr(hashing, "sha256_of", noting)
    return names


def flip(path: Path) -> None:
    """One bit, with the mtime that it had."""
    before = path.stat()
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    path.chmod(0o444)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def truncate(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 1)


def replace(path: Path) -> None:
    """Another inode with the same content, as a restore from a backup makes it."""
    before = path.stat()
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)


def writable(world: PullWorld, revision: str = "master") -> Path:
    final = world.final.with_name(revision)
    final.chmod(0o755)
    return final


def seen(world: PullWorld) -> Any:
    return snapshot.model_state(str(world.final))


def test_an_unchanged_model_costs_no_byte(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pull()
    record = model_record.record_path(world.final).read_bytes()
    names = hashed(monkeypatch)
    (model,) = verify()["models"]
    assert (model["name"], model["files"], model["hashed"]) == (NAME, 6, 0)
    assert names == []
    assert model_record.record_path(world.final).read_bytes() == record
    assert seen(world)["intact"]


def test_deep_reads_every_byte(world: PullWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.pull()
    names = hashed(monkeypatch)
    (model,) = verify(deep=True)["models"]
    assert sorted(names) == sorted(path.split("/")[-1] for path in world.hub.files)
    assert model["hashed"] == 6


def test_the_largest_file_is_begun_first(world: PullWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.pull()
    monkeypatch.setattr(hashing, "thread_count", lambda: 1)
    names = hashed(monkeypatch)
    verify(deep=True)
    assert names[:2] == [FIRST, SECOND]


@pytest.mark.parametrize("harm", [flip, truncate])
def test_damage_after_publication_is_named_marked_and_repaired_alone(
    world: PullWorld, harm: Any
) -> None:
    world.pull()
    harm(writable(world) / SECOND)
    kept = (world.final / FIRST).stat()
    assert not seen(world)["intact"]
    error = found_wrong()
    assert SECOND in error.why
    assert FIRST not in "\n".join(error.detail)
    (model,) = error.result["models"]
    assert [bad["path"] for bad in model["damaged"]] == [SECOND]
    # Nothing was changed for an engine that may be running from it.
    assert (world.final / SECOND).exists()
    before = {path: world.hub.downloads(path) for path in world.hub.files}
    assert world.pull()["state"] == "mended"
    world.assert_whole()
    assert {path: world.hub.downloads(path) - count for path, count in before.items()} == {
        path: int(path == SECOND) for path in world.hub.files
    }
    after = (world.final / FIRST).stat()
    assert (after.st_ino, after.st_ctime_ns) == (kept.st_ino, kept.st_ctime_ns)
    assert seen(world)["intact"]
    assert verify(deep=True)["models"][0]["damaged"] == []


def test_a_bit_that_flips_without_a_trace_is_found_by_deep_alone(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pull()
    flip(writable(world) / FIRST)
    # As a failing disk does it: no inode knows. The record is made to say the present times.
    record = model_record.require_record(world.final)
    for row in record["files"]:
        now = (world.final / row["path"]).stat()
        row |= {"mtime_ns": now.st_mtime_ns, "ctime_ns": now.st_ctime_ns, "inode": now.st_ino}
    model_record.record_path(world.final).write_text(json.dumps(record))
    assert verify()["models"][0]["damaged"] == []
    assert seen(world)["intact"]
    error = found_wrong(deep=True)
    assert f"{FIRST} has SHA-256" in error.why
    # The next deploy sees it without hashing, and so does the next quick verification.
    assert not seen(world)["intact"]
    assert FIRST in found_wrong().why
    assert world.pull()["state"] == "mended"
    world.assert_whole()
    assert model_record.require_record(world.final)["mended"]["files"] == [FIRST]


@pytest.mark.parametrize("touch", [replace, lambda path: os.utime(path, ns=(1, 1))])
def test_what_was_touched_and_is_good_is_hashed_once(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch, touch: Any
) -> None:
    world.pull()
    touch(writable(world) / SECOND)
    world.final.chmod(0o555)
    names = hashed(monkeypatch)
    assert verify()["models"][0]["hashed"] == 1
    assert verify()["models"][0]["hashed"] == 0
    assert names == [SECOND]
    assert seen(world)["intact"]
    assert world.pull()["state"] == "present"


def test_a_file_too_much_is_seen_by_the_deploy_and_moved_away(world: PullWorld) -> None:
    """Seen without hashing, so that a pull is planned; that moves it, and nothing is restarted."""
    world.pull()
    (writable(world) / "notes.txt").write_text("an operator's")
    world.final.chmod(0o555)
    assert "notes.txt does not belong" in found_wrong().why
    assert seen(world)["problems"] == ["notes.txt: does not belong to the model"]
    assert world.pull()["state"] == "verified"
    world.assert_whole()
    assert seen(world)["intact"]
    assert model_record.require_record(world.final)["mended"] is None
    (moved,) = world.staging.with_name("master-aside").iterdir()
    assert moved.read_text() == "an operator's"
    assert world.pull()["state"] == "present"


def test_a_record_from_before_ctimes_were_kept_is_believed(world: PullWorld) -> None:
    world.pull()
    record = model_record.require_record(world.final)
    for row in record["files"]:
        del row["ctime_ns"]
    model_record.record_path(world.final).write_text(json.dumps(record))
    assert verify()["models"][0]["hashed"] == 0
    verify(deep=True)
    assert all("ctime_ns" in row for row in model_record.require_record(world.final)["files"])


def test_extra_and_stale_files_are_named_and_moved_away_by_the_pull(world: PullWorld) -> None:
    world.pull()
    (writable(world) / "model-00003-of-00003.safetensors").write_bytes(b"of another revision")
    (world.final / "notes").mkdir()
    (world.final / "notes" / "mine.txt").write_text("x")
    error = found_wrong()
    assert error.result["models"][0]["extra"] == ["model-00003-of-00003.safetensors", "notes"]
    assert "0 files are damaged and 2 do not belong" in error.why
    assert (world.final / "notes").exists()
    world.pull()
    world.assert_whole()
    aside = world.staging.parent / "master-aside"
    assert sorted(path.name.split("-", 1)[1] for path in aside.iterdir()) == [
        "model-00003-of-00003.safetensors",
        "notes",
    ]


def test_a_missing_file_is_damage(world: PullWorld) -> None:
    world.pull()
    (writable(world) / SECOND).unlink()
    assert f"{SECOND} is missing" in found_wrong().why


def test_a_link_in_the_place_of_a_file_is_damage(world: PullWorld) -> None:
    world.pull()
    (writable(world) / SECOND).rename(world.target / "elsewhere")
    (world.final / SECOND).symlink_to(world.target / "elsewhere")
    assert SECOND in found_wrong().why


def test_shards_that_are_not_what_the_index_says_are_never_published(world: PullWorld) -> None:
    world.hub.files[SECOND] = safetensors(b"\2" * 200_000, "of another model")
    with pytest.raises(HostError, match="broken where it comes from") as caught:
        world.pull()
    assert SECOND in caught.value.why
    assert not world.final.exists()


def test_a_model_from_before_indexes_were_read_is_found_broken_by_deep(world: PullWorld) -> None:
    world.pull()
    content = safetensors(b"\2" * 200_000, "of another model")
    victim = writable(world) / SECOND
    victim.chmod(0o644)
    victim.write_bytes(content)
    record = model_record.require_record(world.final)
    row = next(row for row in record["files"] if row["path"] == SECOND)
    now = victim.stat()
    row |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    row |= {"mtime_ns": now.st_mtime_ns, "ctime_ns": now.st_ctime_ns, "inode": now.st_ino}
    model_record.record_path(world.final).write_text(json.dumps(record))
    error = found_wrong(deep=True)
    assert "lacks 'b'" in error.why
    assert "another revision" in error.fix


def test_a_verification_that_is_killed_has_changed_nothing(world: PullWorld) -> None:
    world.pull()
    replace(writable(world) / SECOND)
    record = model_record.record_path(world.final).read_bytes()
    before = {path: path.stat().st_ctime_ns for path in world.final.rglob("*")}
    child = os.fork()
    if child == 0:
        real = hashing.sha256_of

        def slow(path: Path, *args: Any, **options: Any) -> str:
            (world.target / "begun").touch()
            time.sleep(30)
            return real(path, *args, **options)

        hashing.sha256_of = slow
        try:
            verify(deep=True)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 10
    while not (world.target / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (world.target / "begun").exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert model_record.record_path(world.final).read_bytes() == record
    assert {path: path.stat().st_ctime_ns for path in world.final.rglob("*")} == before
    assert verify()["models"][0]["hashed"] == 1


@pytest.mark.parametrize("names", [["../x"], ["a/b/c"], [3], "a/b/c", ["one"]])
def test_names_that_are_none_are_refused(world: PullWorld, names: Any) -> None:
    with pytest.raises(SpecError):
        verify(models=names)


def test_a_model_that_is_not_there_is_said(world: PullWorld) -> None:
    with pytest.raises(HostError, match="is not a published model"):
        verify(models=["Qwen--Other/master"])


@pytest.mark.parametrize("harm", ["record", "directory"])
def test_a_model_that_cannot_be_verified_hides_no_other(world: PullWorld, harm: str) -> None:
    world.pull()
    world.pull(revision="v1.0")
    if harm == "record":
        model_record.record_path(world.final).write_text("{")
    else:
        durable.remove_tree(world.final)
    flip(writable(world, "v1.0") / SECOND)
    error = found_wrong()
    bad, other = error.result["models"]
    assert (bad["name"], other["name"]) == (NAME, "Qwen--Tiny/v1.0")
    assert [row["path"] for row in other["damaged"]] == [SECOND]
    (told,) = bad["broken"]
    assert ("is not valid JSON" if harm == "record" else "does not exist") in told["problem"]
    assert any(line.startswith(f"{NAME}: ") for line in error.detail)
    assert any(line.startswith(f"Qwen--Tiny/v1.0: {SECOND}") for line in error.detail)
    # With nothing else wrong, what to do is what helps here.
    durable.remove_tree(world.target / "Qwen--Tiny" / "v1.0")
    model_record.record_path(world.target / "Qwen--Tiny" / "v1.0").unlink()
    assert "deploy" in found_wrong().fix
    assert "its source" not in found_wrong().fix
