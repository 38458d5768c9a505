"""Power cuts: the pull dies at every single step that changes the disk, and is run again.

The process forks, and the child kills itself with SIGKILL at its n-th call that syncs, renames,
removes or changes a mode. Whatever n is, no half model is visible, and the next run mends it all.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import durable, locking, model_record, models, pull, verification
from fleet_host.status import Progress

from tests.fakes.model_hub import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.pull_world import PullWorld

# FLEET_KILL_STRIDE=1 tries every step, which takes some 20 seconds.
STRIDE = int(os.environ.get("FLEET_KILL_STRIDE", "3"))
STEPS = ("fsync", "replace", "rename", "mkdir", "unlink", "chmod", "fchmod")


def dies_at(world: PullWorld, step: int) -> bool:
    """Run the pull in a child that dies before its n-th step; False when it ended by itself."""
    child = os.fork()
    if child == 0:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - this process is about to die
        count = 0

        def fatal(call: Any) -> Any:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return wrapped

        for name in STEPS:
            setattr(os, name, fatal(getattr(os, name)))
        try:
            pull.run(world.spec(), Progress(None))
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.fixture
def copying_client(world: PullWorld, tmp_path: Path) -> PullWorld:
    """A client that only copies: a sweep starts hundreds of them."""
    source = tmp_path / "source"
    for path, body in world.hub.files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(body)
    # Arguments: download --model M --revision R --local_dir DIR ...
    world.program.write_text(f'#!/bin/sh\ncp -rf {source}/. "$7/" && touch "$7/.msc"\n')
    return world


def sweep(world: PullWorld, prepare: Callable[[], object], visible: bool, stride: int) -> int:
    """Die at every stride-th step in turn; how many steps there are.

    visible: whether there was a model before, whose directory must then never go away.
    """
    step = 1
    while True:
        durable.remove_tree(world.target)
        world.target.mkdir()
        prepare()
        died = dies_at(world, step)
        if visible:
            assert world.final.is_dir()
        elif world.final.exists():
            world.assert_whole()
        world.pull()
        world.assert_whole()
        checked = verification.verify_command({"path": str(world.final), "deep": True})
        assert checked["ok"], (step, checked)
        assert not world.staging.exists()
        # An engine that has loaded the damaged file learns of it, whichever run replaced it.
        mended = model_record.require_record(world.final)["mended"]
        assert visible is (mended is not None), (step, mended)
        if not died:
            return step
        step += stride


def test_a_pull_that_dies_anywhere_is_mended_by_the_next(copying_client: PullWorld) -> None:
    steps = sweep(copying_client, lambda: None, visible=False, stride=STRIDE)
    assert steps > 40


def test_a_mending_that_dies_anywhere_is_mended_by_the_next(copying_client: PullWorld) -> None:
    world = copying_client

    def publish_with_damage() -> None:
        world.pull()
        (world.final / SECOND).chmod(0o644)
        (world.final / SECOND).write_bytes(b"\0" * len(world.hub.files[SECOND]))

    assert sweep(world, publish_with_damage, visible=True, stride=2 * STRIDE) > 20


def pulling_elsewhere(world: PullWorld) -> int:
    """The process of a pull that is in the middle of its download, and stays there."""
    world.client_does("hang", path=SECOND, times=1)
    child = os.fork()
    if child == 0:
        try:
            pull.run(world.spec(), Progress(None))
        finally:
            os._exit(1)
    marker = Path(f"{world.plan}.hangs")
    deadline = time.monotonic() + 30
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert marker.exists()
    return child


def test_another_process_is_kept_out_until_the_first_is_gone(world: PullWorld) -> None:
    child = pulling_elsewhere(world)
    try:
        before = sorted(path.name for path in (world.staging / "model").iterdir())
        with pytest.raises(locking.Busy, match="is being pulled already"):
            world.pull()
        with pytest.raises(locking.Busy, match="is being pulled or verified"):
            models.remove({"models": ["Qwen--Tiny/master"]})
        assert sorted(path.name for path in (world.staging / "model").iterdir()) == before
        assert len(world.starts()) == 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert world.pull()["state"] == "pulled"


def test_a_kill_in_the_middle_of_a_download_keeps_the_good_files(world: PullWorld) -> None:
    child = pulling_elsewhere(world)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not world.final.exists()
    fetched = {path: world.hub.downloads(path) for path in world.hub.files if path != SECOND}
    assert world.pull()["state"] == "pulled"
    world.assert_whole()
    assert {path: world.hub.downloads(path) for path in fetched} == {
        path: max(1, count) for path, count in fetched.items()
    }
