"""The project's own files, and what its modules import: read from their text, nothing is run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SKIPPED = {"__pycache__", "build", "dist", ".git", ".venv", ".fleet"}
# What `make lab` writes for its own inventory.
GENERATED = ROOT / "inventories" / "lab"


@cache
def project_files() -> tuple[Path, ...]:
    return tuple(sorted(_walk(ROOT)))


def _walk(directory: Path) -> list[Path]:
    found: list[Path] = []
    for path in directory.iterdir():
        hidden = path.name.startswith(".") and path.name not in (".ci", ".gitignore")
        if path.name in SKIPPED or hidden or path.name.endswith(".egg-info") or path == GENERATED:
            continue
        found += _walk(path) if path.is_dir() and not path.is_symlink() else [path]
    return found


@dataclass(frozen=True)
class Import:
    """One imported module. runtime: not only for type checkers."""

    name: str
    line: int
    runtime: bool


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every module that a file imports, also inside functions; relative names made absolute."""
    found: list[Import] = []
    _collect(parsed(path), path, True, found)
    return tuple(found)


def _collect(node: ast.AST, path: Path, runtime: bool, found: list[Import]) -> None:
    if isinstance(node, ast.expr):
        return  # no import is inside an expression, and most of a tree is
    if isinstance(node, ast.Import):
        found += [Import(alias.name, node.lineno, runtime) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = ".".join(path.relative_to(ROOT).parts[: -node.level]) if node.level else ""
        name = ".".join(part for part in (base, node.module) if part)
        found.append(Import(name, node.lineno, runtime))
        # `from package import module` names a module too.
        modules = (f"{name}.{alias.name}" for alias in node.names)
        found += [Import(one, node.lineno, runtime) for one in modules if is_module(one)]
    elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        for statement in node.body:
            _collect(statement, path, False, found)
    else:
        for child in ast.iter_child_nodes(node):
            _collect(child, path, runtime, found)


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def python_files(*directories: str) -> list[Path]:
    wanted = [ROOT / directory for directory in directories]
    return [
        path
        for path in project_files()
        if path.suffix == ".py" and any(path == one or one in path.parents for one in wanted)
    ]


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"
