"""Playbooks around a host's turn and around a deploy, with nothing really run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pyinfra_deploy import deploy_commands, playbook_plan
from pyinfra_deploy.cli import main
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.rollout import page, playbooks
from pyinfra_deploy.rollout.asking import Answers
from pyinfra_deploy.rollout.outcome import Outcome
from pyinfra_deploy.rollout.playbooks import HostsWithPlaybooks, Played
from pyinfra_deploy.rollout.policy import FAILURES, Kind
from pyinfra_deploy.rollout.pyinfra_hosts import PyinfraHosts
from pyinfra_deploy.settings.fleet import load_fleet
from tests.fakes.repository import GOOD, empty, repository

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet
    from tests.fakes.repository import Repository

__all__ = ["empty", "repository"]
FAILED = {"what": "playbook p.yml failed", "why": "task 't': no", "fix": "mend it", "detail": []}


class World:
    """failing: (phase, host). order: what ran, on which hosts."""

    def __init__(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fleet, self.order = fleet, list[str]()
        self.failing: set[tuple[str, str]] = set()
        self.kinds: dict[str, Kind] = {}
        self.serves: dict[str, str | None] = {"gpu01": "r2", "gpu02": "r2"}
        self.noted: list[str] = []
        monkeypatch.setattr(playbooks, "play", self.play)
        monkeypatch.setattr(PyinfraHosts, "switch", lambda _hosts, names: self.switch(names))
        monkeypatch.setattr(PyinfraHosts, "status", lambda _hosts, names: self.status(names))
        monkeypatch.setattr(PyinfraHosts, "renew", lambda _hosts: None)

    def play(self, _fleet: Fleet, hosts: Sequence[str], phase: str, *_: Any, **__: Any) -> Played:
        self.order.append(f"{phase} {','.join(hosts)}")
        failed = {host: FAILED for host in hosts if (phase, host) in self.failing}
        changed = {host: [f"{phase}: 1 changed"] for host in hosts}
        return Played(failed, changed, [f"playbook of {phase}"])

    def switch(self, names: tuple[str, ...]) -> dict[str, Outcome]:
        self.order.append(f"switch {','.join(names)}")
        return {name: Outcome(name, self.kinds.get(name, Kind.LIVE), "r2", "r2") for name in names}

    def status(self, names: Sequence[str]) -> Answers:
        answers = Answers()
        for name in names:
            serves = self.serves[name]
            if serves is not None:
                answers[name] = {
                    "engine": {
                        "active": "active", "started": serves, "current": serves,
                        "golive": {"run": "ro1", "phase": "done"}, "golive_active": "inactive",
                    }
                }  # fmt: skip
        return answers

    def turn(self) -> dict[str, Outcome]:
        hosts = HostsWithPlaybooks(
            self.fleet, "ro1", own_run(), {"gpu01": "r2", "gpu02": "r2"}, self.fleet.root, {},
            lambda _line: None, note=lambda text, _hosts: self.noted.append(text),
        )  # fmt: skip
        return dict(hosts.switch(("gpu01", "gpu02")))


@pytest.fixture
def there(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> World:
    repository.write("p.yml", "[]\n")
    named = yaml.safe_dump({"ansible": {"before": ["p.yml"], "after": ["p.yml"]}})
    repository.write("group_vars/prod.yml", f"{GOOD}{named}")
    return World(load_fleet("prod", repository.root), monkeypatch)


def test_before_then_the_switch_then_after(there: World) -> None:
    found = there.turn()
    assert there.order == ["before gpu01,gpu02", "switch gpu01,gpu02", "after gpu01,gpu02"]
    assert [one.kind for one in found.values()] == [Kind.LIVE, Kind.LIVE]
    assert found["gpu01"].notes == ("before: 1 changed", "after: 1 changed")
    assert there.noted == ["playbook of before", "playbook of after"]


def test_a_host_that_fails_before_is_not_switched(there: World) -> None:
    there.failing, there.serves["gpu01"] = {("before", "gpu01")}, "r1"
    found = there.turn()
    assert there.order == ["before gpu01,gpu02", "switch gpu02", "after gpu02"]
    assert (found["gpu01"].kind, found["gpu01"].serves) == (Kind.FAILED, "r1")
    assert found["gpu01"].reason == "playbook p.yml failed task 't': no"
    assert found["gpu02"].kind is Kind.LIVE


def test_a_host_that_is_gone_is_lost(there: World) -> None:
    there.failing, there.serves["gpu01"] = {("before", "gpu01")}, None
    assert there.turn()["gpu01"].kind is Kind.LOST


def test_a_host_that_went_back_has_no_after(there: World) -> None:
    there.kinds["gpu01"] = Kind.BACK
    there.turn()
    assert there.order[-1] == "after gpu02"


def test_a_failure_after_is_a_failure_of_a_host_that_serves(there: World) -> None:
    there.failing = {("after", "gpu02")}
    found = there.turn()["gpu02"]
    assert (found.kind, found.serves) == (Kind.AFTER, "r2")
    assert Kind.AFTER in FAILURES
    assert found.kind.value in page.MARKS


DEPLOYS = [
    (set(), 0, 0, ["before gpu01,gpu02", "pyinfra gpu01,gpu02", "after gpu01,gpu02"]),
    ({("before", "gpu01")}, 0, 1, ["before gpu01,gpu02", "pyinfra gpu02", "after gpu02"]),
    ({("after", "gpu01")}, 0, 1,
     ["before gpu01,gpu02", "pyinfra gpu01,gpu02", "after gpu01,gpu02"]),
    (set(), 4, 4, ["before gpu01,gpu02", "pyinfra gpu01,gpu02"]),
    ({("before", "gpu01"), ("before", "gpu02")}, 0, 1, ["before gpu01,gpu02", "after "]),
]  # fmt: skip


@pytest.mark.parametrize(("failing", "code", "ends", "order"), DEPLOYS)
def test_around_a_deploy(
    there: World,
    monkeypatch: pytest.MonkeyPatch,
    failing: set[tuple[str, str]],
    code: int,
    ends: int,
    order: list[str],
) -> None:
    def run_pyinfra(_fleet: Fleet, hosts: Sequence[str], _on_line: Any) -> int:
        there.order.append(f"pyinfra {','.join(hosts)}")
        return code

    monkeypatch.setattr(deploy_commands, "run_pyinfra", run_pyinfra)
    there.failing = failing
    assert deploy_commands.with_playbooks(there.fleet, ["gpu01", "gpu02"]) == ends
    assert there.order == order


def test_the_plan_names_them(there: World) -> None:
    (line,) = playbook_plan.lines(there.fleet, ["gpu01", "gpu02"])
    assert line.endswith("before: p.yml; after: p.yml")


def test_a_plan_from_facts_runs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "prod", "--facts", str(tmp_path), "--playbooks"]) == 2
    assert "--playbooks connects to hosts" in capsys.readouterr().err
