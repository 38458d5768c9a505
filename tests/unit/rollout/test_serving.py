"""Groups by what hosts serve: a canary for each model, and no model without a host that serves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.rollout import asking, course, serving
from pyinfra_deploy.rollout.asking import Answers
from pyinfra_deploy.rollout.outcome import Outcome
from pyinfra_deploy.rollout.policy import (
    Batch,
    Course,
    Kind,
    Options,
    Step,
    groups_foreseen,
    next_step,
    went,
)
from pyinfra_deploy.rollout.serving import Serving
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

CHAT = tuple(f"chat{number}" for number in range(1, 7))
EMB = ("emb1", "emb2")
MODELS = {**dict.fromkeys(CHAT, "chat"), **dict.fromkeys(EMB, "emb")}
BOTH = Serving(now=MODELS, coming=MODELS)
HALF = Options(batch=Batch(percent=50))


def begun(served: Serving = BOTH, options: Options = HALF) -> Course:
    return Course((*CHAT, *EMB), options, serving=served)


def test_each_model_has_a_canary_of_its_own_and_keeps_a_host_that_serves() -> None:
    assert groups_foreseen((*CHAT, *EMB), HALF, BOTH) == (
        ("chat1",), ("emb1",), ("chat2", "chat3", "chat4", "chat5"), ("chat6", "emb2"),
    )  # fmt: skip


@pytest.mark.parametrize("options", [Options(canary=0, batch=Batch(percent=100)),
                                     Options(canary=8)])  # fmt: skip
def test_not_all_hosts_of_a_model_go_at_once_whatever_is_asked(options: Options) -> None:
    for group in groups_foreseen((*CHAT, *EMB), options, BOTH):
        assert not set(CHAT) <= set(group)
        assert not set(EMB) <= set(group)


def test_a_model_that_two_hosts_serve_is_not_taken_out_by_a_group() -> None:
    """chat1 and chat2 in one group, with six other hosts that serve something else."""
    hosts = ("chat1", "chat2", *(f"other{number}" for number in range(6)))
    models = {host: host.rstrip("0123456789") for host in hosts}
    served = Serving(now=models, coming=models)
    for group in groups_foreseen(hosts, Options(canary=0, batch=Batch(size=2)), served):
        assert not {"chat1", "chat2"} <= set(group)


def test_the_canary_of_one_model_proves_nothing_of_another() -> None:
    now = went(begun(), {"chat1": Kind.LIVE})
    assert next_step(now) == Step("go", ("emb1",))
    step = next_step(went(now, {"emb1": Kind.BACK}))
    assert (step.what, step.why) == (
        "stop", "the canary emb1 went back to its previous release",
    )  # fmt: skip


@pytest.mark.parametrize("out", [{"chat2"}, {"chat2", "chat3", "chat4"}])
def test_drained_hosts_and_dead_ones_do_not_count(out: set[str]) -> None:
    served = replace(BOTH, out=frozenset(out), drained=frozenset(out))
    now = replace(begun(served), outcomes={"chat1": Kind.LIVE, "emb1": Kind.LIVE})
    group = next_step(now).hosts
    assert served.live("chat") - set(group)


def test_a_turn_ends_no_drain_of_an_operator() -> None:
    served = replace(BOTH, out=frozenset({"emb2", "chat2"}), drained=frozenset({"emb2"}))
    after = went(begun(served), {"emb2": Kind.LIVE, "chat2": Kind.LIVE}).serving
    assert after.out == {"emb2"}


@pytest.mark.parametrize("kind", [Kind.LOST, Kind.DOWN])
def test_a_lost_host_leaves_the_other_alone_which_stops_it(kind: Kind) -> None:
    served = replace(BOTH, agreed=frozenset({"chat"}))
    now = went(begun(served, Options(canary=0, max_failures=3)), {"emb1": kind})
    left = replace(now, hosts=("emb1", "emb2"))
    step = next_step(left)
    assert step.what == "stop"
    if kind is Kind.LOST:
        assert step.why == "emb2 is by now the only host that serves emb"
        agreed = replace(left, serving=replace(now.serving, agreed=frozenset({"emb"})))
        assert next_step(agreed) == Step("go", ("emb2",))


def test_hosts_whose_engine_is_not_switched_take_nothing_from_clients() -> None:
    served = Serving(now=dict.fromkeys(EMB, "emb"))
    assert groups_foreseen(EMB, Options(canary=0, batch=Batch(size=2)), served) == (EMB,)
    assert served.beside(EMB) == []


class Hosts:
    """dead: hosts that do not serve any more when they are looked at."""

    def __init__(self, dead: set[str]) -> None:
        self.dead, self.turns = dead, list[tuple[str, ...]]()

    def look(self, before: Serving, waiting: tuple[str, ...]) -> Serving:
        asked = before.beside(waiting)
        return before.gone([host for host in asked if host in self.dead])

    def switch(self, hosts: tuple[str, ...]) -> dict[str, Outcome]:
        self.turns.append(hosts)
        return {host: Outcome(host, Kind.LIVE) for host in hosts}


class Teller:
    def group(self, *_: Any) -> None: ...

    def outcomes(self, *_: Any) -> None: ...

    def may_go_on(self, *_: Any) -> bool:
        return True


def test_who_serves_is_looked_at_before_each_group() -> None:
    hosts = Hosts({"emb2"})
    _, step = course.run(begun(), hosts, Teller())
    assert hosts.turns == [("chat1",)]
    assert (step.what, step.why) == ("stop", "emb1 is by now the only host that serves emb")


def test_what_hosts_say(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_fleet: Any, command: str, requests: Any) -> Answers:
        assert (command, requests["gpu01"]) == ("service answers", {"engine": "main"})
        answers = Answers()
        answers["gpu01"] = {"answers": True, "model": "old-name", "drain": None}
        answers.lost["gpu02"] = "the host was not reached"
        return answers

    monkeypatch.setattr(asking, "ask", ask)
    fleet = load_fleet("prod", repository.root)
    found = serving.look(fleet, {"gpu01": "Qwen/Qwen3-32B"}, told=True)
    assert found.now == {"gpu01": "old-name", "gpu02": "Qwen/Qwen3-32B"}
    assert found.out == {"gpu02"}
    assert found.agreed == {"old-name", "Qwen/Qwen3-32B"}
    # Nobody was told that gpu01 is alone.
    found = serving.look(fleet, {"gpu01": "Qwen/Qwen3-32B"}, told=False)
    assert found.agreed == frozenset()
    assert next_step(Course(("gpu01",), Options(), serving=found)).what == "stop"


@pytest.mark.parametrize(
    ("flag", "out", "drained"),
    [
        (None, set(), set()),
        ({"by": "bob"}, {"emb1"}, {"emb1"}),
        ({"by": "go-live"}, {"emb1"}, set()),
    ],
)
def test_a_drain_of_a_go_live_ends_with_its_turn(flag: Any, out: Any, drained: Any) -> None:
    found = BOTH.seen(["emb1"], {"emb1": {"answers": True, "drain": flag, "model": "emb"}})
    assert (found.out, found.drained) == (out, drained)
