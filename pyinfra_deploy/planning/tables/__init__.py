"""The compatibility tables: YAML beside this file, read once, checked strictly, every row with
where it is from. To extend a table is to add a row; a row that is wrong stops what would use it,
with the file, the row and what is wrong (TableError).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from pyinfra_deploy.planning.tables.rows import (
    Architectures,
    CudaDrivers,
    EngineArguments,
    Findings,
    GpuModels,
    Quantisations,
    Row,
    VllmVersions,
    XidCodes,
)

DIRECTORY = Path(__file__).parent

_Table = TypeVar("_Table", bound=Row)
# libyaml parses ten times faster than the pure Python parser.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TableError(Exception):
    """A table is wrong. A defect of this checkout, never of a host."""


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader, which refuses a key that stands twice instead of dropping the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        value: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(value) != len(node.value):
            names = [key.value for key, _ in node.value]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise yaml.constructor.ConstructorError(
                None, None, f"key twice: {', '.join(twice)}", node.start_mark
            )
        return value


def parse(text: str, kind: type[_Table], name: str) -> _Table:
    """A table from its text. Raises TableError with the table's name, the row and the reason."""
    try:
        value = yaml.load(text, _Loader)  # noqa: S506 -- a subclass of the safe loader
        return kind.model_validate(value)
    except yaml.YAMLError as error:
        raise TableError(f"{name}: is not YAML as a table needs it: {error}") from error
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


def _read(name: str, kind: type[_Table]) -> _Table:
    return parse((DIRECTORY / name).read_text(encoding="utf-8"), kind, name)


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
def findings() -> Findings:
    return _read("findings.yml", Findings)
