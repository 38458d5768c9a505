"""What a go-live goes back to when a hand has changed `current`, or the release behind it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import engine, golive, ground, release, snapshot
from fleet_host.errors import HostError
from fleet_host.status import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.engine_host import FakeHost


@pytest.fixture(autouse=True)
def _no_engine_stays(host: FakeHost) -> Iterator[None]:
    yield
    pid = (host.unit / "pid").read_text().strip() if (host.unit / "pid").exists() else ""
    if pid:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            return


class Said(Progress):
    """A progress that keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(None)
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


def point(host: FakeHost, name: str, target: str) -> None:
    path = host.home / name
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def live(host: FakeHost) -> None:
    """r2 serves, r1 before it; r3 dies."""
    for identity in ("r1", "r2"):
        release.stage(host.release_request(identity))
        golive.run(host.golive_spec(identity), Progress(None))
    release.stage(host.release_request("r3", behave="die"))


def fails(host: FakeHost, **more: Any) -> tuple[HostError, str]:
    said = Said()
    with pytest.raises(HostError) as caught:
        golive.run(host.golive_spec("r3", **more), said)
    return caught.value, "\n".join(said.lines)


def started(host: FakeHost) -> str:
    return str(json.loads((host.run / "started.json").read_text())["release"])


@pytest.mark.parametrize("target", ["/etc", "releases/gone", "../main/releases/gone", "releases"])
def test_what_runs_is_gone_back_to_where_current_names_no_release(
    host: FakeHost, target: str
) -> None:
    live(host)
    point(host, "current", target)
    error, said = fails(host)
    assert "release r2 serves again" in error.what
    assert f"current points at {target}" in said
    assert "r2, which runs" in said
    assert (host.linked("current"), host.linked("previous")) == ("r2", "r1")
    assert started(host) == "r2"


def test_without_what_runs_it_is_the_one_before(host: FakeHost) -> None:
    live(host)
    point(host, "current", "/etc")
    (host.run / "started.json").unlink()
    error, said = fails(host)
    assert "release r1 serves again" in error.what
    assert "r1, the one before it" in said
    assert (host.linked("current"), host.linked("previous")) == ("r1", None)


def test_with_nothing_on_disk_there_is_nothing_to_go_back_to(host: FakeHost) -> None:
    live(host)
    for identity in ("r1", "r2"):
        shutil.rmtree(host.home / "releases" / identity)
    error, said = fails(host)
    assert "is stopped" in error.what
    assert "to go back to: nothing" in said
    assert "previous names r1" in said
    assert host.linked("current") is None


def test_a_release_without_its_description_is_none(host: FakeHost) -> None:
    live(host)
    (host.home / "releases/r2/release.json").write_text('{"id": "r')
    assert not engine.on_disk("main", "r2")
    error, _ = fails(host)
    assert "release r1 serves again" in error.what


def test_a_good_release_takes_over_and_no_link_names_another_place(host: FakeHost) -> None:
    live(host)
    point(host, "current", "/etc")
    point(host, "previous", "/usr")
    release.stage(host.release_request("r4"))
    assert golive.run(host.golive_spec("r4"), Progress(None))["from"] == "r2"
    assert (host.linked("current"), host.linked("previous")) == ("r4", "r2")


def test_an_interrupted_go_live_goes_back_to_what_is_there(host: FakeHost) -> None:
    live(host)
    record = {"phase": "starting", "from": "etc", "to": "r2", "previous": "r1"}
    (host.home / "golive.json").write_text(json.dumps(record))
    found = ground.read_ground("main", Progress(None))
    assert found == ground.Ground("r1", None, interrupted=True)


def test_a_first_go_live_that_was_interrupted_has_nothing_behind_it(host: FakeHost) -> None:
    live(host)
    record = {"phase": "starting", "from": None, "to": "r2", "previous": None}
    (host.home / "golive.json").write_text(json.dumps(record))
    assert ground.read_ground("main", Progress(None)) == ground.Ground(None, None, True)


def test_links_elsewhere_are_no_release(host: FakeHost) -> None:
    live(host)
    point(host, "current", str(host.home / "releases/r1"))
    assert engine.linked("main", "current") == "r1"
    point(host, "current", "/etc")
    assert engine.linked("main", "current") is None
    assert snapshot.engine_state(str(host.llm_root), "main")["current"] == "/etc"
    with pytest.raises(HostError, match="no release to run") as caught:
        engine.started({"engine": "main"})
    assert "it points at /etc" in caught.value.why
