"""What a pull does to a published model that is not what it was: damaged, touched, unrecorded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import model_record, staging, verification
from fleet_host.errors import HostError

from tests.fakes.model_hub import FIRST, SECOND
from tests.integration.host.test_verification import flip, hashed, truncate

if TYPE_CHECKING:
    from pathlib import Path

    from fleet_host.listing import FileEntry

    from tests.fakes.pull_world import PullWorld


def touched(world: PullWorld) -> list[FileEntry]:
    return model_record.touched_entries(world.final, model_record.require_record(world.final))


def test_bit_rot_is_mended_by_pulling_only_the_damaged_file(world: PullWorld) -> None:
    world.pull()
    victim = world.final / SECOND
    kept = (world.final / FIRST).stat().st_ino
    victim.chmod(0o644)
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    world.final.chmod(0o755)  # read-only; for root alone it does not matter
    stray = world.final / "notes.txt"
    stray.write_text("an operator's")
    before = world.hub.downloads(FIRST)
    assert world.pull()["state"] == "mended"
    world.assert_whole()
    assert world.hub.downloads(FIRST) == before
    assert (world.final / FIRST).stat().st_ino == kept
    assert verification.verify_command({"path": str(world.final), "deep": True})["ok"]
    (aside,) = (world.staging.parent / "master-aside").iterdir()
    assert aside.read_text() == "an operator's"


def test_a_pull_that_is_killed_in_the_middle_of_mending_leaves_nothing_writable(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.pull()
    world.final.chmod(0o755)
    (world.final / "notes.txt").write_text("an operator's")
    real = staging.move_aside

    def killed(*arguments: Any) -> list[str]:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(staging, "move_aside", killed)
    with pytest.raises(KeyboardInterrupt):
        world.pull()
    assert world.pull()["state"] == "present"
    directories = [world.final, *(path for path in world.final.rglob("*") if path.is_dir())]
    assert len(directories) > 1
    assert {path.stat().st_mode & 0o777 for path in directories} == {0o555}


@pytest.mark.parametrize("damage", [False, True])
def test_what_is_written_between_the_last_look_and_the_record_is_seen(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch, damage: bool
) -> None:
    """Through a descriptor that was open before the file became read-only."""
    if damage:
        world.pull()
        truncate(world.final / SECOND)
    real, calls = staging.make_read_only, []

    def and_a_write(directory: Path) -> None:
        with (directory / SECOND).open("r+b") as file:
            real(directory)
            calls.append(directory)
            if not damage or len(calls) == 2:  # the first was of the files that are good
                file.write(b"X")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "make_read_only", and_a_write)
        with pytest.raises(HostError, match="changed after it was verified"):
            world.pull()
    assert world.final.exists() == damage
    assert world.pull()["state"] == ("mended" if damage else "pulled")
    world.assert_whole()


def test_a_touched_but_good_file_only_renews_the_record(world: PullWorld) -> None:
    world.pull()
    os.utime(world.final / FIRST, ns=(1, 1))
    assert [it.path for it in touched(world)] == [FIRST]
    asked = len(world.hub.requests)
    assert world.pull()["state"] == "verified"
    assert len(world.hub.requests) == asked
    assert touched(world) == []


def test_damage_is_named_when_the_hub_no_longer_has_the_file(world: PullWorld) -> None:
    world.pull()
    (world.final / SECOND).chmod(0o644)
    (world.final / SECOND).write_bytes(b"short")
    world.hub.files[SECOND] = world.hub.files[FIRST]
    with pytest.raises(HostError) as caught:
        world.pull()
    assert "damaged and could not be mended" in caught.value.what
    assert any(line.startswith(SECOND) for line in caught.value.detail)


def test_a_kill_between_publication_and_record_costs_no_second_hashing(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model_record, "write_record", killed)
        with pytest.raises(KeyboardInterrupt):
            world.pull()
    assert world.final.is_dir()
    names = hashed(monkeypatch)
    flip(world.final / SECOND)
    assert world.pull()["state"] == "mended"
    # The one that was touched since, as it is, and as it was brought anew.
    assert names == [SECOND, SECOND]
    world.assert_whole()


def test_a_directory_without_record_is_verified_in_place(world: PullWorld) -> None:
    world.pull()
    (world.final.parent / "master.json").unlink()
    before = world.hub.downloads(FIRST)
    assert world.pull()["state"] == "verified"
    assert world.hub.downloads(FIRST) == before
    assert verification.verify_command({"path": str(world.final), "deep": True})["ok"]
