"""The lease, the event log, releases and vm.max_map_count."""

from __future__ import annotations

import json
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import binding, durable, events, kernel, lease, release, snapshot
from fleet_host.errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost


def asked(run: str, seen: int | None = 0, **more: Any) -> dict[str, Any]:
    return {
        "owner": "alice@desk",
        "machine": "desk:m1:b1",
        "run": run,
        "pid": 7,
        "pid_start": 99,
        "ttl_seconds": 900,
        "generation_seen": seen,
        **more,
    }


def refused(request: dict[str, Any]) -> HostError:
    with pytest.raises(HostError) as caught:
        lease.acquire(request)
    return caught.value


def test_a_second_run_is_refused_and_told_by_whom(host: FakeHost) -> None:
    assert lease.acquire(asked("r1"))["generation"] == 1
    error = refused(asked("r2", 1))
    assert "alice@desk" in error.why
    assert "process 7" in error.why
    assert lease.renew({"run": "r1", "ttl_seconds": 60})["lease"]["ttl_seconds"] == 60
    assert lease.release({"run": "r1"}) == {"released": True}
    assert lease.acquire(asked("r2", 1))["generation"] == 2


def test_a_plan_made_before_another_run_is_refused(host: FakeHost) -> None:
    lease.acquire(asked("r1"))
    lease.release({"run": "r1"})
    error = refused(asked("r2", 0))
    assert "changed since it was planned" in error.what
    assert lease.status({})["lease"] is None
    assert lease.acquire(asked("r2", None))["generation"] == 2


def test_the_same_run_asking_twice_keeps_its_lease(host: FakeHost) -> None:
    lease.acquire(asked("r1"))
    assert lease.acquire(asked("r1"))["generation"] == 1


