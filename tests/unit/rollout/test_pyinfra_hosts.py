"""The lock of a rollout over several hosts, and what a group's turn makes of what its run told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pyinfra_deploy.operations.rollout_run import VARIABLE
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.rollout import asking, child
from pyinfra_deploy.rollout.asking import Answers
from pyinfra_deploy.rollout.child import Ran
from pyinfra_deploy.rollout.policy import Kind
from pyinfra_deploy.rollout.pyinfra_hosts import HELD, PyinfraHosts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyinfra_deploy.settings.fleet import Fleet

THREE = ("a", "b", "c")


def fleet_of(*names: str) -> Fleet:
    settings = SimpleNamespace(engine=SimpleNamespace(name="main"))
    host = SimpleNamespace(is_local=False, groups=frozenset({"gpu"}), settings=settings)
    return cast(
        "Fleet", SimpleNamespace(name="prod", root=Path("/x"), hosts=dict.fromkeys(names, host))
    )


class Said:
    """says: (command, host) -> an answer, a refusal's text, or None for a lost host."""

    def __init__(self) -> None:
        self.says: dict[tuple[str, str], Any] = {}
        self.asked: list[tuple[str, list[str]]] = []
        self.requests: list[Mapping[str, Any]] = []

    def ask(self, _fleet: Any, command: str, requests: Any, *_: Any, **__: Any) -> Answers:
        answers = Answers()
        if requests:
            self.asked.append((command, list(requests)))
        for host, request in requests.items():
            self.requests.append({"host": host, "command": command, **request})
            found = self.says.get((command, host), {})
            if isinstance(found, list):
                found = found.pop(0)
            if isinstance(found, str):
                answers.refused[host] = {"what": found}
            elif found is None:
                answers.lost[host] = "the host was not reached"
            else:
                answers[host] = found
        return answers


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    found = Said()
    monkeypatch.setattr(asking, "ask", found.ask)
    return found


def hosts_of(**more: Any) -> PyinfraHosts:
    known: dict[str, Any] = {
        "fleet": fleet_of(*THREE), "rollout": "ro1", "run": own_run(),
        "wanted": dict.fromkeys(THREE, "r2"), "deploy": Path("deploy.py"), "data": {},
        "on_line": lambda _line: None,
    }  # fmt: skip
    return PyinfraHosts(**(known | more))


def test_the_first_is_taken_alone_then_the_rest(said: Said) -> None:
    hosts = hosts_of()
    answers = hosts.take({"id": "ro1"}, {"a": 4})
    assert answers.missing == []
    assert said.asked == [("rollout take", ["a"]), ("rollout take", ["b", "c"])]
    assert [one["lease"]["generation_seen"] for one in said.requests] == [4, None, None]
    assert hosts.taken == list(THREE)


def test_all_or_none_are_taken(said: Said) -> None:
    said.says["rollout take", "c"] = HELD
    said.says["rollout status", "c"] = {"lease": own_run().as_spec()}
    hosts = hosts_of()
    answers = hosts.take({"id": "ro1"}, {})
    assert answers.missing == ["c"]
    assert said.asked[-1] == ("rollout end", ["a", "b"])
    assert hosts.taken == []


def test_a_host_whose_answer_was_lost_is_given_back_too(said: Said) -> None:
    """It may have been taken before the connection was lost."""
    said.says["rollout take", "c"] = None
    said.says["rollout end", "c"] = None
    hosts = hosts_of()
    assert hosts.take({"id": "ro1"}, {}).missing == ["c"]
    assert said.asked[-1] == ("rollout end", ["a", "b", "c"])
    assert hosts.taken == ["c"]


def of_another(**change: Any) -> dict[str, Any]:
    """What a host says that another rollout, of another machine, has now."""
    who = {"owner": "bob@desk", "machine": "desk:1:2"}
    document = {"id": "ro0", "kind": "rollout", "state": "running", "inventory": "prod", **who}
    lease = {"run": "other", "pid": 1, "pid_start": 1, **who}
    return {"rollout": document | change, "lease": lease, "live": True}


