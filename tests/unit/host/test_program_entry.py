"""fleet-host's entry: commands, exit codes, and always one JSON document."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import __main__ as program

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The program in this process: (exit code, the document on stdout)."""

    def run(*words: str, stdin: str = "{}") -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr("sys.argv", ["fleet-host", *words])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as caught:
            program.main()
        assert isinstance(caught.value.code, int)
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return caught.value.code, document

    return run


@pytest.mark.parametrize(
    ("words", "stdin", "why"),
    [
        (["no", "such"], "{}", "'no such' is not a command"),
        ([], "{}", "no command was given"),
        (["version", "extra"], "{}", "takes no words"),
        (["version"], "not json", "stdin is not JSON"),
        (["version"], "[1]", "must be a JSON object"),
        (["job", "run", "pull"], "", "takes KIND ID"),
        (["job", "status"], '{"kind": "nothing"}', "a job's kind is one of"),
    ],
)
def test_bad_usage_is_exit_2_with_a_reason(
    call: Any, words: list[str], stdin: str, why: str
) -> None:
    code, answer = call(*words, stdin=stdin)
    assert code == 2
    assert why in answer["error"]["why"]
    assert all(answer["error"][key] for key in ("what", "why", "fix"))


def test_a_refusal_is_exit_1(call: Any) -> None:
    code, answer = call("model", "verify", stdin='{"path": "/nonexistent/model"}')
    assert code == 1
    assert "not a published model" in answer["error"]["what"]


def test_an_answer_is_exit_0(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_LLM_ROOT", str(tmp_path))
    code, answer = call("job", "status", stdin='{"kind": "pull", "id": "none"}')
    assert (code, answer["state"]) == (0, "absent")


def test_a_defect_still_answers_in_json(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_request: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(program, "resolve", lambda _: broken)
    code, answer = call("version")
    assert code == 1
    assert any("ZeroDivisionError" in line for line in answer["error"]["detail"])


def test_every_command_resolves() -> None:
    for reference in program.COMMANDS.values():
        assert callable(program.resolve(reference))
