"""What a pull does to a published model that is not what it was: damaged, touched, unrecorded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from fleet_host import model_record, verification
from fleet_host.errors import HostError

from tests.fakes.model_hub import FIRST, SECOND

if TYPE_CHECKING:
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


def test_a_directory_without_record_is_verified_in_place(world: PullWorld) -> None:
    world.pull()
    (world.final.parent / "master.json").unlink()
    before = world.hub.downloads(FIRST)
    assert world.pull()["state"] == "verified"
    assert world.hub.downloads(FIRST) == before
    assert verification.verify_command({"path": str(world.final), "deep": True})["ok"]
