"""vLLM's installed source, read by `ast`: names followed through its imports, nothing imported.

Importing vLLM takes 13 s, needs a GPU that it can see, and runs its code; parsing the few files
that define its arguments takes half a second and does neither.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Imports lead from a name to where it is defined in a few steps; a circle must end.
MOST_STEPS = 12


@dataclass(frozen=True)
class Found:
    """A definition: the node, and the module in which its names have their meaning."""

    module: Module
    node: ast.AST


class Module:
    """One parsed file: its top-level names."""

    def __init__(self, source: Source, name: str, path: Path) -> None:
        self.source = source
        self.name = name
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.names: dict[str, ast.AST] = {}
        for statement in _top_level(self.tree.body):
            for name_ in _defined_by(statement):
                self.names[name_] = statement

    def find(self, name: str, steps: int = 0) -> Found | None:
        """Where `name` is defined, through imports; None when it leads out of vLLM."""
        node = self.names.get(name)
        if node is None or steps > MOST_STEPS:
            return None
        if isinstance(node, ast.ImportFrom):
            alias = next(one for one in node.names if (one.asname or one.name) == name)
            return self.source.find(self.absolute(node), alias.name, steps + 1)
        return None if isinstance(node, ast.Import) else Found(self, node)

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that `from ... import` names, dots resolved."""
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        # A package's own __init__ is one level above its modules already.
        drop = node.level - (1 if self.path.name == "__init__.py" else 0)
        package = package[: len(package) - drop] if drop else package
        return ".".join([*package, node.module] if node.module else package)


class Source:
    """The package `vllm` of one environment. Files are parsed when they are asked for."""

    def __init__(self, site_packages: Path) -> None:
        self.site_packages = site_packages
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module of vLLM by its dotted name; None when it is no source file of it."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def _load(self, name: str) -> Module | None:
        if not re.fullmatch(r"vllm(\.\w+)*", name, re.ASCII):
            return None
        base = self.site_packages.joinpath(*name.split("."))
        for path in (base.with_name(base.name + ".py"), base / "__init__.py"):
            if path.is_file():
                return Module(self, name, path)
        return None

    def find(self, module: str, name: str, steps: int = 0) -> Found | None:
        found = self.module(module)
        return found.find(name, steps) if found is not None else None

    @property
    def files_read(self) -> int:
        return sum(1 for module in self._modules.values() if module is not None)


def site_packages_of(environment: Path) -> Path | None:
    """The directory of an environment that holds the package vllm; None when none does."""
    for place in sorted(environment.glob("lib/python3*/site-packages")):
        if (place / "vllm" / "__init__.py").is_file():
            return place
    return None


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run on import; later ones win, as they do when Python runs them."""
    for statement in body:
        if isinstance(statement, ast.If):
            # `if TYPE_CHECKING: ... else: X = str`: what is true when it runs is the else.
            yield from _top_level(statement.body)
            yield from _top_level(statement.orelse)
        elif isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _top_level(handler.body)
            yield from _top_level(statement.body)
        else:
            yield statement


def _defined_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif type(statement).__name__ == "TypeAlias":
        # `type X = ...`, which Python 3.12 and later can parse.
        name = getattr(statement, "name", None)
        if isinstance(name, ast.Name):
            yield name.id


def value_of(node: ast.AST) -> ast.expr | None:
    """What a top-level statement assigns; None for a class or a function."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return node.value
    value = getattr(node, "value", None) if type(node).__name__ == "TypeAlias" else None
    return value if isinstance(value, ast.expr) else None


def words(node: ast.AST | None) -> str:
    """The dotted name of an expression (a.b.c), or empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = words(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def text_of(module: Module, node: ast.AST | None) -> str | None:
    """A text constant, also by name or put together; None when it is not plain text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        found = module.find(node.id)
        value = value_of(found.node) if found is not None else None
        return text_of(found.module, value) if found is not None and value is not None else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(module, node.left), text_of(module, node.right)
        return left + right if left is not None and right is not None else None
    return None
