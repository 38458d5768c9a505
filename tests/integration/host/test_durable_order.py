"""The order of a durable write's system calls: a power cut cannot be had in a test."""

from __future__ import annotations

import sys
from pathlib import Path

from fleet_host import durable

from tests.fakes.traced import order, traced

PACKAGE = Path(durable.__file__).parent.parent


def trace(tmp_path: Path, code: str) -> list[str]:
    """The calls of a piece of code that uses fleet_host's durable."""
    prelude = "from pathlib import Path; from fleet_host import durable\n"
    return traced(
        tmp_path,
        [sys.executable, "-c", prelude + code],
        environment={"PYTHONPATH": str(PACKAGE)},
    )


def test_a_file_is_synced_before_its_rename_and_the_directory_after(tmp_path: Path) -> None:
    calls = trace(tmp_path, f"durable.write_file(Path({str(tmp_path)!r}, 'a'), 'x', mode=0o600)")
    order(
        calls,
        r"^openat .*TEMPORARY.*O_EXCL.*0600",
        r"^fchmod .*TEMPORARY",
        r"^write .*TEMPORARY",
        r"^fsync .*TEMPORARY",
        r'^rename "/TEMPORARY", "/a"',
        r"^fsync \d+<>\)",
    )


def test_a_link_is_renamed_and_its_directory_synced(tmp_path: Path) -> None:
    calls = trace(tmp_path, f"durable.replace_symlink(Path({str(tmp_path)!r}, 'l'), 'target')")
    order(calls, r"^symlink", r'^rename "/TEMPORARY", "/l"', r"^fsync \d+<>\)")


def test_a_directory_is_synced_to_its_leaves_before_it_is_published(tmp_path: Path) -> None:
    (tmp_path / "in" / "model" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "model" / "sub" / "file").write_text("x")
    calls = trace(
        tmp_path,
        f"durable.publish_directory(Path({str(tmp_path)!r}, 'in/model'), "
        f"Path({str(tmp_path)!r}, 'out'))",
    )
    order(
        calls,
        r"^fsync \d+</in/model/sub/file>",
        r"^fsync \d+</in/model/sub>",
        r"^fsync \d+</in/model>",
        r'^rename "/in/model", "/out"',
        r"^fsync \d+<>\)",
        r"^fsync \d+</in>",
    )
