"""`fleet rollout` and its --resume, from the plan to the beginning: no host is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy import (
    cli,
    deploy_commands,
    plan_commands,
    resuming,
    rollout_commands,
    rollout_plan,
)
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.plan_commands import Foreseen, Read
from pyinfra_deploy.planning import host_plan
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.foresight import Foresight
from pyinfra_deploy.rollout import asking
from pyinfra_deploy.rollout.asking import Answers
from pyinfra_deploy.rollout.policy import Code, Kind
from tests.fakes.repository import HOSTS, Repository
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from collections.abc import Sequence

NEW = {"engine": {"args": {"max-model-len": 8192}}}


class World:
    """changed: hosts that have another release now than the settings ask for. silent: those whose
    engine does not answer."""

    def __init__(self) -> None:
        self.changed = {"gpu01", "gpu02"}
        self.refused: set[str] = set()
        self.stopped: set[str] = set()
        self.taken_back: set[str] = set()
        self.silent: set[str] = set()
        self.not_read: list[str] = []
        self.driven: list[tuple[Any, ...]] = []
        self.status = Answers()

    def read(self, _fleet: Any, hosts: Sequence[str], *_: Any) -> Read:
        return Read([self.foreseen(host) for host in hosts], self.not_read, "pyinfra's last words")

    def foreseen(self, host: str) -> Foreseen:
        before, after = worlds.settings_with(), worlds.settings_with(NEW)
        settings = after if host in self.changed else before
        snapshot = worlds.converged(before, worlds.artefacts_with(before))
        if host in self.taken_back:
            asked = worlds.release_of(after, worlds.artefacts_with(after))
            entry = {"why": "a golden prompt", "when": "today"}
            snapshot["engines"]["main"]["rejected"] = {asked: entry}
        plan = host_plan.plan_host(
            host, worlds.ALL, settings, snapshot, worlds.artefacts_with(settings)
        )
        hardware = assemble(host, {})
        if host in self.refused | self.stopped:
            which = "os.no-systemd" if host in self.refused else "engine.stopped"
            finding = Finding(which, "refuse", host, "systemd", "is not there", "boot it")
            return Foreseen(Foresight(host, hardware, None, None, (finding,)), snapshot=snapshot)
        return Foreseen(Foresight(host, hardware, None, None, ()), plan, snapshot)

    def release(self, host: str = "gpu01") -> str | None:
        return rollout_plan.release_of(self.foreseen(host))

    def ask(self, _fleet: Any, command: str, requests: Any) -> Answers:
        assert command == "service answers"
        answers = Answers()
        for host in requests:
            answers[host] = {"answers": host not in self.silent, "drain": None, "model": "qwen"}
        return answers

    def drive(self, hosts: Any, console: Any, document: Any, generations: Any) -> Code:
        self.driven.append((hosts, console.course, document, generations))
        return Code.DONE


@pytest.fixture
def world(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    repository.write("inventories/prod/hosts.yml", HOSTS)
    for module in (rollout_commands, resuming, plan_commands):
        monkeypatch.setattr(module, "read_hosts", found.read)
    monkeypatch.setattr(rollout_plan, "drive", found.drive)
    monkeypatch.setattr(asking, "ask", found.ask)
    monkeypatch.setattr(resuming, "status_of_all", lambda _fleet: found.status)
    return found


def run(*words: str) -> int:
    return cli.main(["rollout", "prod", *words])


def test_a_host_whose_engine_is_stopped_by_hand_is_left_out_by_name(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.stopped = {"gpu01"}
    assert run("--yes") == Code.DONE
    ((_, course, document, _),) = world.driven
    assert course.hosts == ("gpu02",)
    assert list(document["hosts"]) == ["gpu02"]
    assert "left out, since their engines are stopped by hand: gpu01" in capsys.readouterr().out
    world.refused = {"gpu01"}
    assert run("--yes") == Code.REFUSED


def test_a_release_that_went_back_is_for_a_rollout_and_not_for_a_deploy(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_commands, "read_hosts", world.read)
    monkeypatch.setattr(deploy_commands, "run_pyinfra", lambda *_: 0)
    assert cli.main(["deploy", "prod", "--yes"]) == 0
    world.taken_back = {"gpu01"}
    assert cli.main(["deploy", "prod", "--yes"]) == 1
    said = capsys.readouterr().err
    assert "not begun" in said
    assert "was taken back here at today: a golden prompt" in said
    assert run("--yes") == Code.DONE


def test_the_plan_comes_first_then_the_question(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "n")  # type: ignore[func-returns-value]
    assert run() == Code.REFUSED
    assert asked == ["Begin? [y/N] "]
    said = capsys.readouterr().out
    for words in (
        "2 of 2 hosts would be deployed",
        "what differs on gpu01, gpu02:",
        "in this order:",
        "canary: gpu01",
        "group 2: gpu02",
        "nothing was changed",
    ):
        assert words in said
    assert "DOWNTIME" not in said
    assert world.driven == []


def test_with_yes_it_begins(world: World) -> None:
    assert run("--yes", "--canary", "0", "--batch", "100%", "--max-failures", "1") == Code.DONE
    ((hosts, course, document, generations),) = world.driven
    assert course.hosts == ("gpu01", "gpu02")
    assert document["hosts"] == {"gpu01": world.release(), "gpu02": world.release()}
    assert document["options"] == {
        "canary": 0, "batch": "100%", "pause": False, "max_failures": 1,
    }  # fmt: skip
    assert set(generations) == {"gpu01", "gpu02"}
    assert hosts.deploy.name == "deploy.py"
    assert hosts.early == ()


def test_only_what_changes_goes_and_dry_is_the_plan(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.changed = {"gpu02"}
    assert run("--dry") == Code.DONE
    assert "canary: gpu02" in capsys.readouterr().out
    world.changed = set()
    assert run("--yes") == Code.DONE
    assert "nothing to do" in capsys.readouterr().out
    assert world.driven == []


def test_no_group_has_all_that_serve_a_model_and_the_last_of_one_is_a_downtime(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--dry", "--canary", "2") == Code.DONE
    said = capsys.readouterr().out
    assert "canary: gpu01\n    group 2: gpu02" in said
    assert "DOWNTIME" not in said
    world.silent = {"gpu02"}
    assert run("--dry") == Code.DONE
    assert "DOWNTIME: gpu01 is the only host that serves qwen (gpu02 does not" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("why", ["refused", "not read"])
def test_a_host_that_cannot_be_deployed_to_ends_it(
    world: World, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    if why == "refused":
        world.refused = {"gpu02"}
    else:
        world.not_read = ["gpu02"]
    assert run("--yes") == Code.REFUSED
    assert "--exclude gpu02" in capsys.readouterr().err
    assert world.driven == []


def interrupted(world: World, **releases: str | None) -> None:
    wanted = {host: world.release(host) for host in ("gpu01", "gpu02")} | releases
    document = {
        "id": "ro1", "kind": "rollout", "state": "interrupted", "began": "x", "owner": "ada",
        "hosts": wanted,
        "options": {"canary": 1, "batch": "25%", "pause": True, "max_failures": 0},
    }  # fmt: skip
    engine = {"golive": {"phase": "done", "run": "ro1"}, "started": wanted["gpu01"],
              "active": "active"}  # fmt: skip
    for host in wanted:
        mine = engine if host == "gpu01" else {}
        world.status[host] = {"rollout": document, "engine": mine}


def test_it_goes_on_after_those_that_are_done(world: World) -> None:
    interrupted(world)
    release = world.release()
    world.changed = {"gpu02"}
    # gpu01 is as the settings want it by now.
    world.status["gpu01"]["rollout"]["hosts"]["gpu01"] = world.release("gpu01")
    world.status["gpu01"]["engine"]["started"] = world.release("gpu01")
    assert run("--resume", "--yes") == Code.DONE
    ((hosts, course, document, _),) = world.driven
    assert (document["id"], course.outcomes, course.waiting) == (
        "ro1", {"gpu01": Kind.LIVE}, ("gpu02",),
    )  # fmt: skip
    assert hosts.wanted["gpu02"] == release
    assert course.options.pause


def test_a_dry_resume_changes_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted(world)
    assert run("--resume", "--dry", "--yes") == Code.DONE
    assert "to go: gpu01, gpu02" in capsys.readouterr().out
    assert world.driven == []


def test_a_resume_leaves_out_a_dead_host_as_it_advises(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(world)
    world.refused = {"gpu02"}
    assert run("--resume", "--yes") == Code.REFUSED
    assert "--exclude gpu02" in capsys.readouterr().err
    assert run("--resume", "--yes", "--exclude", "gpu02") == Code.DONE
    (driven,) = world.driven
    assert (list(driven[2]["hosts"]), driven[1].hosts) == (["gpu01"], ("gpu01",))


@pytest.mark.parametrize(
    "words",
    [("--only", "gpu01"), ("--canary", "1"), ("--batch", "25%"), ("--max-failures", "0"),
     ("--pause",)],
)  # fmt: skip
def test_a_resume_drops_no_option_without_a_word(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    interrupted(world)
    assert run("--resume", "--yes", *words) == Code.USAGE
    assert f"without {words[0]}" in capsys.readouterr().err
    assert world.driven == []


def test_a_host_that_still_has_something_to_change_has_its_turn_again(world: World) -> None:
    interrupted(world)
    assert run("--resume", "--yes") == Code.DONE
    assert world.driven[0][1].waiting == ("gpu01", "gpu02")


def test_what_was_interrupted_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(world)
    ended: list[str] = []

    def ask(_fleet: Any, command: str, requests: Any, **_: Any) -> Answers:
        ended.extend(f"{command} {host} {one['id']}" for host, one in requests.items())
        return Answers()

    monkeypatch.setattr(asking, "ask", ask)
    assert run("--abandon", "--yes") == Code.DONE
    assert ended == ["rollout end gpu01 ro1", "rollout end gpu02 ro1"]
    assert world.driven == []
    who = {"owner": "bob@desk", "machine": "desk:1:2"}
    for one in world.status.values():
        one |= {"live": True, "lease": who, "rollout": one["rollout"] | who | {"state": "running"}}
    assert run("--abandon", "--yes") == Code.LOCKED
    world.status.clear()
    assert run("--abandon", "--yes") == Code.REFUSED
    assert len(ended) == 2


@pytest.mark.parametrize(
    ("releases", "said"),
    [
        (
            {"gpu02": "other"},
            "the settings ask for another release now",
        ),
        ({"gpu09": "r"}, "gpu09 of it is no longer in the inventory"),
    ],
)
def test_what_is_no_longer_the_same_is_not_gone_on_with(
    world: World, capsys: pytest.CaptureFixture[str], releases: dict[str, str], said: str
) -> None:
    interrupted(world, **releases)
    assert run("--resume", "--yes") == Code.REFUSED
    assert said in capsys.readouterr().err
    assert world.driven == []
