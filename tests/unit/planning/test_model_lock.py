"""The lock's format, what it refuses to read, and that hosts agree about names and digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from fleet_host import listing
from fleet_host.errors import HostError
from fleet_host.hub import Hub, _json_data

from pyinfra_deploy.planning import model_files
from pyinfra_deploy.planning.model_files import (
    Listed,
    code,
    listing_problems,
    name_problem,
    pickles,
    shards_of,
)
from pyinfra_deploy.planning.model_lock import (
    LockedFile,
    ModelLock,
    UnusableLock,
    is_document,
    lock_text,
    read_lock,
)
from pyinfra_deploy.planning.model_lock_changes import changes

FILES = (
    LockedFile("config.json", 2, hashlib.sha256(b"{}").hexdigest()),
    LockedFile("model.safetensors", 5_000_000_000, "a" * 64),
    LockedFile("ünïcode/tokenizer.json", 3, "b" * 64),
)
LOCK = ModelLock(
    model="Qwen/Qwen3-32B",
    hub="modelscope",
    endpoint="https://www.modelscope.cn",
    revision="master",
    commit="c" * 40,
    license="apache-2.0",
    license_from="README.md",
    files=FILES,
    accepts=("code",),
    left_out=("*.bin",),
)


def test_what_is_written_is_read_back() -> None:
    assert read_lock(lock_text(LOCK)) == LOCK
    assert lock_text(read_lock(lock_text(LOCK))) == lock_text(LOCK)


def test_hosts_compute_the_same_digest() -> None:
    entries = tuple(listing.FileEntry(one.path, one.size_bytes, one.sha256) for one in FILES)
    assert LOCK.digest == listing.model_digest(entries)
    assert replace(LOCK, files=FILES[::-1]).digest == LOCK.digest


@pytest.mark.parametrize(
    "name",
    ["a", "a/b.c", ".gitattributes", "a b", "ü", "..", "a/../b", "../a", "/a", "a//b", "a/", "./a",
     "a/./b", "", "a\nb", "a\\b", "a\x7f", "..a", "a..", None, 3, "a\ud800", "a" * 240, "a" * 241,
     "ü" * 120, "ü" * 121, "/".join(["a" * 99] * 10), "/".join(["a" * 99] * 11)],
)  # fmt: skip
def test_hosts_refuse_the_same_names(name: object) -> None:
    assert name_problem(name) == listing.name_problem(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a\ud800", "is no text that a file system could hold"),
        ("dir/" + "ü" * 121, "is longer than"),
        ("/".join(["a" * 99] * 11), "is longer than"),
    ],
)
def test_names_that_no_disk_could_hold_are_refused(name: str, words: str) -> None:
    problem = name_problem(name)
    assert problem is not None
    assert words in problem


def test_an_index_that_is_nested_without_end_is_no_index() -> None:
    deep = b'{"weight_map": ' + b"[" * 200_000
    with pytest.raises(ValueError, match="has no weight_map"):
        shards_of(deep)
    with pytest.raises(HostError, match="cannot be read"):
        listing.shards_of(deep, "the hub")
    hub = Hub("https://hub.example.com", None)
    with pytest.raises(HostError, match="gave no usable listing"):
        _json_data(b"[" * 200_000, hub, "listing")


def test_the_digest_is_of_the_content_and_not_of_who_gave_it() -> None:
    other = replace(LOCK, hub="huggingface", endpoint="x", commit=None, license=None, accepts=())
    assert other.digest == LOCK.digest
    assert replace(LOCK, files=FILES[:2]).digest != LOCK.digest


def test_another_content_is_another_directory_on_hosts() -> None:
    assert LOCK.directory == f"master-{LOCK.digest[:12]}"
    assert replace(LOCK, files=FILES[:2]).directory != LOCK.directory
    assert replace(LOCK, revision="c" * 40).directory == f"{'c' * 12}-{LOCK.digest[:12]}"


def changed(**change: Any) -> str:
    document = json.loads(lock_text(LOCK))
    return json.dumps(document | change)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[]", "no list of files"),
        ("{" * 100_000, "not JSON"),
        (changed(files={}), "no list of files"),
        (changed(schema=2), "schema 2"),
        (changed(schema=None), "schema None"),
        (changed(model=None), "its model is None"),
        (changed(hub="ftp"), "its hub is 'ftp'"),
        (changed(commit=7), "its commit is 7"),
        (changed(left_out="*.bin"), "its left_out"),
        (changed(digest="0" * 64), "edited by hand"),
        (changed(files=["x"]), "must be a mapping"),
        (changed(files=[{"path": "../x", "size": 1, "sha256": "a" * 64}]), "leaves the model"),
        (changed(files=[{"path": "x", "size": True, "sha256": "a" * 64}]), "the size of x is True"),
        (changed(files=[{"path": "x", "size": -1, "sha256": "a" * 64}]), "the size of x is -1"),
        (changed(files=[{"path": "x", "size": 1, "sha256": "A" * 64}]), "the sha256 of x"),
        (changed(files=[{"path": "x", "size": 1, "sha256": "a" * 64}] * 2), "names x twice"),
        (lock_text(LOCK).replace("5000000000", "5000000001"), "edited by hand"),
    ],
)
def test_a_text_that_is_no_lock_is_refused(text: str, words: str) -> None:
    with pytest.raises(UnusableLock, match=words):
        read_lock(text)


@pytest.mark.parametrize(
    ("path", "size", "kept"),
    [
        ("config.json", 10, True),
        ("tokenizer.json", 64 << 20, True),
        ("tokenizer.json", (64 << 20) + 1, False),
        ("chat_template.jinja", 1, True),
        ("model.safetensors", 1, False),
        ("assets/config.json", 1, False),
        ("README.md", 1, False),
    ],
)
def test_small_files_that_tell_what_a_model_is_are_kept(path: str, size: int, kept: bool) -> None:
    assert is_document(path, size) is kept


def test_a_listing_with_a_file_that_is_a_directory_too_cannot_be_locked() -> None:
    files = [Listed("a", 1, "0" * 64), Listed("a/b/c", 1, "0" * 64)]
    assert listing_problems(files) == ["a is a file and a directory at once"]


def test_pickles_and_code_are_told_by_their_names() -> None:
    paths = ["a.py", "a.PT", "b/pytorch_model.bin", "model.safetensors", "tokenizer.model", "x.so"]
    assert model_files.pickles(paths) == ["a.PT", "b/pytorch_model.bin"]
    assert model_files.code(paths) == ["a.py", "x.so"]


def test_no_change_has_no_words() -> None:
    assert changes(LOCK, LOCK) == []


def test_a_change_of_what_was_accepted_or_licensed_is_told_without_any_file() -> None:
    new = replace(LOCK, accepts=(), license="mit", left_out=("*.bin", "*.pt"))
    assert changes(LOCK, new) == [
        "licence: apache-2.0 -> mit",
        "accepted: code -> nothing",
        "left out: *.bin -> *.bin, *.pt",
    ]


def test_many_changed_files_are_counted_not_listed() -> None:
    more = tuple(LockedFile(f"f{number:03}", 10, f"{number:064x}") for number in range(100))
    lines = changes(LOCK, replace(LOCK, files=FILES + more))
    assert lines[0] == "f000 is new, 10 bytes"
    assert lines[-2] == "and 80 files more"
    assert lines[-1].startswith("in all 103 files, 5.00 GB (1.00 kB more); 1.00 kB are other")


def test_a_changed_config_says_to_plan_again() -> None:
    other = replace(FILES[0], sha256="d" * 64)
    lines = changes(LOCK, replace(LOCK, files=(other, *FILES[1:])))
    assert (
        lines[0] == "config.json changed, of the same size (2 bytes): what the model is; plan again"
    )


def test_what_runs_code_is_the_same_on_both_sides() -> None:
    names = [f"x{ending}" for ending in (*listing.PICKLES, *listing.CODE)]
    assert pickles(names) == sorted(f"x{ending}" for ending in listing.PICKLES)
    assert code(names) == sorted(f"x{ending}" for ending in listing.CODE)
    assert model_files.PICKLES == listing.PICKLES
