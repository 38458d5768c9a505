"""fleet-host as a zipapp: commands, exit codes, and always one JSON document."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipapp
from pathlib import Path
from typing import Any

import fleet_host
import pytest
from fleet_host import __main__ as program

PACKAGE = Path(fleet_host.__file__).parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """{llm_root}/bin/fleet-host from the package's files, as the deploy packs them."""
    root = tmp_path_factory.mktemp("llm")
    source = root / "source"
    (source / "fleet_host").mkdir(parents=True)
    for module in PACKAGE.glob("*.py"):
        (source / "fleet_host" / module.name).write_bytes(module.read_bytes())
    (root / "bin").mkdir()
    target = root / "bin" / "fleet-host"
    zipapp.create_archive(
        source, target, interpreter="/usr/bin/env python3", main="fleet_host.__main__:main"
    )
    return target


def call(built: Path, *words: str, stdin: str = "{}") -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-I", str(built), *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_version_is_the_files_own_digest(built: Path) -> None:
    digest = hashlib.sha256(built.read_bytes()).hexdigest()
    assert call(built, "version", stdin="") == (0, {"program": digest, "schema": 1})


def test_llm_root_follows_from_where_the_program_is(built: Path) -> None:
    (built.parent.parent / "jobs").mkdir(exist_ok=True)
    code, answer = call(built, "job", "status", stdin='{"kind": "pull", "id": "none"}')
    assert (code, answer["state"]) == (0, "absent")


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["no", "such"], "{}"),
        ([], "{}"),
        (["version", "extra"], "{}"),
        (["version"], "not json"),
        (["version"], "[1]"),
        (["job", "run", "pull"], ""),
        (["job", "status"], '{"kind": "nothing"}'),
    ],
)
def test_bad_usage_is_exit_2_with_a_reason(built: Path, words: list[str], stdin: str) -> None:
    code, answer = call(built, *words, stdin=stdin)
    assert code == 2
    assert all(answer["error"][key] for key in ("what", "why", "fix"))


def test_a_refusal_is_exit_1(built: Path) -> None:
    code, answer = call(built, "model", "verify", stdin='{"path": "/nonexistent/model"}')
    assert code == 1
    assert "not a published model" in answer["error"]["what"]


def test_a_defect_still_answers_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_request: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(program, "resolve", lambda _: broken)
    monkeypatch.setattr(program, "read_request", lambda *_: {})
    code, answer = program.answer(["version"])
    assert code == 1
    assert any("ZeroDivisionError" in line for line in answer["error"]["detail"])


def test_every_command_resolves() -> None:
    for reference in program.COMMANDS.values():
        assert callable(program.resolve(reference))
