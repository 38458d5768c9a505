"""An environment from a directory of wheels alone, by the real uv and the real pip."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import environment, environment_space, wheel_pages
from fleet_host.environment_spec import COMPLETE
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.fakes.wheel_index import Index, small_disk, write_wheels
from tests.moments import KILLS, moment

if TYPE_CHECKING:
    from collections.abc import Iterator

UV = Path(sys.executable).with_name("uv")
BOTH = pytest.mark.parametrize("tool", ["uv", "pip"])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    set_root(tmp_path, monkeypatch)
    return tmp_path


def set_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llm/runtimes", "llm/tools", "cache", "run/llm-environment/vllm-1"):
        (root / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("FLEET_LLM_ROOT", str(root / "llm"))
    monkeypatch.setenv("CACHE_DIRECTORY", str(root / "cache"))
    monkeypatch.setenv("FLEET_RUN_ROOT", str(root / "run"))
    monkeypatch.setattr(environment, "sync_file_system", lambda _: None)


def spec(
    root: Path, index: Index, place: str | None, tool: str = "uv", **more: Any
) -> dict[str, Any]:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    system = Path(f"/usr/bin/python{version}")
    return {
        "path": str(root / "llm/runtimes/vllm-1"),
        "python": str(system if system.exists() else Path("/usr/bin/python3")),
        "requirements": index.lock(),
        "installer": tool,
        "uv": str(UV) if tool == "uv" else None,
        "wheelhouse": place,
        **more,
    }


def build(root: Path, index: Index, place: str, tool: str = "uv", **more: Any) -> dict[str, Any]:
    return environment.run(spec(root, index, place, tool, **more), Progress(None))


def refused(root: Path, index: Index, place: str, tool: str = "uv", **more: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        build(root, index, place, tool, **more)
    assert not (root / "llm/runtimes/vllm-1" / COMPLETE).exists()
    return caught.value


@pytest.fixture
def wheels(index: Index, tmp_path: Path) -> Path:
    """A wheelhouse with three wheels."""
    for name in ("alpha", "beta", "gamma_x"):
        index.add(name, size_bytes=200_000)
    return write_wheels(index, tmp_path / "wheels")


@pytest.fixture
def served(wheels: Path) -> Iterator[str]:
    """The wheelhouse as an operator's own server has it."""
    handler = functools.partial(QuietHandler, directory=str(wheels))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


