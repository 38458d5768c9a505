"""`fleet model verify` and `fleet audit`: exit codes, what is kept of hosts' logs, what is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy import audit_commands, cli
from pyinfra_deploy.keys import audit_heads
from pyinfra_deploy.model import verify
from pyinfra_deploy.operations import verify_steps
from pyinfra_deploy.settings.problems import SettingsError
from tests.fakes.pyinfra_host import ROOT, PyinfraWorld, refusal

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.fakes.repository import Repository

ROW = {"name": "o--n/master", "model_digest": "d", "files": 3, "bytes": 5_000_000_000,
       "hashed": 0, "damaged": [], "extra": [], "broken": [], "engines": []}  # fmt: skip
BAD = {**ROW, "hashed": 3, "damaged": [{"path": "a", "problem": "is missing"}], "extra": ["x"]}


def answering(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, answers: dict[str, Any]
) -> list[dict[str, str]]:
    """What the hosts were asked."""
    asked: list[dict[str, str]] = []

    def ask(_fleet: Any, hosts: Any, _deploy: str, data: Any, *_: Any) -> Any:
        asked.append(dict(data))
        return {host: answers[host] for host in hosts if host in answers}, "what pyinfra said"

    monkeypatch.setattr(module, "ask", ask)
    return asked


# --- fleet model verify


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ({"gpu01": {"models": [ROW]}}, 0, "o--n/master, 5.00 GB: as it was verified (0 of 3"),
        ({"gpu01": {"models": []}}, 0, "has no model"),
        ({"gpu01": {"models": [], "skipped": ["o--n/v2"]}}, 0, "o--n/v2 is left out"),
        ({"gpu01": {"models": [BAD], "wrong": ["what", "  fix: deploy"]}}, 1, "fix: deploy"),
        ({"gpu01": {"refused": ["no program"]}}, 2, "no program"),
        ({}, 2, "not reached"),
    ],
)
def test_the_exit_code_tells_damage_from_a_host_that_did_not_answer(
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, Any],
    code: int,
    said: str,
) -> None:
    asked = answering(monkeypatch, verify, answers)
    assert cli.main(["model", "verify", "prod", "--limit", "gpu01"]) == code
    assert said in capsys.readouterr().out
    assert asked == [{"deep": "no"}]


def test_every_wrong_file_has_its_line() -> None:
    lines = verify.report("gpu01", {"models": [BAD]})
    assert lines == [
        "gpu01: o--n/master, 5.00 GB: 2 THINGS ARE WRONG (3 of 3 files hashed)",
        "    a is missing",
        "    x does not belong to the model",
    ]


def test_deep_and_the_model_are_asked_for(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answering(monkeypatch, verify, {"gpu01": {"models": [ROW]}})
    words = [
        "model",
        "verify",
        "prod",
        "--limit",
        "gpu01",
        "--deep",
        "--model",
        "o--n/master",
        "--json",
    ]
    assert cli.main(words) == 0
    assert asked == [{"deep": "yes", "models": "o--n/master"}]
    assert json.loads(capsys.readouterr().out)["gpu01"]["models"] == [ROW]


def told_after(world: PyinfraWorld, path: Path, status: Any) -> Any:
    world.script.says("job status", status)
    world.run(verify_steps.verify_models, models=[], deep=True, llm_root=ROOT, told=path)
    return json.loads(path.read_text())


def test_a_host_s_job_is_asked_and_its_answer_kept(world: PyinfraWorld, tmp_path: Path) -> None:
    done = {"state": "done", "result": {"models": [ROW]}}
    assert told_after(world, tmp_path / "told", done) == {"models": [ROW]}
    first = world.script.sent[0].spec
    assert (first["kind"], first["spec"]) == ("verify", {"models": None, "deep": True})


def test_damage_is_kept_with_what_to_do(world: PyinfraWorld, tmp_path: Path) -> None:
    error = refusal("o--n/master is not as it was verified", "a is missing", "deploy")["error"]
    failed = {"state": "failed", "error": error, "result": {"models": [BAD]}}
    told = told_after(world, tmp_path / "told", failed)
    assert told["models"] == [BAD]
    assert "  fix: deploy" in told["wrong"]


def test_a_job_that_broke_is_no_damage(world: PyinfraWorld, tmp_path: Path) -> None:
    failed = {"state": "failed", "error": refusal("it was killed", "oom", "again")["error"]}
    told = told_after(world, tmp_path / "told", failed)
    assert told["refused"][0] == "it was killed"


# --- fleet audit


def whole(events: int, head: str) -> dict[str, Any]:
    return {"events": events, "head": head, "last": {"when": "2026-11-30T10:00:00Z"}}


def heads(repository: Repository) -> Any:
    return json.loads((repository.root / "inventories/prod/audit.json").read_text())["hosts"]


def test_what_was_seen_of_a_host_is_kept_with_the_inventory(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, audit_commands, {"gpu01": whole(4, "a" * 64)})
    assert cli.main(["audit", "verify", "prod", "--limit", "gpu01"]) == 0
    assert "gpu01: whole, 4 events, seen for the first time" in capsys.readouterr().out
    assert heads(repository)["gpu01"] == {
        "events": 4, "head": "a" * 64, "when": "2026-11-30T10:00:00Z",
    }  # fmt: skip
    answering(monkeypatch, audit_commands, {"gpu01": whole(7, "b" * 64)})
    assert cli.main(["audit", "verify", "prod", "--limit", "gpu01"]) == 0
    assert "3 since 2026-11-30T10:00:00Z" in capsys.readouterr().out
    assert heads(repository)["gpu01"]["events"] == 7


@pytest.mark.parametrize(
    ("refused", "code", "said"),
    [
        ("the event log is broken at line 3 of x", 1, "BROKEN"),
        ("the event log x is not the one that was verified before", 1, "BROKEN"),
        ("sudo asks for a password", 2, "NOT READ"),
    ],
)
def test_a_log_that_is_not_whole_never_replaces_what_was_seen(
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: str,
    code: int,
    said: str,
) -> None:
    answering(monkeypatch, audit_commands, {"gpu01": whole(4, "a" * 64)})
    cli.main(["audit", "verify", "prod", "--limit", "gpu01"])
    answering(monkeypatch, audit_commands, {"gpu01": {"refused": [refused, "  fix: x"]}})
    assert cli.main(["audit", "verify", "prod", "--limit", "gpu01"]) == code
    assert said in capsys.readouterr().out
    assert heads(repository)["gpu01"]["head"] == "a" * 64


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2, "hosts": {}}', '{"schema": 1}'])
def test_heads_that_cannot_be_read_stop_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(SettingsError, match="restore it"):
        audit_heads.read_heads(tmp_path / "audit.json")


def test_events_are_told_in_a_line_each(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"when": "2026-11-30T10:00:00Z", "who": "alice@desk", "what": "went live",
             "engine": "main", "model_digest": "d" * 4, "seconds": 3, "previous": "0"}  # fmt: skip
    asked = answering(monkeypatch, audit_commands, {"gpu01": {"events": [event]}})
    words = ["audit", "show", "prod", "--limit", "gpu01", "--lines", "5", "--containing", "main"]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == (
        "gpu01  2026-11-30T10:00:00Z  alice@desk  went live: engine=main, model_digest=dddd, "
        "seconds=3\n"
    )
    assert asked == [{"events": "tail", "events_lines": "5", "containing": "main"}]