def test_one_rollout_at_a_time_also_without_a_common_host(said: Said) -> None:
    said.says["rollout status", "c"] = of_another()
    said.says["rollout status", "d"] = None  # a dead host holds nobody up
    hosts = hosts_of(fleet=fleet_of("a", "b", "c", "d"), wanted={"a": "r2", "b": "r2"})
    answers = hosts.take({"id": "ro1"}, {})
    assert answers.missing == ["c"]
    assert (answers.refused["c"]["what"], "ro0 of bob@desk" in answers.problem("c")) == (HELD, True)
    # Its own are taken before the others are asked, so that one of two sees the other.
    assert said.asked == [
        ("rollout take", ["a"]), ("rollout take", ["b"]), ("rollout status", ["c", "d"]),
        ("rollout end", ["a", "b"]),
    ]  # fmt: skip
    assert hosts.taken == []


NOT_AT_WORK: dict[str, dict[str, Any]] = {
    "paused": of_another(state="paused"),
    "killed, and its lock ended": of_another() | {"live": False},
    "killed, and a deploy has the host": of_another(owner="ada"),
    "killed on this machine": of_another(**{
        key: own_run().as_spec()[key] for key in ("owner", "machine")
    }) | {"lease": own_run().as_spec() | {"pid_start": 1}},
}  # fmt: skip


@pytest.mark.parametrize("how", NOT_AT_WORK)
def test_what_was_left_before_is_over_when_a_new_one_begins(said: Said, how: str) -> None:
    said.says["rollout status", "c"] = NOT_AT_WORK[how]
    lines: list[str] = []
    hosts = hosts_of(wanted={"a": "r2", "b": "r2"}, on_line=lines.append)
    assert hosts.take({"id": "ro1"}, {}).missing == []
    assert hosts.taken == ["a", "b"]
    assert said.asked[-1] == ("rollout end", ["c"])
    assert (said.requests[-1]["id"], said.requests[-1]["state"]) == ("ro0", "")
    assert "has not ended, and cannot be gone on with" in lines[0]


def test_a_rollout_of_another_inventory_is_none_of_ours(said: Said) -> None:
    said.says["rollout status", "c"] = of_another(inventory="lab")
    hosts = hosts_of(wanted={"a": "r2"}, fleet=fleet_of("a", "c"))
    assert hosts.take({"id": "ro1"}, {}).missing == []


def test_a_dead_run_of_this_machine_is_taken_over(said: Said) -> None:
    dead = {"lease": own_run().as_spec() | {"pid_start": 1, "run": "dead"}}
    said.says["rollout take", "a"] = [HELD, {}]
    said.says["rollout status", "a"] = dead
    assert hosts_of().take({"id": "ro1"}, {}).missing == []
    assert said.requests[2]["lease"]["steal_run"] == "dead"


def test_one_that_lives_is_not(said: Said) -> None:
    said.says["rollout take", "a"] = HELD
    said.says["rollout status", "a"] = {"lease": own_run().as_spec()}
    assert hosts_of().take({"id": "ro1"}, {}).missing == ["a"]


