"""How vLLM turns a field of a configuration class into a command-line argument.

The rules are those of get_kwargs() in vllm/engine/arg_utils.py (0.10 to 0.32): the order in which
the parts of a type hint are looked at decides, so it is the same here.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .vllm_source import Found, Module, value_of, words

if TYPE_CHECKING:
    from collections.abc import Iterator

WRAPPERS = ("Annotated", "SkipValidation", "Final", "Required")
SEQUENCES = ("list", "tuple", "set", "List", "Tuple", "Set", "Sequence")
NUMBERS = ("int", "float")


@dataclass
class Field:
    """A field of a configuration class. `default` is source text, None when it has none."""

    name: str
    module: Module
    annotation: ast.expr
    default: str | None = None
    doc: str = ""


@dataclass
class Hints:
    """The parts of a type hint, by what argparse makes of them."""

    boolean: bool = False
    none: bool = False
    text: bool = False
    literals: list[object] = field(default_factory=list)
    sequence: str = ""
    number: str = ""
    mapping: bool = False
    structure: bool = False  # a dataclass, which is written as JSON
    other: bool = False


def fields_of(found: Found) -> dict[str, Field]:
    """The fields of a class and of the classes that it extends, as dataclasses.fields() has them"""
    if not isinstance(found.node, ast.ClassDef):
        return {}
    result: dict[str, Field] = {}
    for base in reversed(found.node.bases):
        parent = found.module.find(words(base))
        if parent is not None:
            result.update(fields_of(parent))
    body = found.node.body
    for index, statement in enumerate(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        outer = statement.annotation
        kind = words(outer.value if isinstance(outer, ast.Subscript) else outer)
        if kind.split(".")[-1] in ("ClassVar", "InitVar"):
            continue
        name = statement.target.id
        result[name] = Field(
            name,
            found.module,
            statement.annotation,
            _default_text(found.module, statement.value),
            _doc_after(body, index),
        )
    return result


def _doc_after(body: list[ast.stmt], index: int) -> str:
    following = body[index + 1] if index + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return " ".join(str(following.value.value).split())
    return ""


def _default_text(module: Module, value: ast.expr | None) -> str | None:
    """The default as Python source, by way of field(), Field() and names of constants."""
    if isinstance(value, ast.Call) and words(value.func).split(".")[-1] in ("field", "Field"):
        for keyword in value.keywords:
            if keyword.arg == "default":
                return _default_text(module, keyword.value)
            if keyword.arg == "default_factory":
                return _made_by(keyword.value)
        return _default_text(module, value.args[0]) if value.args else None
    return default_text(module, value) if value is not None else None


def _made_by(factory: ast.expr) -> str:
    if isinstance(factory, ast.Lambda):
        return ast.unparse(factory.body)
    name = words(factory)
    return {"list": "[]", "dict": "{}"}.get(name, f"{name}()")


def default_text(module: Module, value: ast.expr) -> str:
    """Source text of a default: constants followed by name (X, Class.field), the rest as it is."""
    if isinstance(value, ast.Name):
        found = module.find(value.id)
        inner = value_of(found.node) if found is not None else None
        if isinstance(inner, (ast.Constant, ast.BinOp)):
            return ast.unparse(inner)
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        found = module.find(value.value.id)
        member = fields_of(found).get(value.attr) if found is not None else None
        if member is not None and member.default is not None:
            return member.default
    return ast.unparse(value)


def hints_of(module: Module, annotation: ast.expr) -> Hints:
    hints = Hints()
    for part, where in _parts(module, annotation, 0):
        _sort(hints, part, where)
    return hints


def _parts(module: Module, node: ast.expr, steps: int) -> Iterator[tuple[ast.expr, Module]]:
    """The members of a union, aliases and Annotated followed."""
    if steps > 20:
        yield node, module
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _parts(module, ast.parse(node.value, mode="eval").body, steps + 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _parts(module, node.left, steps + 1)
        yield from _parts(module, node.right, steps + 1)
    elif isinstance(node, ast.Subscript):
        name = words(node.value).split(".")[-1]
        inner = node.slice
        members = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
        if name == "Optional":
            yield from _parts(module, inner, steps + 1)
            yield ast.Constant(None), module
        elif name == "Union":
            for member in members:
                yield from _parts(module, member, steps + 1)
        elif name in WRAPPERS:
            yield from _parts(module, members[0], steps + 1)
        else:
            yield node, module
    elif isinstance(node, ast.Name) and (found := module.find(node.id)) is not None:
        value = value_of(found.node)
        if value is not None:
            yield from _parts(found.module, value, steps + 1)
        else:
            yield node, module
    else:
        yield node, module


def _sort(hints: Hints, part: ast.expr, module: Module) -> None:
    if isinstance(part, ast.Constant) and part.value is None:
        hints.none = True
        return
    if isinstance(part, ast.Subscript):
        name = words(part.value).split(".")[-1]
        if name == "Literal":
            hints.literals += literals(module, part)
        elif name in SEQUENCES:
            hints.sequence = ast.unparse(part.slice)
            if isinstance(part.slice, ast.Name):
                inner = hints_of(module, part.slice)
                hints.literals += inner.literals
        elif name in ("dict", "Dict", "Mapping"):
            hints.mapping = True
        else:
            hints.other = True
        return
    name = words(part).split(".")[-1]
    if name == "bool":
        hints.boolean = True
    elif name == "str":
        hints.text = True
    elif name in NUMBERS:
        # int is looked at before float.
        hints.number = "int" if "int" in (name, hints.number) else "float"
    elif name in ("dict", "Dict"):
        hints.mapping = True
    elif name in SEQUENCES:
        hints.sequence = "str"
    elif name == "None":
        hints.none = True
    elif (found := module.find(name)) is not None and isinstance(found.node, ast.ClassDef):
        if _is_dataclass(found.node):
            hints.structure = True
        elif any(_is_dict(base) for base in found.node.bases):
            hints.mapping = True
        else:
            hints.other = True
    else:
        hints.other = True


def _is_dict(base: ast.expr) -> bool:
    name = words(base.value if isinstance(base, ast.Subscript) else base)
    return name.split(".")[-1] in ("dict", "Dict")


def _is_dataclass(node: ast.ClassDef) -> bool:
    """vLLM's own decorator @config makes a dataclass too."""
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if words(target).split(".")[-1] in ("dataclass", "config"):
            return True
    return False


