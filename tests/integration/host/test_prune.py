"""Pruning: by count, from the release files, and never what is in use."""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import durable, environment, events, prune
from fleet_host.environment_spec import COMPLETE

if TYPE_CHECKING:
    from pathlib import Path


class Host:
    """A host's engines and runtimes, made by hand; time goes on by a minute with each."""

    def __init__(self, root: Path) -> None:
        self.root = root / "llm"
        self.run = root / "run"
        self.now = 1_700_000_000
        (self.root / "runtimes").mkdir(parents=True)
        (self.root / "state").mkdir()

    def runtime(self, name: str, *, complete: bool = True) -> Path:
        path = self.root / "runtimes" / name
        path.mkdir()
        (path / "big").write_bytes(b"x" * 10_000)
        if complete:
            (path / COMPLETE).write_text(json.dumps({"size_bytes": 10_000, "seconds": 2.5}))
            self._age(path / COMPLETE)
        return path

    def release(self, name: str, runtime: str, engine: str = "main") -> None:
        path = self.root / "engines" / engine / "releases" / name
        path.mkdir(parents=True)
        (path / "release.json").write_text("{}")
        (path / "runtime").symlink_to(self.root / "runtimes" / runtime)
        model = self.root / "models/owner--name/master"
        (path / "model").symlink_to(model)
        self._age(path / "release.json")

    def _age(self, path: Path) -> None:
        self.now += 60
        os.utime(path, (self.now, self.now))

    def link(self, link: str, release: str, engine: str = "main") -> None:
        (self.root / "engines" / engine / link).symlink_to(f"releases/{release}")

    def releases(self, engine: str = "main") -> list[str]:
        return sorted(path.name for path in (self.root / "engines" / engine / "releases").iterdir())

    def runtimes(self) -> list[str]:
        return sorted(
            path.name
            for path in (self.root / "runtimes").iterdir()
            if not path.name.startswith(".")
        )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setenv("FLEET_LLM_ROOT", str(made.root))
    monkeypatch.setenv("FLEET_RUN_ROOT", str(made.run))
    return made


def pruned(releases: int = 2, runtimes: int = 1, **more: Any) -> dict[str, Any]:
    return prune.run({"keep_releases": releases, "keep_runtimes": runtimes, **more})


def five(host: Host) -> None:
    for number in range(1, 6):
        host.runtime(f"vllm-{number}")
        host.release(f"r{number}", f"vllm-{number}")


def test_the_oldest_go_and_what_is_in_use_stays(host: Host) -> None:
    five(host)
    host.link("current", "r1")
    host.link("previous", "r3")
    answer = pruned(releases=3)
    assert answer["releases"] == ["main/r2", "main/r4"]
    assert host.releases() == ["r1", "r3", "r5"]
    assert answer["runtimes"] == ["vllm-2", "vllm-4"]
    assert host.runtimes() == ["vllm-1", "vllm-3", "vllm-5"]
    assert pruned(releases=3)["changed"] is False


def test_two_releases_stay_however_few_are_asked_for(host: Host) -> None:
    five(host)
    host.link("current", "r2")
    host.link("previous", "r1")
    pruned(releases=0, runtimes=0)
    assert host.releases() == ["r1", "r2"]
    assert host.runtimes() == ["vllm-1", "vllm-2"]


@pytest.mark.parametrize("phase", ["draining", "switching", "starting", "reverting"])
def test_a_pending_go_live_holds_all_it_names(host: Host, phase: str) -> None:
    five(host)
    host.link("current", "r5")
    document = {"phase": phase, "from": "r2", "to": "r3", "previous": "r1"}
    (host.root / "engines/main/golive.json").write_text(json.dumps(document))
    pruned()
    assert host.releases() == ["r1", "r2", "r3", "r5"]


def test_a_finished_go_live_holds_nothing(host: Host) -> None:
    five(host)
    host.link("current", "r5")
    host.link("previous", "r4")
    document = {"phase": "done", "from": "r2", "to": "r3", "previous": "r1"}
    (host.root / "engines/main/golive.json").write_text(json.dumps(document))
    pruned()
    assert host.releases() == ["r4", "r5"]


def test_what_runs_stays_whatever_the_links_say(host: Host) -> None:
    five(host)
    host.link("current", "r5")
    (host.run / "llm-engine-main").mkdir(parents=True)
    (host.run / "llm-engine-main/started.json").write_text(json.dumps({"release": "r1"}))
    pruned()
    assert host.releases() == ["r1", "r5"]
    assert "vllm-1" in host.runtimes()


