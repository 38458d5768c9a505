"""What a safetensors file says it holds, and whether the index says the same.

The format (huggingface/safetensors, README "Format"): 8 bytes, the header's length as little-endian
u64; the header, JSON that begins with "{": tensor -> {dtype, shape, data_offsets: [begin, end]}
counted from the header's end, and "__metadata__", text to text; then the data, without gaps and
overlaps up to the end of the file. The loader refuses what breaks this, after minutes of loading.

A file from a hub is a stranger's: no header or index makes this program use more than some 150 MB.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# The loader takes 100 MB. 200,000 tensors have 20 MB, and the largest models 150,000 in all.
LARGEST_HEADER_BYTES = 32 << 20
MOST_TENSORS = 200_000
METADATA = "__metadata__"
BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
TENSOR_KEYS = {"dtype", "shape", "data_offsets"}
SHOWN = 80


class Malformed(Exception):
    """What is wrong with a header or an index, as the end of a sentence that begins with a file."""


class _Tensor(tuple):  # type: ignore[type-arg]
    """(begin, end) of a tensor's data; a type of its own, which no JSON value becomes."""

    __slots__ = ()


def read_header(path: Path) -> dict[str, tuple[int, int]]:
    """Tensor -> (begin, end) of its data, in bytes. Malformed, OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise Malformed("is no safetensors file: its header does not fit into it")
        if length > LARGEST_HEADER_BYTES:
            raise Malformed(f"has a safetensors header of {length} bytes, which no model has")
        raw = file.read(length)
    if not raw.startswith(b"{"):
        raise Malformed("has an unreadable safetensors header: it does not begin with '{'")
    header = _parse(raw, "an unreadable safetensors header")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise Malformed(f"has an unreadable safetensors header: {METADATA} is not text to text")
    for name, tensor in header.items():
        if not isinstance(tensor, _Tensor):
            raise Malformed(
                f"has an unreadable safetensors header: {_short(name)} has no dtype, shape and "
                "data_offsets"
            )
    _check_layout(header, size - 8 - length, size)
    return header


def _parse(raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object; of objects that are tensors, only where they are. Malformed."""
    # Before parsing, as 32 MB of brackets would become a gigabyte of lists. Commas: a tensor has as
    # many as it has dimensions and four more; an index, one for each tensor.
    objects, lists, commas = (raw.count(sign) for sign in (b"{", b"[", b","))
    most_commas = 16 * objects + 2 * MOST_TENSORS
    if objects > MOST_TENSORS + 2 or lists > 2 * objects + 2 or commas > most_commas:
        raise Malformed(
            f"has {what}: it holds {objects} objects, {lists} lists and {commas} commas, which no "
            "model has"
        )
    try:
        document = json.loads(raw, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"has {what} ({type(error).__name__}: {str(error)[:SHOWN]})") from error
    if not isinstance(document, dict):
        raise Malformed(f"has {what}: it is no JSON object")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Tensor:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{_short(twice)} is there twice")
    return _tensor(found) if found.keys() == TENSOR_KEYS else found


def _tensor(found: dict[str, Any]) -> _Tensor:
    dtype, shape, offsets = found["dtype"], found["shape"], found["data_offsets"]
    if not isinstance(dtype, str) or not _wholes(shape) or not _wholes(offsets):
        raise ValueError("dtype, shape or data_offsets of a tensor are not text and whole numbers")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"data_offsets {str(offsets)[:SHOWN]} are no beginning and end")
    if dtype in BITS:
        elements = 1
        for length in shape:
            elements *= length
            if elements > 1 << 63:
                raise ValueError(f"shape {str(shape)[:SHOWN]} is larger than any file")
        if elements * BITS[dtype] != 8 * (offsets[1] - offsets[0]):
            raise ValueError(
                f"{dtype} of shape {str(shape)[:SHOWN]} does not take the "
                f"{offsets[1] - offsets[0]} bytes of {offsets}"
            )
    return _Tensor(offsets)


def _wholes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 63
        for item in value
    )


def _check_layout(tensors: dict[str, tuple[int, int]], data_bytes: int, size: int) -> None:
    """Malformed unless the tensors fill the data from its beginning to its end, one after another.

    The end first: of a file that was cut, this is what helps.
    """
    end = max((tensor[1] for tensor in tensors.values()), default=0)
    if end != data_bytes:
        raise Malformed(
            f"holds {size} bytes where its safetensors header says {size - data_bytes + end}"
        )
    at = 0
    for name in sorted(tensors, key=tensors.__getitem__):
        begin, end = tensors[name]
        if begin != at:
            how = "overlaps the tensor before it" if begin < at else "leaves a gap before it"
            raise Malformed(f"has a safetensors header in which {_short(name)} {how}")
        at = end


def problem_of(path: Path) -> str | None:
    """What is wrong with the file's header, as the end of a sentence; None when nothing is."""
    try:
        read_header(path)
    except Malformed as error:
        return str(error)
    return None


def weight_map(path: Path) -> dict[str, str]:
    """Tensor -> file, of an index (model.safetensors.index.json). Malformed, OSError."""
    size = path.stat().st_size
    if size > LARGEST_HEADER_BYTES:
        raise Malformed(f"holds {size} bytes, which no index has")
    found = _parse(path.read_bytes(), "no index that can be read").get("weight_map")
    if not isinstance(found, dict) or not found:
        raise Malformed("has no weight_map")
    files: dict[str, str] = {}
    for name, file in found.items():
        if not isinstance(file, str):
            raise Malformed(f"names no file for {_short(name)}")
        found[name] = files.setdefault(file, file)  # one text a shard, not one a tensor
    return found


def index_problems(directory: Path, index: str, paths: Iterable[str]) -> list[tuple[str, str]]:
    """(file, what is wrong) where the index and the shards disagree; paths: the model's files.

    Every tensor has to be in the shard that the index names, and no other tensor in a shard of the
    index under a name that the index has for another one. Tensors that it does not name are left
    to the engine, which does not read them.
    """
    try:
        where = weight_map(directory / index)
    except Malformed as error:
        return [(index, str(error))]
    by_shard: dict[str, list[str]] = {}
    for name, file in where.items():
        by_shard.setdefault(file, []).append(name)
    known = set(paths)
    problems = []
    for shard, names in sorted(by_shard.items()):
        if shard not in known:
            problems.append((shard, f"is no file of the model, and {index} names it"))
            continue
        try:
            tensors = read_header(directory / shard)
        except Malformed as error:
            problems.append((shard, str(error)))
            continue
        absent = [name for name in names if name not in tensors]
        if absent:
            problems.append((shard, f"lacks {_some(absent)}, which {index} says is in it"))
        foreign = [name for name in tensors if where.get(name, shard) != shard]
        if foreign:
            problems.append(
                (shard, f"holds {_some(foreign)}, which {index} says is in {where[foreign[0]]}")
            )
    return problems


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return _short(names[0]) + more


def _short(name: str) -> str:
    return repr(name if len(name) <= SHOWN else name[:SHOWN] + "...")