# An environment with pip takes seconds to make: each way once, not every combination.
@pytest.mark.parametrize(("tool", "way"), [("uv", "path"), ("uv", "url"), ("pip", "url")])
def test_installs_and_asks_no_other_place(
    index: Index,
    root: Path,
    wheels: Path,
    served: str,
    tool: str,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What the host's own configuration names must not be asked, nor what the job says beside it.
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX"):
        monkeypatch.setenv(name, f"{index.url}/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{index.url}/simple/alpha/")
    place = str(wheels) if way == "path" else served
    answer = build(root, index, place, tool, index_url=f"{index.url}/simple")
    assert {"alpha", "beta", "gamma-x"} <= set(answer["versions"])
    assert index.asked == []
    assert answer["size_bytes"] > 600_000
    assert answer["seconds"] > 0


@pytest.mark.parametrize(
    ("tool", "way", "damage"),
    [
        ("uv", "path", "tampered"),
        ("uv", "url", "tampered"),
        ("uv", "path", "truncated"),
        ("uv", "url", "truncated"),
        ("pip", "url", "tampered"),
    ],
)
def test_a_wheel_that_is_not_the_locked_one(
    index: Index, root: Path, wheels: Path, served: str, tool: str, way: str, damage: str
) -> None:
    path = wheels / "beta-1.0-py3-none-any.whl"
    good = path.read_bytes()
    bad = bytearray(good)
    bad[300] ^= 1
    path.write_bytes(bytes(bad) if damage == "tampered" else good[: len(good) // 2])
    error = refused(root, index, str(wheels) if way == "path" else served, tool)
    assert "beta-1.0-py3-none-any.whl" in error.why
    assert hashlib.sha256(good).hexdigest() in error.why
    assert hashlib.sha256(path.read_bytes()).hexdigest() in error.why
    assert "fleet runtime wheelhouse" in error.fix
    path.write_bytes(good)
    if tool == "uv":
        place = str(wheels) if way == "path" else served
        assert build(root, index, place, tool)["state"] == "built"


@pytest.mark.parametrize(("tool", "way"), [("uv", "path"), ("pip", "url")])
def test_a_missing_wheel_is_named(
    index: Index, root: Path, wheels: Path, served: str, tool: str, way: str
) -> None:
    (wheels / "gamma_x-1.0-py3-none-any.whl").unlink()
    left = {row["file"]: row["sha256"] for row in index.rows() if "gamma" not in row["file"]}
    wheel_pages.write_pages(wheels, left)
    error = refused(root, index, str(wheels) if way == "path" else served, tool)
    assert "1 of 3 wheels are not at" in error.why
    assert "gamma-x 1.0" in error.why


def test_a_directory_that_is_not_there_is_said_before_anything_is_made(
    index: Index, root: Path
) -> None:
    index.add("alpha")
    error = refused(root, index, "/nonexistent/wheels")
    assert "there are no wheels at /nonexistent/wheels" in error.what
    assert not (root / "llm/runtimes/vllm-1").exists()


def test_a_server_that_is_down_is_said(index: Index, root: Path) -> None:
    index.add("alpha")
    error = refused(root, index, "http://127.0.0.1:9/", "uv")
    assert "Is the server running" in error.fix
    assert "runtime.index_url" not in error.fix


def test_room_is_looked_at_first_and_said_with_numbers(
    index: Index, root: Path, wheels: Path
) -> None:
    error = refused(root, index, str(wheels), bytes_needed=10**15)
    assert "1000000.00 GB are needed" in error.why
    assert str(root / "llm/runtimes") in error.why
    assert "fleet runtime list" in error.fix
    assert not (root / "llm/runtimes/vllm-1").exists()


def test_what_is_in_the_installers_cache_needs_no_room_again(root: Path) -> None:
    cache = environment_space.uv_cache(root / "llm/runtimes")
    cache.mkdir()
    (cache / "unpacked").write_bytes(b"x" * 400_000)
    assert environment_space.unused_bytes(cache) >= 400_000
    os.link(cache / "unpacked", root / "llm/runtimes/shared")
    assert environment_space.unused_bytes(cache) == 0


def test_what_another_runtime_has_in_the_same_version_needs_no_room_again(
    index: Index, root: Path, wheels: Path
) -> None:
    """As for an upgrade of vLLM that keeps its CUDA libraries."""
    runtimes = root / "llm/runtimes"
    sizes = {"alpha": 300, "beta": 600, "gamma-x": 100}
    wanted = {"alpha": "1.0", "beta": "2.0", "gamma-x": "1.0"}
    assert environment_space.present_share(runtimes, wanted, sizes) == 0.0
    build(root, index, str(wheels))
    assert environment_space.present_share(runtimes, wanted, sizes) == pytest.approx(0.4)
    new: dict[str, Any] = {
        "path": str(runtimes / "vllm-2"),
        "bytes_needed": 10**15,
        "wheel_bytes": sizes,
    }
    answer = build(root, index, str(wheels), **new)  # all of it is there in the same version
    assert answer["state"] == "built"
    found = [next((runtimes / name).glob("lib/*/site-packages/beta/data.txt"))
             for name in ("vllm-1", "vllm-2")]  # fmt: skip
    assert found[0].stat().st_ino == found[1].stat().st_ino


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Path]:
    yield from small_disk(tmp_path / "disk", 40 * 1024)


@BOTH
def test_a_disk_that_fills_in_the_middle_is_survived(
    index: Index, tight: Path, tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_root(tight, monkeypatch)
    for number in range(8):
        index.add(f"big{number}", size_bytes=1 << 20)
    place = str(write_wheels(index, tmp_path / "wheels"))
    filler = tight / "filler"
    # pip itself needs 12 MB of the environment.
    filler.write_bytes(b"x" * ((38 << 20) - (16 << 20 if tool == "pip" else 4 << 20)))
    error = refused(tight, index, place, tool)
    assert "no space is left on the disk" in error.why, error.as_dict()
    assert str(tight) in error.why
    filler.unlink()
    assert build(tight, index, place, tool)["state"] == "built"


@pytest.mark.parametrize("kill", range(KILLS))
@pytest.mark.parametrize("source", ["wheels", "index"])
def test_a_kill_anywhere_leaves_nothing_that_counts(
    index: Index, root: Path, wheels: Path, kill: int, source: str
) -> None:
    """kill -9 of the job and of the installer, at a random moment of a build."""
    for number in range(6):
        index.add(f"more{number}", size_bytes=1 << 20)
    place = str(write_wheels(index, wheels)) if source == "wheels" else None
    asked = spec(root, index, place, index_url=f"{index.url}/simple")
    script = (
        "import json, sys\n"
        "from fleet_host import environment\n"
        "from fleet_host.status import Progress\n"
        "environment.run(json.load(sys.stdin), Progress(None))\n"
    )
    files = Path(environment.__file__).parents[1]
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(files)},
        start_new_session=True,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(asked).encode())
    child.stdin.close()
    time.sleep(moment(kill, 0.05, 1.5))
    for line in subprocess.run(
        ["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1:]:
        pid, parent = (int(word) for word in line.split())
        if parent == child.pid:  # the installer, in a group of its own
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
    child.kill()
    child.wait()
    record = root / "llm/runtimes/vllm-1" / COMPLETE
    if record.exists():  # it was quicker
        assert json.loads(record.read_text())["versions"]["more5"] == "1.0"
    answer = environment.run(asked, Progress(None))
    assert {f"more{number}" for number in range(6)} <= set(answer["versions"])
    assert bool(index.asked) == (source == "index")
    for row in index.rows():
        name = row["file"].split("-")[0]
        (found,) = (root / "llm/runtimes/vllm-1").glob(f"lib/*/site-packages/{name}/data.txt")
        assert len(found.read_bytes()) in (200_000, 1 << 20)


def test_the_cache_of_a_build_that_a_power_cut_ended_is_not_trusted(
    index: Index, root: Path, wheels: Path
) -> None:
    """A file of it may be there by name and empty: uv renames without fsync."""
    runtimes = root / "llm/runtimes"
    build(root, index, str(wheels))
    stale = environment_space.uv_cache(runtimes) / "stale"
    stale.touch()
    environment_space.begin_unsynced(runtimes / "vllm-1")
    assert not environment_space.drop_doubtful_cache(runtimes)  # killed, without a power cut
    assert stale.exists()
    (root / "run/llm-environment/vllm-1/unsynced").unlink()  # /run is memory
    assert environment_space.drop_doubtful_cache(runtimes)
    assert not stale.exists()
    assert not environment_space.drop_doubtful_cache(runtimes)
