"""Commands around a run: what they get, and what their failures do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pyinfra_deploy import hooks
from pyinfra_deploy.rollout import record
from pyinfra_deploy.rollout.console import Console
from pyinfra_deploy.rollout.policy import Course, Options
from pyinfra_deploy.settings.fleet import load_fleet
from tests.fakes.repository import GOOD

if TYPE_CHECKING:
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet
    from tests.fakes.repository import Repository

KEEP = "#!/bin/sh\ncat > $1.$(ls | grep -c ^told)\necho token=hunter22abc\nexit ${2:-0}\n"


class World:
    def __init__(self, repository: Repository) -> None:
        self.repository, self.said = repository, list[str]()
        repository.write("hooks/keep", KEEP).chmod(0o755)

    def fleet(self, **settings: Any) -> Fleet:
        text = yaml.safe_dump({"hooks": settings})
        self.repository.write("group_vars/prod.yml", f"{GOOD}{text}")
        return load_fleet("prod", self.repository.root)

    def around(self, fleet: Fleet, code: int = 0, **facts: Any) -> int:
        self.ran = False

        def run() -> int:
            self.ran = True
            return code

        return hooks.around(fleet, {"kind": "deploy", **facts}, run, dict, self.said.append)

    def told(self) -> list[dict[str, Any]]:
        paths = sorted(self.repository.root.glob("told.*"))
        return [json.loads(path.read_text()) for path in paths]


@pytest.fixture
def there(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv(hooks.WITHIN, raising=False)
    return World(repository)


EACH = {phase: [["hooks/keep", "told"]] for phase in ("before", "after", "on_failure")}


def test_before_and_after_get_the_facts_masked(there: World) -> None:
    why = "password=hunter22"
    assert there.around(there.fleet(**EACH), hosts=["gpu01"], why=why) == 0
    before, after = there.told()
    assert (before["phase"], before["kind"], before["inventory"]) == ("before", "deploy", "prod")
    assert before["hosts"] == ["gpu01"]
    assert "hunter22" not in json.dumps([before, after])
    assert "code" not in before
    assert (after["phase"], after["code"]) == ("after", 0)
    assert there.said == []


@pytest.mark.parametrize(("when", "code"), [("before", 130), ("after", 5)])
def test_an_interrupt_in_a_hook_is_no_traceback(
    there: World, monkeypatch: pytest.MonkeyPatch, when: str, code: int
) -> None:
    fleet = there.fleet(**{when: [["hooks/keep", "told"]]})

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hooks, "_call", interrupted)
    assert there.around(fleet, 5) == code
    assert there.ran is (when == "after")
    assert there.said[0].startswith("interrupted in a hook")


def test_a_failed_run_is_told_twice(there: World) -> None:
    assert there.around(there.fleet(**EACH), 5) == 5
    assert [(one["phase"], one.get("code")) for one in there.told()] == [
        ("before", None), ("on_failure", 5), ("after", 5),
    ]  # fmt: skip


@pytest.mark.parametrize(("setting", "ran"), [("stop", False), ("warn", True)])
def test_what_a_failing_hook_before_does(there: World, setting: str, ran: bool) -> None:
    fleet = there.fleet(before=[["hooks/keep", "told", "7"]], when_failing=setting)
    assert there.around(fleet) == (0 if ran else hooks.NOT_BEGUN)
    assert there.ran is ran
    assert there.said[0] == "hooks.before: hooks/keep: it ended with 7"
    assert "hunter22" not in "".join(there.said)
    assert any("not begun" in line for line in there.said) is not ran


def test_a_failing_hook_after_does_not_change_the_exit_code(there: World) -> None:
    assert there.around(there.fleet(after=[["hooks/keep", "told", "7"]])) == 0
    assert there.said[0] == "hooks.after: hooks/keep: it ended with 7"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["no-such-program-at-all"], "it could not be run: No such file or directory"),
        (["sleep", "600"], "it had not ended after 1 s"),
    ],
)
def test_one_that_does_not_run_or_does_not_end(there: World, command: list[str], why: str) -> None:
    there.around(there.fleet(after=[command], timeout_seconds=1))
    assert there.said == [f"hooks.after: {command[0]}: {why}"]


def test_the_commands_of_a_runbook_have_none(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hooks.WITHIN, "1")
    assert there.around(there.fleet(**EACH), 3) == 3
    assert there.told() == []


def test_a_rollout_tells_what_became_of_it(there: World, tmp_path: Path) -> None:
    fleet, options = there.fleet(**EACH), Options()
    console = Console(
        record.begin(tmp_path, "prod", "ro1", kind="rollout", owner="ada", options=options,
                     groups=[["gpu01"]], hosts={"gpu01": {"from": "r1", "to": "r2"}}),
        Course(("gpu01",), options),
    )  # fmt: skip

    def run() -> int:
        console.record.end("complete", "", 0)
        return 0

    assert hooks.around_rollout(fleet, console, run) == 0
    before, after = there.told()
    assert before["hosts"] == {"gpu01": {"from": "r1", "to": "r2"}}
    assert after["end"]["what"] == "complete"
    assert after["report"].endswith("prod/ro1.html")


def test_a_rollout_that_a_hook_stops_is_in_its_record(there: World, tmp_path: Path) -> None:
    fleet, options = there.fleet(before=[["hooks/keep", "told", "7"]]), Options()
    console = Console(
        record.begin(tmp_path, "prod", "ro1", kind="rollout", owner="ada", options=options,
                     groups=[], hosts={}), Course((), options),
    )  # fmt: skip
    assert hooks.around_rollout(fleet, console, lambda: 99) == hooks.NOT_BEGUN
    assert console.record.document["end"]["what"] == "not begun"
