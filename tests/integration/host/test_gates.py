"""What a release has to pass before it counts, and the one way back where it does not."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import engine, events, golive, hold, rejected, release, snapshot
from fleet_host.errors import HostError, SpecError
from fleet_host.status import Progress

from tests.integration.host.test_golive import killed_at, started

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost


def gates(**more: Any) -> dict[str, Any]:
    return {"answer_seconds": 0.5, "soak_seconds": 0, "pause_seconds": 0.05, **more}


def golden(*must_contain: str) -> dict[str, Any]:
    return {"prompt": "two and two?", "must_contain": list(must_contain), "chat": False}


@pytest.fixture
def upgrade(host: FakeHost) -> FakeHost:
    """r1 serves, r2 is staged."""
    for identity in ("r1", "r2"):
        release.stage(host.release_request(identity))
    golive.run(host.golive_spec("r1"), Progress(None))
    return host


def go(host: FakeHost, asked: dict[str, Any], identity: str = "r2") -> dict[str, Any]:
    return golive.run(host.golive_spec(identity, gates=asked), Progress(None))


def went_back(host: FakeHost, asked: dict[str, Any]) -> HostError:
    with pytest.raises(HostError, match="release r1 serves again") as caught:
        go(host, asked)
    assert (host.linked("current"), host.linked("previous")) == ("r1", None)
    assert started(host) == "r1"
    assert host.golive_record()["phase"] == "reverted"
    assert not host.flag.exists()
    return caught.value


def test_gates_that_are_passed_are_told_with_their_figures(upgrade: FakeHost) -> None:
    result = go(upgrade, gates(soak_seconds=1, golden=[golden("fo", "ur")]))
    asked = result["gates"]["soak"]["asked"]
    assert asked > 3
    assert result["gates"]["soak"]["failed"] == 0
    assert result["gates"]["golden"][0]["prompt"] == "two and two?"
    went_live = events.tail({"lines": 1})["events"][0]
    assert (went_live["what"], went_live["gates"]["soak"]["asked"]) == ("went live", asked)
    assert upgrade.linked("current") == "r2"
    assert not upgrade.flag.exists()


def test_a_wrong_answer_to_a_golden_prompt_goes_back(upgrade: FakeHost) -> None:
    error = went_back(upgrade, gates(golden=[golden("five")]))
    assert error.why == ("The golden prompt 'two and two?' was answered ' four', without 'five'.")


def test_what_went_back_comes_again_only_behind_gates(upgrade: FakeHost) -> None:
    went_back(upgrade, gates(golden=[golden("five")]))
    entry = snapshot.engine_state(str(upgrade.llm_root), "main")["rejected"]["r2"]
    assert "without 'five'" in entry["why"]
    before = upgrade.calls()
    with pytest.raises(HostError, match="r2 of engine main was taken back") as caught:
        golive.run(upgrade.golive_spec("r2"), Progress(None))
    assert "without 'five'" in caught.value.why
    assert "fleet rollout" in caught.value.fix
    assert (upgrade.calls(), upgrade.linked("current")) == (before, "r1")
    # Another release, and the one that serves, are not concerned.
    assert golive.run(upgrade.golive_spec("r1"), Progress(None))["release"] == "r1"
    assert go(upgrade, gates(golden=[golden("four")]))["changed"]
    assert rejected.read("main") == {}
    assert golive.run(upgrade.golive_spec("r2"), Progress(None))["changed"] is False


def test_a_go_live_that_undoes_another_says_what_it_rejects(upgrade: FakeHost) -> None:
    go(upgrade, gates())
    why = {"release": "r2", "why": "it went live, and then: no"}
    golive.run(upgrade.golive_spec("r1", rejects=why), Progress(None))
    assert rejected.read("main")["r2"]["why"] == "it went live, and then: no"


def test_without_gates_a_release_that_fails_may_come_again(upgrade: FakeHost) -> None:
    """A deploy of its own is tried as often as somebody likes."""
    release.stage(upgrade.release_request("r3", behave="die"))
    for _ in range(2):
        with pytest.raises(HostError, match="release r1 serves again"):
            golive.run(upgrade.golive_spec("r3"), Progress(None))
    assert rejected.read("main") == {}


def test_the_newest_are_remembered(host: FakeHost) -> None:
    for number in range(rejected.MOST + 3):
        rejected.keep("main", f"r{number}", "x" * 9999, "run")
    rejected.keep("main", "r3", "again", "run")
    found = rejected.read("main")
    assert (len(found), list(found)[-1]) == (rejected.MOST, "r3")
    assert max(len(one["why"]) for one in found.values()) == rejected.WHY_CHARACTERS


def test_a_prompt_through_chat_is_judged_the_same(upgrade: FakeHost) -> None:
    asked = {**golden("four"), "chat": True}
    assert go(upgrade, gates(golden=[asked]))["changed"]


def test_an_engine_that_answers_too_late_goes_back(upgrade: FakeHost) -> None:
    stuck_once_it_serves(upgrade)
    error = went_back(upgrade, gates(soak_seconds=5))
    assert "1 of 1 questions" in error.why or "1 of " in error.why
    assert "rollout.answer_seconds = 0.5" in error.why


def stuck_once_it_serves(host: FakeHost) -> None:
    """r2 answers its first completion, then nobody until r1 is started again."""

    def wait() -> None:
        while not (host.home / "golive.json").exists() or (
            host.golive_record()["phase"] != "judging"
        ):
            time.sleep(0.005)
        (host.unit / "stuck").touch()
        while host.golive_record()["phase"] != "reverting":
            time.sleep(0.005)
        (host.unit / "stuck").unlink()

    threading.Thread(target=wait, daemon=True).start()


def test_some_questions_may_fail_where_the_budget_says_so(
    upgrade: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleet_host import probe

    asked: list[int] = []
    real = probe.completion

    def every_third_fails(*arguments: Any) -> str:
        asked.append(1)
        if len(asked) % 3 == 0:
            raise probe.NotReadyError("POST /v1/completions was answered 500")
        return real(*arguments)

    monkeypatch.setattr(probe, "completion", every_third_fails)
    result = go(upgrade, gates(soak_seconds=1, error_budget=0.5))
    assert 0 < result["gates"]["soak"]["failed"] < result["gates"]["soak"]["asked"]
    release.stage(upgrade.release_request("r3"))
    with pytest.raises(HostError) as caught:
        go(upgrade, gates(soak_seconds=1, error_budget=0.1), "r3")
    assert "more than rollout.error_budget_percent = 10 allows" in caught.value.why
    assert "was answered 500" in caught.value.why
    assert upgrade.linked("current") == "r2"


def test_an_engine_that_dies_in_its_soak_goes_back_whatever_the_budget(upgrade: FakeHost) -> None:
    def kill() -> None:
        while upgrade.golive_record()["phase"] != "judging":
            time.sleep(0.005)
        time.sleep(0.2)
        upgrade.end_engine()

    threading.Thread(target=kill, daemon=True).start()
    error = went_back(upgrade, gates(soak_seconds=30, error_budget=0.99))
    assert error.why.startswith("It died during its soak: llm-engine@main.service ended")
    assert "loading r2" in error.detail


def test_nobody_is_let_in_before_the_gates_are_passed(upgrade: FakeHost) -> None:
    seen: list[bool] = []

    def look() -> None:
        while upgrade.golive_record()["phase"] != "judging":
            time.sleep(0.005)
        time.sleep(0.2)
        seen.append(upgrade.flag.exists())

    thread = threading.Thread(target=look)
    thread.start()
    # Nothing is drained first: the flag is the gates' own.
    spec = upgrade.golive_spec("r2", gates=gates(soak_seconds=1), drain_seconds=0)
    golive.run(spec, Progress(None))
    thread.join()
    assert seen == [True]
    assert not upgrade.flag.exists()


def test_killed_in_its_gates_it_has_to_pass_them_again(upgrade: FakeHost) -> None:
    """It serves already then, and is not what was live before."""
    killed_at(upgrade, "r2", "judging", gates=gates(soak_seconds=60))
    assert upgrade.linked("current") == "r2"
    went_back(upgrade, gates(golden=[golden("five")]))


def test_a_deploy_without_gates_ends_what_was_killed_in_them(upgrade: FakeHost) -> None:
    killed_at(upgrade, "r2", "judging", gates=gates(soak_seconds=60))
    assert golive.run(upgrade.golive_spec("r2"), Progress(None))["changed"]
    assert (upgrade.golive_record()["phase"], upgrade.linked("current")) == ("done", "r2")


@pytest.mark.parametrize("asked", [{"gates": []}, {"gates": {"error_budget": 1.0}},
                                   {"gates": gates(golden=["x"])}])  # fmt: skip
def test_gates_that_cannot_be_read_are_refused_before_anything(
    upgrade: FakeHost, asked: dict[str, Any]
) -> None:
    before = upgrade.calls()
    with pytest.raises(SpecError):
        golive.run(upgrade.golive_spec("r2", **asked), Progress(None))
    assert upgrade.calls() == before


def test_a_hold_ends_when_another_release_goes_live_and_not_before(upgrade: FakeHost) -> None:
    release.stage(upgrade.release_request("r3"))
    begun = {"engine": "main", "kept": "r1", "rejected": ["r2", "r1"], "who": "ada", "why": "slow"}
    assert hold.begin(begun)["changed"]
    assert hold.begin(begun)["changed"] is False
    assert hold.read("main") is not None
    go(upgrade, gates(), "r1")
    assert (hold.read("main") or {})["rejected"] == ["r2"]
    go(upgrade, gates(), "r3")
    assert hold.read("main") is None
    assert [event["what"] for event in events.tail({"lines": 2})["events"]] == [
        "hold ended", "went live",
    ]  # fmt: skip


def test_a_hold_to_what_is_not_there_is_refused_and_one_is_ended_by_hand(
    upgrade: FakeHost,
) -> None:
    begun = {"engine": "main", "kept": "nope", "rejected": ["r2"], "who": "ada", "why": "slow"}
    with pytest.raises(HostError, match="release nope of engine main is not on this host"):
        hold.begin(begun)
    hold.begin({**begun, "kept": "r1"})
    assert json.loads(hold.path("main").read_text())["served_model_name"] == "m"
    assert hold.end({"engine": "main", "who": "ada"})["changed"]
    assert hold.end({"engine": "main", "who": "ada"}) == {"changed": False, "hold": None}
    assert engine.linked("main", "current") == "r1"


def test_a_second_rollback_that_fails_leaves_the_first_ones_hold(upgrade: FakeHost) -> None:
    first = {"engine": "main", "kept": "r1", "rejected": ["r2"], "who": "ada", "why": "slow"}
    before = hold.begin(first)["hold"]
    release.stage(upgrade.release_request("r0"))
    hold.begin({**first, "kept": "r0", "rejected": ["r1", "r2"], "who": "bob"})
    assert (hold.read("main") or {})["kept"] == "r0"
    assert hold.end({"engine": "main", "who": "a rollback", "give_up": True})["changed"]
    assert hold.read("main") == before
    with pytest.raises(HostError, match="r2 of engine main is held back"):
        go(upgrade, gates())
    # By hand it ends, whatever was there before it.
    hold.begin({**first, "kept": "r0", "rejected": ["r1", "r2"], "who": "bob"})
    hold.end({"engine": "main", "who": "ada"})
    assert hold.read("main") is None
    hold.begin(first)
    hold.end({"engine": "main", "who": "a rollback", "give_up": True})
    assert hold.read("main") is None


def test_without_a_name_a_release_is_asked_by_its_own(upgrade: FakeHost) -> None:
    """As a rollback does, whose release may have served its model under another name."""
    release.stage(upgrade.release_request("r4", serves="old-name"))
    unnamed = {"path": "/v1/completions", "model": "", "prompt": "1", "max_tokens": 4}
    spec = upgrade.golive_spec("r4", probe=unnamed, gates=gates(golden=[golden("four")]))
    assert golive.run(spec, Progress(None))["changed"]


def test_a_release_that_a_hold_rejects_does_not_go_live(upgrade: FakeHost) -> None:
    """Also for a deploy that was planned before the hold."""
    hold.begin({"engine": "main", "kept": "r1", "rejected": ["r2"], "who": "ada", "why": "slow"})
    before = upgrade.calls()
    with pytest.raises(HostError, match="release r2 of engine main is held back") as caught:
        go(upgrade, gates())
    assert "fleet unhold" in caught.value.fix
    assert upgrade.calls() == before
    assert upgrade.linked("current") == "r1"
