"""The compatibility tables: YAML beside this file, read once, checked strictly, every row with
where it is from. To extend a table is to add a row; a row that is wrong stops what would use it,
with the file, the row and what is wrong (TableError).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import ValidationError

from pyinfra_deploy.planning.tables.rows import (
    Architectures,
    BmcCooling,
    CudaDrivers,
    EngineArguments,
    Findings,
    GpuModels,
    Quantisations,
    Row,
    VllmVersions,
    XidCodes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTORY = Path(__file__).parent

_Table = TypeVar("_Table", bound=Row)
# libyaml parses ten times faster than the pure Python parser.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TableError(Exception):
    """A table is wrong. A defect of this checkout, never of a host."""


def _plain(node: yaml.Node) -> Any:
    """A node's value: text, whole numbers, true, false, null, lists and mappings, nothing else
    (a third of PyYAML's own time, which is that of all tables). Raises yaml.MarkedYAMLError."""
    if isinstance(node, yaml.ScalarNode):
        convert = _SCALARS.get(node.tag)
        if convert is None or (node.tag == _BOOL and node.value not in ("true", "false")):
            raise yaml.MarkedYAMLError(
                problem=f"{node.value} needs quotes", problem_mark=node.start_mark
            )
        return convert(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    value = {_plain(key): _plain(item) for key, item in node.value}
    if len(value) != len(node.value):
        names = [key.value for key, _ in node.value]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise yaml.MarkedYAMLError(
            problem=f"key twice: {', '.join(twice)}", problem_mark=node.start_mark
        )
    return value


_BOOL = "tag:yaml.org,2002:bool"
_SCALARS: dict[str, Callable[[str], Any]] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    _BOOL: lambda text: text == "true",
    "tag:yaml.org,2002:null": lambda _: None,
}


def parse(text: str, kind: type[_Table], name: str) -> _Table:
    """A table from its text. Raises TableError with the table's name, the row and the reason."""
    try:
        node = yaml.compose(text, _Loader)
        value = None if node is None else _plain(node)
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise TableError(f"{name}: is not YAML as a table needs it: {error}") from error
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        lines = [f"{_place(value, e['loc'])}: {e['msg']}" for e in error.errors()]
        raise TableError(f"{name}: " + "; ".join(lines)) from error


def _place(value: Any, path: tuple[int | str, ...]) -> str:
    """Where in the table, rows by their first key: versions[vllm 0.8.5].python."""
    text = ""
    for key in path:
        step = _step(value, key)
        if isinstance(key, int) and isinstance(step, dict) and step:
            first, named = next(iter(step.items()))
            text += f"[{first} {named}]"
        elif isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{key}" if text else key
        value = step
    return text or "the table"


def _step(value: Any, key: int | str) -> Any:
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return value[key]
    return None


def text_of(name: str) -> str:
    return (DIRECTORY / name).read_text(encoding="utf-8")


def _read(name: str, kind: type[_Table]) -> _Table:
    return parse(text_of(name), kind, name)


@functools.cache
def vllm_versions() -> VllmVersions:
    return _read("vllm_versions.yml", VllmVersions)


@functools.cache
def cuda_drivers() -> CudaDrivers:
    return _read("cuda_drivers.yml", CudaDrivers)


@functools.cache
def architectures() -> Architectures:
    return _read("architectures.yml", Architectures)


@functools.cache
def quantisations() -> Quantisations:
    return _read("compute_capability.yml", Quantisations)


@functools.cache
def gpu_models() -> GpuModels:
    return _read("gpu_models.yml", GpuModels)


@functools.cache
def engine_arguments() -> EngineArguments:
    return _read("engine_arguments.yml", EngineArguments)


@functools.cache
def xid_codes() -> XidCodes:
    return _read("xid.yml", XidCodes)


@functools.cache
def bmc_cooling() -> BmcCooling:
    return _read("bmc_cooling.yml", BmcCooling)


@functools.cache
def findings() -> Findings:
    return _read("findings.yml", Findings)
