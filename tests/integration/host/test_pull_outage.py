"""What a pull says while it goes on, and how it outlasts a hub that does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import hub, outage, pull
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.fakes.model_hub import SECOND

if TYPE_CHECKING:
    from tests.fakes.pull_world import PullWorld


def refused(world: PullWorld, **changes: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        world.pull(**changes)
    assert not world.final.exists()
    return caught.value


def test_the_journal_names_each_file_that_has_arrived(
    world: PullWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world.pull()
    arrived = [
        line.split(": ")[1].split(",")[0]
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("arrived: ")
    ]
    assert sorted(arrived) == sorted(world.hub.files)


class WatchedProgress(Progress):
    """Remembers what the status said of files on their way."""

    def __init__(self) -> None:
        super().__init__(None)
        self.seen: list[dict[str, Any]] = []

    def advance(self, done: float, message: str | None = None) -> None:
        super().advance(done, message)
        self.seen += self.as_dict().get("files", [])


def test_the_files_on_their_way_are_in_the_status(world: PullWorld) -> None:
    world.client_does("hang", path=SECOND, times=1)
    progress = WatchedProgress()
    with pytest.raises(HostError):
        pull.run(world.spec(stall_timeout_seconds=6), progress)
    total = len(world.hub.files[SECOND])
    assert progress.seen[-1] == {"path": SECOND, "done": total // 2, "total": total}
    assert "files" not in progress.as_dict()


def test_an_outage_of_the_hub_is_outlasted(world: PullWorld) -> None:
    """Seven runs of the client in a row bring not a byte."""
    world.hub.client_statuses = [500] * 7
    assert world.pull()["state"] == "pulled"
    assert len(world.starts()) == 8


def test_a_hub_that_brings_nothing_for_too_long_is_given_up(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE_SECONDS", 0.2)
    world.hub.client_statuses = [500] * 99
    error = refused(world, stall_timeout_seconds=3)
    assert "No new byte came for" in error.why
    assert "model.stall_timeout_seconds is 3" in error.why
    assert 1 < len(world.starts()) < 20


@pytest.mark.parametrize(
    ("status", "words"), [(401, "model.token is not set"), (404, "model.revision")]
)
def test_a_refusal_of_the_hub_is_final_and_names_the_setting(
    world: PullWorld, status: int, words: str
) -> None:
    world.hub.client_statuses = [status] * 9
    error = refused(world)
    assert f"it answered {status}" in error.why
    assert words in error.why + error.fix
    assert len(world.starts()) == 1


def test_an_answer_larger_than_any_listing_is_refused(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LARGEST_ANSWER_BYTES", 300)
    error = refused(world)
    assert "answered with more than" in error.what
    assert world.starts() == []
