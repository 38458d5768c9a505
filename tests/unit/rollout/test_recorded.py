"""Deploys and runbooks leave a report, too, and what they print is masked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy import cli, deploy_commands, hooks, recorded, runbook_commands
from pyinfra_deploy.rollout import record
from pyinfra_deploy.settings.fleet import load_fleet
from tests.fakes.repository import HOSTS

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

SAID = "pulling with hf_abcdefghijkl"


def report() -> dict[str, Any]:
    found = record.newest(Path.cwd(), "prod")
    assert found is not None
    page = record.page_of(Path.cwd(), found).read_text()
    assert "hf_abcdefghijkl" not in page
    return found | {"page": page}


@pytest.mark.parametrize(("code", "what"), [(0, "complete"), (3, "failed"), (130, "interrupted")])
def test_a_run_is_kept_with_what_it_said(
    repository: Repository, capsys: pytest.CaptureFixture[str], code: int, what: str
) -> None:
    fleet = load_fleet("prod", repository.root)
    kept = recorded.begin(fleet, "deploy", "ada@desk", ["gpu01"], {"gpu01": {"to": "r2"}})
    say = recorded.teller(kept)

    def act() -> int:
        say(SAID)
        return code

    assert recorded.run(fleet, {"kind": "deploy"}, kept, act) == code
    assert "hf_abcdefghijkl" not in capsys.readouterr().out
    found = report()
    assert (found["kind"], found["end"]["what"], found["end"]["code"]) == ("deploy", what, code)
    assert found["log"] == ["pulling with [masked]"]
    assert "canary" not in found["page"]
    assert f"gpu01: {what}" in found["page"]


@pytest.mark.parametrize(
    ("raised", "what"), [(KeyboardInterrupt(), "by the operator"), (ValueError("x"), "by a defect")]
)
def test_a_run_that_breaks_is_kept(
    repository: Repository, raised: BaseException, what: str
) -> None:
    fleet = load_fleet("prod", repository.root)
    kept = recorded.begin(fleet, "deploy", "ada@desk", ["gpu01"])

    def act() -> int:
        raise raised

    with pytest.raises(type(raised)):
        recorded.run(fleet, {}, kept, act)
    assert what in report()["end"]["why"]


def test_one_that_a_hook_stops_is_kept(repository: Repository) -> None:
    path = repository.root / "group_vars/prod.yml"
    repository.write(
        "group_vars/prod.yml",
        f"{path.read_text()}hooks: {{before: [['false']], when_failing: stop}}\n",
    )
    fleet = load_fleet("prod", repository.root)
    kept = recorded.begin(fleet, "deploy", "ada@desk", ["gpu01"])
    assert recorded.run(fleet, {}, kept, lambda: 0) == hooks.NOT_BEGUN
    assert report()["end"]["what"] == "not begun"


def test_what_pyinfra_prints_of_a_deploy_is_told_line_by_line(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = repository.write("pyinfra", f"#!/bin/sh\necho {SAID}\necho second >&2\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    lines: list[str] = []
    fleet = load_fleet("prod", repository.root)
    assert deploy_commands.run_pyinfra(fleet, ["gpu01"], lines.append) == 7
    assert lines == [SAID, "second"]


def test_a_runbook_has_a_report_and_its_dry_run_has_none(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write("inventories/prod/hosts.yml", HOSTS)

    def run(_book: Any, scene: Any, *, dry: bool) -> int:
        scene.doors.say(SAID)
        return 1

    monkeypatch.setattr(runbook_commands, "run", run)
    words = ["runbook", "run", "prod", "take-out", "gpu01"]
    assert cli.main([*words, "--dry"]) == 1
    assert record.newest(Path.cwd(), "prod") is None
    assert cli.main(words) == 1
    found = report()
    assert (found["kind"], found["log"]) == ("runbook take-out", ["pulling with [masked]"])
    assert list(found["hosts"]) == ["gpu01"]