def test_interrupted_in_the_middle_all_are_given_back(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = hosts_of()

    def interrupted(*_: Any, **__: Any) -> Answers:
        raise KeyboardInterrupt

    monkeypatch.setattr(asking, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hosts.take({"id": "ro1"}, {})
    monkeypatch.setattr(asking, "ask", said.ask)
    said.says["rollout end", "b"] = None
    assert hosts.give_back({}, "interrupted") == ["b"]


def test_waiting_hosts_keep_their_lease_over_the_hours(said: Said) -> None:
    moments = iter([0.0, 60.0, 7 * 3600.0, 7 * 3600.0, 8 * 3600.0])
    hosts = hosts_of(clock=lambda: next(moments))
    hosts.take({"id": "ro1"}, {})
    hosts.renew()
    assert said.asked[-1][0] == "rollout take"
    hosts.renew()
    assert said.asked[-1] == ("lease renew", list(THREE))
    hosts.renew()
    assert len([1 for command, _ in said.asked if command == "lease renew"]) == 1


def ran(
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, Any],
    code: int,
    lines: tuple[str, ...],
    results: dict[str, Any],
) -> list[str]:
    """What the next child run does; the --limit words that it got."""
    seen: list[str] = []

    def run(line: list[str], _root: Path, environment: Mapping[str, str],
            _on_line: Callable[[str], None]) -> Ran:  # fmt: skip
        seen.extend(line[at + 1] for at, word in enumerate(line) if word == "--limit")
        place = Path(json.loads(environment[VARIABLE])["outcomes"])
        for host, document in told.items():
            (place / f"{host}.json").write_text(json.dumps(document))
        return Ran(code, lines, results)

    monkeypatch.setattr(child, "run", run)
    return seen


def results(good: list[str], failed: list[str]) -> dict[str, Any]:
    operation = {"name": "Finish | Give the host back", "success": good, "no_change": [],
                 "error": failed}  # fmt: skip
    return {"failed_hosts": failed, "operations": [operation]}


def test_a_group_is_one_run_and_each_host_has_an_outcome(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = {"error": {"what": "release r2 did not go live", "detail": ["last words"]}}
    limits = ran(
        monkeypatch, {"a": {"result": {"release": "r2"}}, "b": error}, 1, ("    [c] pull: gone",),
        results(["a"], ["b", "c"]),
    )  # fmt: skip
    golive = {"golive": {"phase": "reverted", "run": "ro1"}, "started": "r1", "active": "active"}
    said.says["rollout status", "b"] = {"engine": golive}
    said.says["rollout status", "c"] = None
    found = hosts_of().switch(THREE)
    assert limits == list(THREE)
    assert {host: one.kind for host, one in found.items()} == {
        "a": Kind.LIVE, "b": Kind.BACK, "c": Kind.LOST,
    }  # fmt: skip
    assert found["b"].lines == ("last words",)
    assert found["c"].reason == "pull: gone"
    assert said.asked == [("rollout status", ["b", "c"])]


def test_without_results_nobody_is_believed_to_be_well(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(monkeypatch, {"a": {"result": {}}}, 1, ("group_vars/prod.yml:3: unknown key",), {})
    said.says["rollout status", "a"] = {"engine": {"started": "r1", "active": "active"}}
    found = hosts_of().switch(("a",))
    assert (found["a"].kind, found["a"].serves) == (Kind.FAILED, "r1")
    assert found["a"].reason == "group_vars/prod.yml:3: unknown key"


@pytest.mark.parametrize(("answers", "kind"), [(True, Kind.FAILED), (False, Kind.DOWN)])
def test_an_engine_whose_go_live_failed_is_asked_whether_it_answers(
    said: Said, monkeypatch: pytest.MonkeyPatch, answers: bool, kind: Kind
) -> None:
    ran(monkeypatch, {"a": {"error": {"what": "its golden prompt"}}}, 1, (), results([], ["a"]))
    golive = {"golive": {"phase": "failed", "run": "ro1"}, "started": "r2", "active": "active"}
    said.says["rollout status", "a"] = {"engine": golive}
    said.says["service answers", "a"] = {"answers": answers}
    assert hosts_of().switch(("a",))["a"].kind == kind
    assert said.asked[-1] == ("service answers", ["a"])


def test_building_early_names_only_who_failed(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hosts_of().build_early() == {}
    ran(monkeypatch, {}, 1, ("    [b] pull: gone",), {"failed_hosts": ["b"], "operations": []})
    said.says["rollout status", "b"] = {"engine": {"started": "r1", "active": "active"}}
    found = hosts_of(early=("a", "b")).build_early()
    assert {host: one.kind for host, one in found.items()} == {"b": Kind.FAILED}
    ran(monkeypatch, {}, 0, (), {})
    assert hosts_of(early=("a", "b")).build_early() == {}


def test_a_child_of_the_rollout_is_limited_to_its_hosts() -> None:
    line = child.command_line(fleet_of(*THREE), ("b",), Path("deploy.py"), {"x": "y"})
    assert line[1:] == [
        "-m", "pyinfra", "-y", "--json", "--limit", "b", "--data", "x=y", "inventories/prod.py",
        "deploy.py",
    ]  # fmt: skip
