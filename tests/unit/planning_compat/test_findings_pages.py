"""The table of findings, the code and docs/findings are in step."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pyinfra_deploy.cli import main
from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.findings_table import finding_row, known_ids, pages

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
ID = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)+")
# Files in which an id reaches Finding by a variable. It is a literal elsewhere in them.
INDIRECT = {"hardware_health.py", "layout_rules.py"}
# Finding itself, and functions that stand before it with the same first two arguments.
MAKERS = {"Finding", "_finding"}


def _calls() -> list[tuple[Path, ast.Call]]:
    return [
        (path, node)
        for path in sorted((ROOT / "pyinfra_deploy").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", None)) in MAKERS
    ]


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if named is not None:
        return named
    return call.args[position] if position < len(call.args) else None


def _texts(node: ast.expr | None) -> list[str]:
    """Literal texts, also those of both arms of a conditional expression."""
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def test_every_id_in_the_code_is_in_the_table_with_its_severity() -> None:
    wrong = []
    for path, call in _calls():
        where = f"{path.name}:{call.lineno}"
        found = _texts(_argument(call, 0, "id"))
        is_maker = getattr(call.func, "id", None) == "Finding"
        if not found and is_maker and path.name not in INDIRECT:
            wrong.append(f"{where}: the id is no literal")
        for identifier in found:
            row = finding_row(identifier)
            if row is None:
                wrong.append(f"{where}: {identifier} is not in findings.yml")
                continue
            given = set(_texts(_argument(call, 1, "severity")))
            if not given <= set(row.severity):
                wrong.append(
                    f"{where}: {identifier} is given {given}, the table has {row.severity}"
                )
    assert not wrong, "\n".join(wrong)


def test_every_id_of_the_table_is_used() -> None:
    used = {
        node.value
        for path in (ROOT / "pyinfra_deploy").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and ID.fullmatch(node.value)
    }
    assert sorted(set(known_ids()) - used) == []


def test_the_pages_are_up_to_date() -> None:
    wanted = pages()
    found = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / "docs/findings").glob("*.md")
    }
    differ = sorted(n for n in {*wanted, *found} if wanted.get(n) != found.get(n))
    assert differ == [], "run: fleet findings docs"


def test_every_page_says_what_to_do() -> None:
    made = pages()
    for row in tables.findings().findings:
        page = made[f"{row.id}.md"]
        assert row.fix in page
        assert row.source in page
        assert f"[{row.id}]({row.id}.md)" in made["README.md"]
        can = "refuse" in row.severity and row.acceptable
        assert ("accept_findings:" in page) == can


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["findings", "docs", "--check"]) == 1
    assert "run `fleet findings docs`" in capsys.readouterr().err
    assert main(["findings", "docs"]) == 0
    assert main(["findings", "docs", "--check"]) == 0
    (tmp_path / "docs/findings/gpu.gone.md").write_text("old", encoding="utf-8")
    (tmp_path / "docs/findings/gpu.hang.md").write_text("old", encoding="utf-8")
    assert main(["findings", "docs", "--check"]) == 1
    assert main(["findings", "docs"]) == 0
    assert not (tmp_path / "docs/findings/gpu.gone.md").exists()
    capsys.readouterr()
    assert main(["findings", "docs", "--check"]) == 0
    assert main(["findings", "show", "gpu.pcie-width"]) == 0
    shown = capsys.readouterr().out
    assert "reseat" in shown
    assert "Source:" in shown
    assert main(["findings", "show", "gpu.pcie-widht"]) == 1
    assert "did you mean gpu.pcie-width" in capsys.readouterr().err


def test_every_id_is_named_by_a_test() -> None:
    """A finding that no test asks for may never be said, or always."""
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tests" / "unit").rglob("*.yml")]
    named = {found[0] for path in tests for found in ID.finditer(path.read_text(encoding="utf-8"))}
    assert [identifier for identifier in known_ids() if identifier not in named] == []