def test_an_expired_lease_may_be_taken_and_its_run_finds_out(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease.acquire(asked("r1"))
    later = time.time() + 1000
    monkeypatch.setattr(lease.time, "time", lambda: later)  # type: ignore[attr-defined]
    assert lease.acquire(asked("r2", 1))["taken_over"] == "r1"
    with pytest.raises(HostError, match="no longer holds"):
        lease.renew({"run": "r1", "ttl_seconds": 60})
    assert lease.release({"run": "r1"}) == {"released": False}
    assert lease.status({})["lease"]["run"] == "r2"


def test_a_clock_set_back_does_not_make_a_lease_eternal(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease.acquire(asked("r1"))
    earlier = time.time() - 10 * 24 * 3600
    monkeypatch.setattr(lease.time, "time", lambda: earlier)  # type: ignore[attr-defined]
    assert lease.acquire(asked("r2", 1))["taken_over"] == "r1"


def test_a_dead_run_of_the_same_machine_is_taken_over(host: FakeHost) -> None:
    lease.acquire(asked("r1"))
    assert "only that machine" in refused(asked("r2", 1, steal_run="r1", machine="other:m2:b1")).why
    refused(asked("r2", 1, steal_run="another"))
    taken = lease.acquire(asked("r2", 1, steal_run="r1", machine="desk:m1:b2"))
    assert taken["taken_over"] == "r1"
    assert events.tail({})["events"][-1]["what"] == "lease taken over"


def _try_to_acquire(run: str) -> str:
    try:
        lease.acquire(asked(run, 0))
    except HostError as error:
        return error.what
    return "got it"


def test_of_many_at_once_exactly_one_gets_it(host: FakeHost) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.map(_try_to_acquire, [f"r{number}" for number in range(12)])
    assert results.count("got it") == 1


def test_events_are_chained_and_a_change_is_found(host: FakeHost) -> None:
    for number in range(3):
        events.record("something", "alice", number=number)
    assert events.verify({})["events"] == 3
    path = events.events_path()
    path.write_bytes(path.read_bytes().replace(b'"number": 1', b'"number": 7'))
    with pytest.raises(HostError, match="line 3"):
        events.verify({})


def test_a_line_cut_off_by_a_power_cut_is_dropped(host: FakeHost) -> None:
    events.record("first", "alice")
    path = events.events_path()
    with path.open("ab") as handle:
        handle.write(b'{"when": "2026-')
    events.record("second", "alice")
    assert events.verify({})["events"] == 2
    assert [event["what"] for event in events.tail({"lines": 5})["events"]] == ["first", "second"]


def test_an_event_names_who_holds_the_lease(host: FakeHost) -> None:
    lease.acquire(asked("r1"))
    assert events.record("x")["who"] == "alice@desk"


def test_staging_twice_changes_nothing_and_other_content_is_refused(host: FakeHost) -> None:
    request = host.release_request("r1")
    assert release.stage(request)["changed"] is True
    assert release.stage(request)["changed"] is False
    with pytest.raises(HostError, match="exists with other content") as caught:
        release.stage({**request, "config_yaml": "other: 1\n"})
    assert "config.yaml differ(s)" in caught.value.why
    directory = host.home / "releases/r1"
    assert (directory / "runtime/.fleet-complete.json").is_file()
    assert (directory / "model/weights").read_text() == "12"
    assert json.loads((directory / "release.json").read_text())["id"] == "r1"


def test_a_killed_staging_is_no_release_and_is_begun_anew(host: FakeHost) -> None:
    left = host.home / "releases/.r1.staging"
    left.mkdir(parents=True)
    (left / "config.yaml").write_text("half")
    assert release.stage(host.release_request("r1"))["changed"] is True
    assert not left.exists()


def test_a_release_of_half_a_runtime_or_model_is_refused(host: FakeHost) -> None:
    request = host.release_request("r1")
    (host.llm_root / "models/o--m/master/weights").unlink()
    with pytest.raises(HostError, match="cannot run here") as caught:
        release.stage(request)
    assert caught.value.detail == ["weights: No such file or directory"]
    (host.llm_root / "runtimes/vllm/.fleet-complete.json").unlink()
    with pytest.raises(HostError, match="cannot run here") as caught:
        release.stage(request)
    assert "the runtime" in caught.value.why


@pytest.mark.parametrize("identity", ["../x", "", ".hidden", "a/b", "a b"])
def test_an_id_cannot_leave_its_directory(host: FakeHost, identity: str) -> None:
    with pytest.raises(SpecError):
        release.stage({**host.release_request("r1"), "id": identity})


def test_a_runtime_elsewhere_is_refused(host: FakeHost) -> None:
    request = host.release_request("r1")
    request["release"]["runtime"] = "/opt/venv"
    with pytest.raises(HostError, match="not a place"):
        release.stage(request)


def test_a_binding_is_written_once(host: FakeHost) -> None:
    release.stage(host.release_request("r1"))
    request = host.bind("r1", 'A="1"\n')
    assert binding.bind(request)["changed"] is True
    assert binding.bind(request)["changed"] is False
    with pytest.raises(HostError, match="release r2 of engine main is not on this host"):
        binding.bind({**request, "id": "r2"})


class Sysctl:
    """vm.max_map_count in stand-in files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.etc, self.usr, self.live = root / "etc/sysctl.d", root / "usr", root / "live"
        monkeypatch.setattr(snapshot, "SYSCTL_DIRECTORIES", (str(self.etc), str(self.usr)))
        monkeypatch.setattr(kernel, "DIRECTORY", self.etc)
        monkeypatch.setattr(kernel, "LIVE", self.live)
        self.etc.mkdir(parents=True, exist_ok=True)
        self.usr.mkdir()
        self.live.write_text("65530\n")

    def ours(self) -> list[str]:
        return sorted(path.name for path in self.etc.iterdir() if "llm" in path.name)


@pytest.fixture
def sysctl(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Sysctl:
    return Sysctl(host.root, monkeypatch)


def raised(minimum: int = 262144) -> dict[str, Any]:
    return kernel.raise_map_count({"minimum": minimum})


def test_the_kernel_s_default_is_raised_live_and_for_the_next_boot(sysctl: Sysctl) -> None:
    result = raised()
    assert (result["changed"], result["live"], result["at_boot"]) == (True, 262144, 262144)
    assert sysctl.ours() == ["60-llm-map-count.conf"]
    assert raised()["changed"] is False


def test_a_higher_value_of_somebody_else_is_never_lowered(sysctl: Sysctl) -> None:
    (sysctl.usr / "10-map-count.conf").write_text("vm.max_map_count=1048576\n")
    sysctl.live.write_text("1048576\n")
    assert raised() == {
        "changed": False, "live": 1048576, "at_boot": 1048576, "file": None, "notes": [],
    }  # fmt: skip
    assert sysctl.ours() == []


def test_a_high_live_value_stays_while_the_boot_value_is_raised(sysctl: Sysctl) -> None:
    sysctl.live.write_text("2000000\n")
    result = raised()
    assert (result["live"], result["at_boot"]) == (2000000, 262144)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("50-elastic.conf", "60-llm-map-count.conf"),
        ("99-sysctl.conf", "99-zz-llm-map-count.conf"),
        ("zebra.conf", "zz-llm-map-count.conf"),
    ],
)
def test_a_lower_value_that_is_read_later_is_outranked(
    sysctl: Sysctl, theirs: str, ours: str
) -> None:
    (sysctl.etc / theirs).write_text("vm.max_map_count = 100000\n")
    assert raised()["at_boot"] == 262144
    assert sysctl.ours() == [ours]
    assert theirs in (sysctl.etc / ours).read_text()


def test_our_file_moves_when_somebody_adds_a_lower_one_after_it(sysctl: Sysctl) -> None:
    raised()
    (sysctl.etc / "70-new.conf").write_text("vm.max_map_count = 100000\n")
    assert raised()["changed"] is True
    assert sysctl.ours() == ["99-zz-llm-map-count.conf"]
    assert kernel.boot_value(kernel.assignments()) == 262144


def test_our_file_goes_where_it_would_lower_a_newer_higher_one(sysctl: Sysctl) -> None:
    raised()
    (sysctl.etc / "50-new.conf").write_text("vm.max_map_count = 1048576\n")
    result = raised()
    assert (result["at_boot"], result["file"]) == (1048576, None)
    assert sysctl.ours() == []


def test_a_name_that_nothing_can_follow_is_told(sysctl: Sysctl) -> None:
    (sysctl.etc / "zzzzz.conf").write_text("vm.max_map_count = 1\n")
    with pytest.raises(HostError, match="cannot be raised for good") as caught:
        raised()
    assert "zzzzz.conf" in caught.value.why


def test_sysctl_conf_that_the_boot_does_not_read_is_noted(sysctl: Sysctl) -> None:
    (sysctl.etc.parent / "sysctl.conf").write_text("vm.max_map_count=65530\n")
    result = raised()
    assert result["at_boot"] == 262144
    assert "sysctl --system" in result["notes"][0]


def test_a_read_only_live_value_is_told_with_its_cure(
    sysctl: Sysctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_arguments: Any) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(kernel.os, "open", read_only)  # type: ignore[attr-defined]
    monkeypatch.setattr(durable, "write_file", lambda *_a, **_k: None)
    with pytest.raises(HostError, match="cannot be set to") as caught:
        raised()
    assert "Read-only file system" in caught.value.why
