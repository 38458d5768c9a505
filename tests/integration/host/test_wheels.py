"""The wheels job against an index on loopback: whole by hash or not there, resumed, killed."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import wheel_pages, wheels
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.fakes.wheel_index import Index, small_disk
from tests.moments import KILLS, moment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# kill -9 at random moments: 2 in CI, 20 in `make soak`.


def spec(index: Index, directory: Path, **changes: Any) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "wheels": index.rows(),
        "index_url": f"{index.url}/simple",
        **changes,
    }


def gather(index: Index, directory: Path, **changes: Any) -> dict[str, Any]:
    return wheels.run(spec(index, directory, **changes), Progress(None))


def refused(index: Index, directory: Path, **changes: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        gather(index, directory, **changes)
    return caught.value


def assert_whole(index: Index, directory: Path) -> None:
    for row in index.rows():
        content = (directory / row["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"]


def only_whole(index: Index, directory: Path) -> None:
    """Whatever is visible is whole."""
    for path in directory.glob("*.whl"):
        assert path.read_bytes() == index.files[path.name], path.name


@pytest.mark.parametrize("as_json", [True, False])
def test_downloads_exactly_the_named_wheels_once(
    index: Index, tmp_path: Path, as_json: bool
) -> None:
    index.as_json = as_json
    files = [index.add("alpha"), index.add("beta", "2.0+cpu"), index.add("gamma_x")]
    answer = gather(index, tmp_path)
    assert (answer["state"], answer["downloaded"], answer["wheels"]) == ("downloaded", 3, 3)
    assert_whole(index, tmp_path)
    asked = len(index.asked)
    again = gather(index, tmp_path)
    assert (again["state"], again["downloaded"], again["downloaded_bytes"]) == ("present", 0, 0)
    assert len(index.asked) == asked
    assert [index.downloads(file) for file in files] == [1, 1, 1]
    assert wheel_pages.read_sums(tmp_path) == {row["file"]: row["sha256"] for row in index.rows()}


def test_a_page_without_hashes_serves_too(index: Index, tmp_path: Path) -> None:
    index.with_hashes = False
    index.add("alpha")
    gather(index, tmp_path)
    assert_whole(index, tmp_path)


def test_a_directory_of_wheels_is_a_source(index: Index, tmp_path: Path) -> None:
    file = index.add("alpha")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / file).write_bytes(index.files[file])
    gather(index, tmp_path / "out", find_links=[str(tmp_path / "mine")])
    assert_whole(index, tmp_path / "out")
    assert index.downloads(file) == 0


def test_a_tampered_wheel_is_named_with_both_hashes(index: Index, tmp_path: Path) -> None:
    file = index.add("alpha")
    index.changed[file] = b"x" * len(index.files[file])
    error = refused(index, tmp_path)
    assert file in error.what
    assert index.rows()[0]["sha256"] in error.why
    assert hashlib.sha256(index.changed[file]).hexdigest() in error.why
    assert "trust" in error.fix
    assert list(tmp_path.glob("*.whl")) == []
    del index.changed[file]
    gather(index, tmp_path)
    assert_whole(index, tmp_path)


def test_another_place_is_tried_when_the_first_has_a_changed_file(
    index: Index, tmp_path: Path
) -> None:
    file = index.add("alpha")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / file).write_bytes(b"not it")
    gather(
        index, tmp_path / "out", find_links=[str(tmp_path / "mine"), f"{index.url}/simple/alpha/"]
    )
    assert_whole(index, tmp_path / "out")


def test_a_wheel_that_no_source_has_is_named(index: Index, tmp_path: Path) -> None:
    index.add("alpha")
    rows = [*index.rows(), {"file": "beta-1.0-py3-none-any.whl", "sha256": "0" * 64}]
    error = refused(index, tmp_path, wheels=rows)
    assert "beta-1.0-py3-none-any.whl cannot be found" in error.what
    assert "0" * 64 in error.why


def test_an_index_that_is_down_is_named(index: Index, tmp_path: Path) -> None:
    index.add("alpha")
    error = refused(index, tmp_path, index_url="http://user:secret@127.0.0.1:9/simple")
    assert "Connection refused" in error.why
    assert "secret" not in str(error.as_dict())


def test_a_cut_connection_goes_on_where_it_stopped(index: Index, tmp_path: Path) -> None:
    file = index.add("alpha", size_bytes=3 << 20)
    index.cut_after[file] = 2 << 20
    gather(index, tmp_path)
    assert_whole(index, tmp_path)
    assert index.ranges == [f"{file} {2 << 20}"]


def test_a_part_of_another_file_is_begun_anew(index: Index, tmp_path: Path) -> None:
    file = index.add("alpha")
    (tmp_path / ".incoming").mkdir()
    (tmp_path / ".incoming" / index.rows()[0]["sha256"]).write_bytes(b"y" * 100)
    gather(index, tmp_path)
    assert_whole(index, tmp_path)
    assert index.downloads(file) == 2


@pytest.mark.parametrize("sizes", [True, False])
def test_a_part_that_is_whole_is_taken(index: Index, tmp_path: Path, sizes: bool) -> None:
    file = index.add("alpha")
    (tmp_path / ".incoming").mkdir()
    (tmp_path / ".incoming" / index.rows()[0]["sha256"]).write_bytes(index.files[file])
    gather(index, tmp_path, wheels=index.rows(sizes=sizes))
    assert_whole(index, tmp_path)


def test_a_wheel_that_rots_is_downloaded_again(index: Index, tmp_path: Path) -> None:
    file, other = index.add("alpha"), index.add("beta")
    gather(index, tmp_path)
    (tmp_path / file).write_bytes(b"rotten")
    assert gather(index, tmp_path)["downloaded"] == 1
    assert_whole(index, tmp_path)
    assert index.downloads(other) == 1


def test_wheels_of_other_locks_stay_unless_they_are_to_go(index: Index, tmp_path: Path) -> None:
    old = index.add("alpha")
    gather(index, tmp_path)
    del index.files[old]
    new = index.add("beta")
    gather(index, tmp_path)
    assert set(wheel_pages.read_sums(tmp_path)) == {old, new}
    assert gather(index, tmp_path, remove_others=True)["removed"] == [old]
    assert set(wheel_pages.read_sums(tmp_path)) == {new}
    assert not (tmp_path / "simple" / "alpha").exists()


def test_wheels_that_another_run_asked_for_lately_stay(index: Index, tmp_path: Path) -> None:
    """Two runs of one inventory with different vLLMs, for different hosts, share the host that
    serves: the second must not take away what the first one's hosts are installing from."""
    old = index.add("alpha")
    gather(index, tmp_path, remove_others=True, keep_seconds=3600)
    long_ago = time.time() - 7200
    os.utime(tmp_path / old, (long_ago, long_ago))
    # The first run again: it is there, and is asked for now.
    assert gather(index, tmp_path, remove_others=True, keep_seconds=3600)["downloaded"] == 0
    del index.files[old]
    new = index.add("beta")
    assert gather(index, tmp_path, remove_others=True, keep_seconds=3600)["removed"] == []
    assert set(wheel_pages.read_sums(tmp_path)) == {old, new}
    assert old in (tmp_path / "index.html").read_text()
    assert (tmp_path / "simple" / "alpha").exists()
    os.utime(tmp_path / old, (long_ago, long_ago))
    assert gather(index, tmp_path, remove_others=True, keep_seconds=3600)["removed"] == [old]
    assert set(wheel_pages.read_sums(tmp_path)) == {new}


