"""kill -9 of a go-live at random moments, and of the one that mends it; the next one ends well."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from fleet_host import engine, golive, release
from fleet_host.status import Progress

from tests.integration.host.test_golive import RUN_GOLIVE
from tests.moments import KILLS, moment

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost

UNIT = "llm-engine@main.service"


def kill_after(host: FakeHost, identity: str, seconds: float) -> None:
    """In a process of its own, as its unit runs it; systemd goes on with what it was told."""
    child = subprocess.Popen(
        [sys.executable, "-c", RUN_GOLIVE], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(host.golive_spec(identity)).encode())
    child.stdin.close()
    time.sleep(seconds)
    child.kill()
    child.wait()


@pytest.mark.parametrize("number", range(KILLS))
def test_a_go_live_that_is_killed_anywhere_is_mended(host: FakeHost, number: int) -> None:
    """An upgrade; every second time the run that mends it is killed too."""
    release.stage(host.release_request("r1"))
    release.stage(host.release_request("r2", load_seconds=0.3))
    golive.run(host.golive_spec("r1"), Progress(None))
    for attempt in range(1 + number % 2):
        # Its Python is there after a tenth of a second, and it is done after one and a half.
        kill_after(host, "r2", moment(2 * number + attempt, 0.05, 1.5))
        assert host.linked("current") in ("r1", "r2")
        assert engine.on_disk("main", "r1")
        assert engine.on_disk("main", "r2")
    golive.run(host.golive_spec("r2"), Progress(None))
    assert (host.linked("current"), host.linked("previous")) == ("r2", "r1")
    assert json.loads((host.run / "started.json").read_text())["release"] == "r2"
    assert host.golive_record()["phase"] == "done"
    assert engine.unit_state(UNIT)["ActiveState"] == "active"
    assert not host.flag.exists()
    assert golive.run(host.golive_spec("r2"), Progress(None))["changed"] is False
