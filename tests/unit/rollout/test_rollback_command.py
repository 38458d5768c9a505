"""`fleet rollback` and `fleet unhold` from what hosts have kept to the beginning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy import cli, rollback_commands
from pyinfra_deploy.plan_commands import Read
from pyinfra_deploy.rollout import asking
from pyinfra_deploy.rollout.asking import Answers
from pyinfra_deploy.rollout.policy import Code, Kind, Options
from pyinfra_deploy.settings.fleet import load_fleet
from tests.unit.rollout.test_rollbacks import kept

if TYPE_CHECKING:
    from tests.fakes.repository import Repository


class World:
    """wanted: what the settings ask for, of each host."""

    def __init__(self) -> None:
        self.kept = Answers()
        self.kept |= {"gpu01": kept("old1", "older"), "gpu02": kept("new1", "old1")}
        self.wanted: dict[str, str | None] = {"gpu01": "new1", "gpu02": "new1"}
        self.driven: list[dict[str, Any]] = []
        self.asked: list[tuple[str, Any]] = []

    def read(self, _fleet: Any, hosts: Any) -> Read:
        class Plan:
            def __init__(self, release_id: str | None) -> None:
                self.release_id = release_id

        class One:
            def __init__(self, host: str, release: str | None) -> None:
                self.foresight = type("F", (), {"host": host})
                self.plan = Plan(release) if release != "refused" else None

        return Read([One(host, self.wanted[host]) for host in hosts], [], "")  # type: ignore[misc]

    def drive(self, hosts: Any, console: Any, document: Any, _generations: Any) -> Code:
        targets = json.loads(Path(hosts.data["targets"]).read_text())
        self.driven.append({"document": document, "targets": targets, "course": console.course,
                            "deploy": hosts.deploy.name})  # fmt: skip
        return Code.DONE

    def ask(self, _fleet: Any, command: str, requests: Any) -> Answers:
        answers = Answers()
        if command == "service answers":
            return answers
        self.asked.append((command, requests))
        answers["gpu01"] = {"changed": True, "hold": {"kept": "old1"}}
        answers.lost["gpu02"] = "the host was not reached"
        return answers


@pytest.fixture
def world(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(rollback_commands, "kept_releases", lambda *_: found.kept)
    monkeypatch.setattr(rollback_commands, "read_hosts", found.read)
    monkeypatch.setattr(rollback_commands, "drive", found.drive)
    monkeypatch.setattr(asking, "ask", found.ask)
    return found


def run(*words: str) -> int:
    return cli.main(["rollback", "prod", *words])


def test_hosts_that_are_switched_go_first_and_the_others_are_held(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--yes", "--why", "answers in Dutch") == Code.DONE
    (driven,) = world.driven
    assert driven["deploy"] == "roll_back.py"
    assert driven["course"].hosts == ("gpu02", "gpu01")
    assert driven["document"]["kind"] == "rollback"
    assert driven["document"]["hosts"] == {"gpu01": "old1", "gpu02": "old1"}
    switched, held = driven["targets"]["gpu02"], driven["targets"]["gpu01"]
    assert (switched["kept"], switched["rejected"], switched["switch"]) == ("old1", ["new1"], True)
    assert (held["kept"], held["why"], held["switch"]) == ("old1", "answers in Dutch", False)
    assert "gpu02: new1 -> old1" in capsys.readouterr().out


def test_settings_that_were_reverted_do_not_turn_it_round(world: World) -> None:
    world.kept |= {"gpu01": kept("old1", "older"), "gpu02": kept("bad1", "old1")}
    world.wanted = dict.fromkeys(world.wanted, "old1")
    assert run("--yes") == Code.DONE
    targets = world.driven[0]["targets"]
    assert {host: (one["kept"], one["rejected"]) for host, one in targets.items()} == {
        "gpu01": ("old1", ["bad1"]), "gpu02": ("old1", ["bad1"]),
    }  # fmt: skip


def test_a_host_whose_plan_is_refused_is_taken_back_with_the_others(world: World) -> None:
    world.kept |= {"gpu01": kept("new1", "old1")}
    world.wanted["gpu01"] = "refused"
    assert run("--yes") == Code.DONE
    assert world.driven[0]["document"]["hosts"] == {"gpu01": "old1", "gpu02": "old1"}


def test_a_host_that_runs_nothing_is_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.kept |= {"gpu01": kept(None)}
    assert run("--dry") == Code.DONE
    assert "not touched: gpu01 (no engine, or it runs no release)" in capsys.readouterr().out


def test_what_cannot_be_told_says_what_to_type(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.kept |= {"gpu01": kept("old1", "new1"), "gpu02": kept("old1", "older")}
    world.wanted = dict.fromkeys(world.wanted, "old1")
    assert run("--yes") == Code.REFUSED
    said = capsys.readouterr().err
    assert "gpu01 has been taken back already" in said
    assert "gpu02: old1 (live), older (the one before)" in said
    assert "    fleet rollback prod older --only gpu02" in said


def test_dry_and_no_change_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--dry") == Code.DONE
    monkeypatch.setattr("builtins.input", lambda _text: "")
    assert run() == Code.REFUSED
    assert world.driven == []


def test_what_cannot_be_gone_back_to_lists_what_there_is(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("gone1", "--yes") == Code.REFUSED
    said = capsys.readouterr().err
    assert "no host has kept a release 'gone1'" in said
    assert "gpu02: new1 (live), old1 (the one before)" in said


def test_a_host_that_is_not_reached_is_to_be_left_out(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.kept.lost["gpu02"] = "the host was not reached"
    assert run("--yes") == Code.REFUSED
    assert "--exclude gpu02" in capsys.readouterr().err


def test_an_interrupted_one_goes_on_with_what_it_was_for(world: World) -> None:
    document = {
        "id": "ro1", "kind": "rollback", "why": "slow", "hosts": {"gpu01": "old1", "gpu02": "old1"},
        "rejected": {"gpu01": ["new1"], "gpu02": ["new1"]},
        "options": {"canary": 1, "batch": "25%", "pause": False, "max_failures": 0},
    }  # fmt: skip
    seen = Answers()
    done = {"phase": "done", "run": "ro1"}
    for host, hold in (("gpu01", {"kept": "old1"}), ("gpu02", None)):
        seen[host] = {
            "engine": {"golive": done, "started": "old1", "active": "active", "hold": hold}
        }
    fleet = load_fleet("prod", Path.cwd())
    assert rollback_commands.resume(fleet, document, seen, yes=True, dry=True) == Code.DONE
    assert world.driven == []
    assert rollback_commands.resume(fleet, document, seen, yes=True) == Code.DONE
    (driven,) = world.driven
    # gpu02 serves it, and was killed before its hold was written.
    course = driven["course"]
    assert (course.hosts, course.options, course.outcomes, course.agreed) == (
        ("gpu01", "gpu02"), Options(), {"gpu01": Kind.LIVE}, 1,
    )  # fmt: skip
    assert driven["targets"]["gpu02"]["switch"] is False


def test_a_hold_ends_by_hand_and_who_was_not_reached_is_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["unhold", "prod"]) == Code.REFUSED
    printed = capsys.readouterr()
    assert printed.out == "gpu01: is no longer held at old1\n"
    assert "gpu02: NOT DONE: the host was not reached" in printed.err
    ((command, requests),) = world.asked
    assert command == "hold end"
    assert requests["gpu01"]["engine"] == "main"