def test_a_disk_without_room_is_refused_before_a_byte(index: Index, tmp_path: Path) -> None:
    file = index.add("alpha")
    rows = [{**index.rows()[0], "size_bytes": 10**15}]
    error = refused(index, tmp_path, wheels=rows)
    assert str(tmp_path) in error.what
    assert "1000000.00 GB are to be downloaded" in error.why
    assert index.downloads(file) == 0


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Path]:
    yield from small_disk(tmp_path / "disk", 2048)


def test_a_disk_that_fills_is_survived(
    index: Index, tight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else takes the room that was there when it was looked at."""
    monkeypatch.setattr(wheels, "SPARE_BYTES", 0)
    small, large = index.add("alpha"), index.add("beta", size_bytes=1 << 20)
    filler = tight / "filler"
    monkeypatch.setattr(wheels, "check_space", lambda *_: filler.write_bytes(b"x" * (1500 << 10)))
    error = refused(index, tight)
    assert "no space is left" in error.why
    only_whole(index, tight)
    assert not (tight / large).exists()
    filler.unlink()
    monkeypatch.setattr(wheels, "check_space", lambda *_: None)
    answer = gather(index, tight)
    assert_whole(index, tight)
    assert answer["downloaded_bytes"] < len(index.files[small]) + len(index.files[large])


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_kill_in_the_middle_loses_nothing(index: Index, tmp_path: Path, kill: int) -> None:
    """kill -9 at a random moment of a download; the next run goes on from there."""
    for name in ("alpha", "beta", "gamma", "delta"):
        index.add(name, size_bytes=2 << 20)
    file = "alpha-1.0-py3-none-any.whl"
    index.hold[file] = threading.Event()
    index.cut_after[file] = (1 << 20) + int(moment(kill, 0, 1 << 20))
    child = os.fork()
    if child == 0:
        try:
            gather(index, tmp_path)
        finally:
            os._exit(1)
    part = tmp_path / ".incoming" / index.rows()[0]["sha256"]
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (part.exists() and part.stat().st_size >= (1 << 20)):
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    index.hold[file].set()
    only_whole(index, tmp_path)
    assert not (tmp_path / file).exists()
    gather(index, tmp_path)
    assert_whole(index, tmp_path)
    assert any(line.startswith(file) for line in index.ranges), "it began anew"
    assert [path.name for path in (tmp_path / ".incoming").iterdir()] == [".lock"]