def test_a_runtime_that_another_engine_uses_stays(host: Host) -> None:
    five(host)
    host.link("current", "r5")
    host.link("previous", "r4")
    host.release("other", "vllm-1", engine="second")
    host.link("current", "other", engine="second")
    pruned()
    assert host.runtimes() == ["vllm-1", "vllm-4", "vllm-5"]


def test_the_newest_unused_runtime_stays_for_the_release_that_is_to_come(host: Host) -> None:
    for name in ("old", "mid", "new"):
        host.runtime(name)
    host.release("r1", "old")
    host.link("current", "r1")
    assert pruned(runtimes=2)["runtimes"] == ["mid"]
    assert host.runtimes() == ["new", "old"]


def test_what_was_never_completed_goes_unless_it_is_being_built(host: Host) -> None:
    host.runtime("broken", complete=False)
    building = host.runtime("building", complete=False)
    with environment.held(building):
        # The lock is of the open file: another one sees it held, in this process too.
        assert pruned(runtimes=5)["runtimes"] == ["broken"]
    assert host.runtimes() == ["building"]
    assert pruned(runtimes=5)["runtimes"] == ["building"]


def test_the_installers_cache_goes_with_a_runtime_but_not_while_one_is_built(host: Host) -> None:
    cache = host.root / "runtimes/.uv-cache"
    for count in (1, 2):
        path = host.runtime(f"old{count}")
        cache.mkdir(exist_ok=True)
        os.link(path / "big", cache / f"big{count}")
    busy = os.open(host.root / "runtimes/.new.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(busy, fcntl.LOCK_EX)
    assert pruned(runtimes=1)["runtimes"] == ["old1"]
    assert cache.exists()
    os.close(busy)
    assert pruned(runtimes=0)["runtimes"] == ["old2"]
    assert not cache.exists()


def test_no_link_of_the_build_user_is_followed(host: Host, tmp_path: Path) -> None:
    """The directory of runtimes is another user's, and this runs as root."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    host.runtime("old")
    (host.root / "runtimes/.old.lock").symlink_to(outside)
    (host.root / "runtimes/link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="symbolic links"):
        pruned(runtimes=0)
    assert outside.read_text() == "mine"
    assert host.runtimes() == ["link", "old"]


def test_a_kill_in_the_middle_is_mended_by_the_next(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    five(host)
    host.link("current", "r5")
    host.link("previous", "r4")

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable, "remove_tree", killed)
    with pytest.raises(KeyboardInterrupt):
        pruned()
    monkeypatch.undo()
    monkeypatch.setenv("FLEET_LLM_ROOT", str(host.root))
    monkeypatch.setenv("FLEET_RUN_ROOT", str(host.run))
    assert ".r1.removing" in host.releases()
    pruned()
    assert host.releases() == ["r4", "r5"]
    assert host.runtimes() == ["vllm-4", "vllm-5"]


def test_dry_changes_nothing(host: Host) -> None:
    five(host)
    host.link("current", "r5")
    answer = pruned(dry=True)
    assert answer["releases"] == ["main/r1", "main/r2", "main/r3"]
    assert len(host.releases()) == 5
    assert len(host.runtimes()) == 5


def test_the_list_says_size_time_and_user(host: Host) -> None:
    five(host)
    host.link("current", "r5")
    host.runtime("broken", complete=False)
    (host.root / "models/owner--name").mkdir(parents=True)
    record = {"files": [{"path": "a", "size": 5}, {"path": "b", "size": 6}]}
    (host.root / "models/owner--name/master.json").write_text(json.dumps(record))
    for seconds in (9.0, 7.5):
        events.record("went live", engine="main", release="r5", seconds=seconds)
    with events.events_path().open("a") as torn:
        torn.write('{"what": "went live", "eng')
    answer = prune.listing({})
    rows = {row["name"]: row for row in answer["runtimes"]}
    assert (rows["vllm-5"]["size_bytes"], rows["vllm-5"]["seconds"]) == (10_000, 2.5)
    assert rows["vllm-5"]["used_by"] == ["main/r5"]
    assert rows["broken"]["state"] == "never completed"
    release = {row["name"]: row for row in answer["releases"]}["r5"]
    assert release["held"] == "current"
    assert release["model_bytes"] == 11
    assert release["live_seconds"] == 7.5
    assert release["model"] == "owner--name/master"
