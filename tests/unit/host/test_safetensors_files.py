"""What a safetensors file says of itself: right, broken, and made to do harm."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import integrity, safetensors
from fleet_host.errors import HostError
from fleet_host.listing import INDEX, FileEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = Path(__file__).parents[3] / "files"
LIMIT_BYTES = 200 << 20


def tensor(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> Any:
    return {
        "dtype": dtype,
        "shape": [end - begin] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def raw(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def made(tensors: Mapping[str, Any], data_bytes: int) -> bytes:
    return raw(json.dumps(tensors).encode(), b"\1" * data_bytes)


def write(directory: Path, content: bytes, name: str = "m.safetensors") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


GOOD = [
    made({}, 0),
    made({"a": tensor(0, 4), "b": tensor(4, 6)}, 6),
    made({"b": tensor(4, 6), "a": tensor(0, 4), "__metadata__": {"format": "pt"}}, 6),
    made({"empty": tensor(0, 0, shape=[0, 5]), "a": tensor(0, 4)}, 4),
    made({"scalar": tensor(0, 4, "F32", [])}, 4),
    made({"half": tensor(0, 4, "BF16", [2, 1])}, 4),
    made({"four bits": tensor(0, 4, "F4", [8])}, 4),
    made({"of a later version": tensor(0, 4, "Q17", [3])}, 4),
    raw(json.dumps({"padded": tensor(0, 4)}).encode() + b"   ", b"1234"),
]


@pytest.mark.parametrize("content", GOOD)
def test_a_good_file_has_no_problem(tmp_path: Path, content: bytes) -> None:
    assert safetensors.problem_of(write(tmp_path, content)) is None


def test_a_header_says_where_each_tensor_is(tmp_path: Path) -> None:
    path = write(tmp_path, made({"b": tensor(4, 6), "a": tensor(0, 4), "__metadata__": {}}, 6))
    assert safetensors.read_header(path) == {"a": (0, 4), "b": (4, 6)}


TWICE = b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "a": {"dtype": "U8", '
TWICE += b'"shape": [2], "data_offsets": [2, 4]}}'

HOSTILE = {
    "empty": (b"", "does not fit"),
    "shorter than its length": (b"1234567", "does not fit"),
    "a length of 2^64-1": (b"\xff" * 8 + b"{}", "does not fit"),
    "a length one beyond the end": (struct.pack("<Q", 3) + b"{}", "does not fit"),
    "cut": (made({"a": tensor(0, 4)}, 4)[:-1], "safetensors header says"),
    "padded": (made({"a": tensor(0, 4)}, 4) + b"x", "safetensors header says"),
    "offsets beyond the end": (made({"a": tensor(0, 1 << 40)}, 4), "safetensors header says"),
    "overlapping": (made({"a": tensor(0, 4), "b": tensor(2, 6)}, 6), "overlaps"),
    "the same place twice": (made({"a": tensor(0, 4), "b": tensor(0, 4)}, 4), "overlaps"),
    "a gap": (made({"a": tensor(0, 2), "b": tensor(4, 6)}, 6), "gap"),
    "data before the first tensor": (made({"a": tensor(2, 6)}, 6), "gap"),
    "backwards": (made({"a": {**tensor(0, 4), "data_offsets": [4, 0]}}, 4), "beginning and end"),
    "negative": (made({"a": {**tensor(0, 4), "data_offsets": [-4, 0]}}, 4), "whole numbers"),
    "fractions": (made({"a": {**tensor(0, 4), "data_offsets": [0.0, 4.0]}}, 4), "whole numbers"),
    "truth values": (made({"a": {**tensor(0, 1), "data_offsets": [False, True]}}, 1), "whole"),
    "three offsets": (made({"a": {**tensor(0, 4), "data_offsets": [0, 2, 4]}}, 4), "beginning"),
    "an immense number": (raw(b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1'
                              + b"0" * 5000 + b"]}}"), "header"),
    "a shape that does not fit": (made({"a": tensor(0, 4, "F32", [2])}, 4), "does not take"),
    "a shape that overflows": (made({"a": tensor(0, 4, "F32", [1 << 62, 1 << 62])}, 4), "larger"),
    "no dtype": (made({"a": {"shape": [4], "data_offsets": [0, 4]}}, 4), "has no dtype"),
    "a tensor that is text": (made({"a": "b"}, 0), "has no dtype"),
    "metadata that is no text": (made({"__metadata__": {"a": 1}}, 0), "text to text"),
    "metadata that is a tensor": (made({"__metadata__": tensor(0, 4)}, 4), "text to text"),
    "a name twice": (raw(TWICE, b"1234"), "twice"),
    "a key twice": (raw(b'{"a": {"dtype": "U8", "dtype": "U8"}}'), "twice"),
    "a list": (raw(b"[]"), "begin with"),
    "no JSON": (raw(b"{" + b"x" * 20), "unreadable"),
    "no UTF-8": (raw(b'{"\xff\xfe": 1}'), "unreadable"),
    "NaN": (raw(b'{"a": NaN}'), "not JSON"),
    "two documents": (raw(b"{}{}"), "unreadable"),
    "nested beyond what can be parsed": (raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "header"),
    "more brackets than tensors": (raw(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"), "objects"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_broken_or_hostile_file_is_named_as_what_it_is(tmp_path: Path, name: str) -> None:
    content, expected = HOSTILE[name]
    problem = safetensors.problem_of(write(tmp_path, content))
    assert problem is not None
    assert expected in problem
    assert len(problem) < 500


@pytest.mark.parametrize("what", ["brackets", "objects", "a name", "numbers", "tensors"])
def test_no_header_takes_much_memory(tmp_path: Path, what: str) -> None:
    size = safetensors.LARGEST_HEADER_BYTES
    one = b'"%07d":{"dtype":"U8","shape":[],"data_offsets":[0,0]},'
    content = {
        "brackets": b'{"a":[' + b"[]," * (size // 3 - 10) + b"[]]}",
        "objects": b'{"a":[' + b"{}," * (size // 3 - 10) + b"{}]}",
        "a name": b'{"' + b"a" * (size - 10) + b'":1}',
        "numbers": b'{"a":[' + b"1," * (size // 2 - 10) + b"1]}",
        "tensors": b"{" + b"".join(one % number for number in range(190_000)) + b'"":1}',
    }[what]
    path = write(tmp_path, raw(content))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom fleet_host import safetensors\n"
        "assert safetensors.problem_of(Path(sys.argv[2]))\n"
        # Not getrusage's ru_maxrss, which begins at what the parent had.
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(FILES), str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) * 1024 < LIMIT_BYTES


# --- the index


def model(directory: Path, weight_map: object, **shards: Mapping[str, Any]) -> list[FileEntry]:
    for name, tensors in shards.items():
        size = max((one["data_offsets"][1] for one in tensors.values()), default=0)
        write(directory, made(tensors, size), f"{name}.safetensors")
    write(directory, json.dumps({"weight_map": weight_map}).encode(), INDEX)
    return [FileEntry(path.name, path.stat().st_size, "0" * 64) for path in directory.iterdir()]


A, B = {"a": tensor(0, 4)}, {"b": tensor(0, 4)}


def test_an_index_that_agrees_is_fine(tmp_path: Path) -> None:
    where = {"a": "one.safetensors", "b": "two.safetensors"}
    entries = model(tmp_path, where, one=A, two=B, consolidated={"x": tensor(0, 4)})
    assert integrity.index_problems(tmp_path, entries) == []
    integrity.require_index(tmp_path, entries, "m")


def test_without_an_index_there_is_nothing_to_compare(tmp_path: Path) -> None:
    assert integrity.index_problems(tmp_path, [FileEntry("a", 1, "0" * 64)]) == []


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"a": "two.safetensors", "b": "two.safetensors"}, "lacks 'a'"),
        ({"a": "one.safetensors", "b": "one.safetensors"}, "lacks 'b'"),
        ({"a": "one.safetensors", "c": "one.safetensors"}, "lacks 'c'"),
        ({"a": "one.safetensors", "b": "../two.safetensors"}, "is no file of the model"),
        ({"a": "one.safetensors", "b": "three.safetensors"}, "is no file of the model"),
        ({"a": 1}, "names no file"),
        ({}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_an_index_that_does_not_is_refused_with_the_tensor(
    tmp_path: Path, where: object, expected: str
) -> None:
    entries = model(tmp_path, where, one=A, two=B)
    lines = [f"{path} {problem}" for path, problem in integrity.index_problems(tmp_path, entries)]
    assert any(expected in line for line in lines), lines
    with pytest.raises(HostError, match="broken where it comes from"):
        integrity.require_index(tmp_path, entries, "m")


def test_a_tensor_that_is_in_another_shard_too_is_told(tmp_path: Path) -> None:
    both = {"b": tensor(0, 4), "a": tensor(4, 8)}
    entries = model(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}, one=A, two=both)
    ((shard, problem),) = integrity.index_problems(tmp_path, entries)
    assert (shard, "holds 'a'" in problem) == ("two.safetensors", True)


def test_a_tensor_that_the_index_does_not_name_is_the_engine_s_business(tmp_path: Path) -> None:
    more = {"a": tensor(0, 4), "rotary.inv_freq": tensor(4, 8)}
    entries = model(tmp_path, {"a": "one.safetensors"}, one=more)
    assert integrity.index_problems(tmp_path, entries) == []
