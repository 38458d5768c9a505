"""Every file of the hosts' tests is run once, whichever lane it is in."""

from __future__ import annotations

from pathlib import Path

from tests.hosts.lanes import ALONE, SECOND_LANE, asked, files_of, split

ROOT = Path(__file__).resolve().parents[3]
DIRECTORIES = [str(ROOT / "tests" / name) for name in ("hosts", "soak")]


def test_no_file_is_left_out_and_none_runs_twice() -> None:
    found = [file for lane in split(files_of(DIRECTORIES)) for file in lane]
    assert sorted(found) == sorted(
        file for directory in DIRECTORIES for file in Path(directory).glob("test_*.py")
    )


def test_what_runs_beside_them_is_named_apart() -> None:
    assert asked([]) == (["tests/hosts"], [], [])
    assert asked(["a", "--beside", "b", "c", "--", "-x"]) == (["a"], [Path("b"), Path("c")], ["-x"])
    assert asked(["a", "--", "-k", "b"]) == (["a"], [], ["-k", "b"])


def test_names_in_lanes_are_files() -> None:
    names = {file.name for file in files_of(DIRECTORIES)}
    assert set(ALONE) | set(SECOND_LANE) <= names