def literals(module: Module, node: ast.Subscript) -> list[object]:
    """The values of Literal[...], aliases in it followed."""
    inner = node.slice
    values: list[object] = []
    for member in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
        if isinstance(member, ast.Constant):
            values.append(member.value)
        elif isinstance(member, (ast.Name, ast.Subscript)):
            values += hints_of(module, member).literals
    return values


def shape_of(hints: Hints) -> dict[str, object]:
    """{kind, type, choices} of an argument. kind: boolean (--x and --no-x), value, values (one or
    more), optional (with or without a value)."""
    if hints.structure:
        return {"kind": "value", "type": "json", "choices": None}
    if hints.boolean and hints.text and not (hints.number or hints.literals or hints.sequence):
        return {"kind": "optional", "type": "str", "choices": None}
    if hints.boolean:
        return {"kind": "boolean", "type": "bool", "choices": None}
    if hints.sequence:
        kind = hints.sequence.split(",")[0].strip("'\" ")
        known = kind if kind in NUMBERS else "str"
        choices = sorted(map(str, hints.literals)) if hints.literals and not hints.text else None
        return {"kind": "values", "type": known, "choices": choices}
    if hints.literals:
        choices = None if hints.text else sorted(map(str, hints.literals))
        numeric = all(isinstance(value, int) for value in hints.literals)
        return {"kind": "value", "type": "int" if numeric else "str", "choices": choices}
    if hints.number:
        return {"kind": "value", "type": hints.number, "choices": None}
    if hints.mapping:
        loose = hints.text or hints.other
        return {"kind": "value", "type": "json-or-text" if loose else "json", "choices": None}
    return {"kind": "value", "type": "str", "choices": None}
