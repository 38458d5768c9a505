"""Write a model's weights as bfloat16 safetensors shards with their index.

The format is https://github.com/huggingface/safetensors: eight bytes of header length, a JSON
header, then the tensors one after another. The library cannot write bfloat16 without torch (a
gigabyte of environment); writing it takes this page.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

BFLOAT16_BYTES = 2


@dataclass(frozen=True)
class Tensor:
    """A weight that is made when it is written. `values` returns float32 of exactly `shape`."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], Any]

    @property
    def size_bytes(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count * BFLOAT16_BYTES


def bfloat16_bytes(values: Any) -> bytes:
    """float32 -> bfloat16, little-endian, rounded to nearest, ties to even (as torch rounds)."""
    # numpy belongs to the tool environment (locks/tools/lab-models.txt), not to the project's.
    numpy: Any = importlib.import_module("numpy")
    bits = numpy.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    result: bytes = rounded.astype("<u2").tobytes()
    return result


def split_into_shards(tensors: Sequence[Tensor], shards: int) -> list[list[Tensor]]:
    """Cut the sequence, in order, into `shards` parts of about the same number of bytes."""
    total = sum(tensor.size_bytes for tensor in tensors)
    parts: list[list[Tensor]] = [[] for _ in range(shards)]
    done = 0
    for tensor in tensors:
        middle = done + tensor.size_bytes / 2
        parts[min(shards - 1, int(middle * shards / total))].append(tensor)
        done += tensor.size_bytes
    return parts


def write_shard(path: Path, tensors: Sequence[Tensor]) -> None:
    """One safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size_bytes
        header[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the tensors aligned to eight bytes
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            content = bfloat16_bytes(tensor.values())
            if len(content) != tensor.size_bytes:
                raise ValueError(
                    f"{tensor.name}: {len(content)} bytes were made, "
                    f"its shape {tensor.shape} has {tensor.size_bytes}"
                )
            stream.write(content)


def write_model(directory: Path, tensors: Sequence[Tensor], shards: int) -> None:
    """model-0000N-of-0000M.safetensors and model.safetensors.index.json."""
    weight_map: dict[str, str] = {}
    for number, part in enumerate(split_into_shards(tensors, shards), start=1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        write_shard(directory / name, part)
        weight_map |= {tensor.name: name for tensor in part}
    index = {
        "metadata": {"total_size": sum(tensor.size_bytes for tensor in tensors)},
        "weight_map": dict(sorted(weight_map.items())),
    }
    write_json(directory / "model.safetensors.index.json", index)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
