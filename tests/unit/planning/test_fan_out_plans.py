"""Which hosts get a model from each other, and that nothing changes for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys.artefacts import artefacts_for
from pyinfra_deploy.planning import host_plan
from pyinfra_deploy.planning.model_lock import lock_text
from pyinfra_deploy.planning.model_supply import LockedModel
from pyinfra_deploy.settings import SettingsError, load_fleet
from pyinfra_deploy.settings.fleet import hosts_sharing
from tests.fakes.repository import empty, repository
from tests.unit.planning import worlds
from tests.unit.planning.test_model_lock import LOCK

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.repository import Repository

__all__ = ["empty", "repository"]
NAMED = {"model": {"lock": "locks/models/one.json"}}
UNIT = "/etc/systemd/system/llm-share@.service"


def planned(snapshot: dict[str, Any], *, fan_out: bool) -> host_plan.HostPlan:
    settings = worlds.settings_with(NAMED)
    artefacts = worlds.artefacts_with(settings, model=LockedModel(LOCK), fan_out=fan_out)
    return host_plan.plan_host("gpu01", worlds.ALL, settings, snapshot, artefacts)


def test_a_host_that_shares_gets_the_unit_and_its_pull_asks_others() -> None:
    plan = planned(worlds.untouched(), fan_out=True)
    assert UNIT in [file.path for file in plan.files]
    assert plan.pull is not None
    assert plan.pull["fan_out"] is True


def test_for_a_host_that_does_not_nothing_is_other_than_before() -> None:
    plan = planned(worlds.untouched(), fan_out=False)
    assert UNIT not in [file.path for file in plan.files]
    assert plan.pull is not None
    assert "fan_out" not in plan.pull


@pytest.mark.parametrize(
    ("sharing", "lock", "expected"), [(2, True, True), (1, True, False), (2, False, False)]
)
def test_it_takes_a_lock_and_another_host(
    tmp_path: Path, sharing: int, lock: bool, expected: bool
) -> None:
    settings = worlds.settings_with({"model": {"lock": "one.json"}} if lock else {})
    (tmp_path / "one.json").write_text(lock_text(LOCK))
    assert settings.runtime is not None
    runtime = tmp_path / settings.runtime.lock
    runtime.parent.mkdir(parents=True)
    runtime.write_text(worlds.LOCK)
    data = {"directory": str(tmp_path), "root": str(tmp_path), "sharing": sharing}
    assert artefacts_for(data, settings).fan_out is expected
    del data["sharing"]
    assert artefacts_for(data, settings).fan_out is False


def with_lock(repository: Repository, lines: str = "") -> None:
    path = repository.root / "group_vars/prod.yml"
    text = path.read_text().replace("model:\n", f"model:\n  lock: one.json\n{lines}")
    path.write_text(text)


def counts(repository: Repository) -> list[int]:
    fleet = load_fleet("prod", repository.root)
    return [hosts_sharing(fleet, host) for host in fleet.hosts.values()]


def test_gpu_hosts_with_one_lock_are_counted(repository: Repository) -> None:
    assert counts(repository) == [0, 0]
    with_lock(repository)
    assert counts(repository) == [2, 2]


def test_a_host_with_another_lock_shares_with_nobody(repository: Repository) -> None:
    with_lock(repository)
    repository.write("host_vars/gpu02.yml", "model: {id: Qwen/Qwen3-32B, lock: two.json}\n")
    assert counts(repository) == [1, 1]


def test_it_can_be_turned_off(repository: Repository) -> None:
    with_lock(repository, "  fan_out: {enabled: false}\n")
    assert counts(repository) == [0, 0]


@pytest.mark.parametrize("address", ["10.20.0", "gpu01", "127.0.0.1", "0.0.0.0", "224.0.0.1"])  # noqa: S104
def test_a_storage_address_is_one_that_others_reach(repository: Repository, address: str) -> None:
    repository.write("host_vars/gpu01.yml", f'storage_address: "{address}"\n')
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    assert any(one.key_path == "storage_address" for one in caught.value.problems)


def test_a_storage_address_is_one_hosts_own(repository: Repository) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text() + "storage_address: 10.20.0.11\n")
    with pytest.raises(SettingsError, match=r"gpu02 and gpu01 have the same \(10.20.0.11\)"):
        load_fleet("prod", repository.root)
    path.write_text(path.read_text().replace("storage_address: 10.20.0.11\n", ""))
    for number in (1, 2):
        repository.write(f"host_vars/gpu0{number}.yml", f"storage_address: 10.20.0.1{number}\n")
    found = load_fleet("prod", repository.root).hosts
    assert [host.settings.storage_address for host in found.values()] == [
        "10.20.0.11",
        "10.20.0.12",
    ]


def test_a_rate_of_nothing_is_refused(repository: Repository) -> None:
    with_lock(repository, "  fan_out: {rate_mb_per_second: 0}\n")
    with pytest.raises(SettingsError, match="rate_mb_per_second"):
        load_fleet("prod", repository.root)
