"""Names and sizes of wheels in a lock's comments."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning import locked_wheels, wanted
from pyinfra_deploy.planning.locked_wheels import LockedWheel
from tests.unit.planning import worlds

ALPHA = LockedWheel("alpha-1.0-py3-none-any.whl", 1000, "a" * 64)
BETA = LockedWheel("Beta_x-2.0+cpu-cp312-cp312-linux_x86_64.whl", None, "b" * 64)
LOCK = (
    f"alpha==1.0 \\\n    --hash=sha256:{'a' * 64}\n    # via beta\n{ALPHA.as_comment()}\n"
    f"beta-x==2.0+cpu \\\n    --hash=sha256:{'b' * 64}\n{BETA.as_comment()}\n"
)


def test_what_is_written_is_read() -> None:
    assert locked_wheels.wheels_of_lock(LOCK) == (BETA, ALPHA)
    assert locked_wheels.entries_without_wheel(LOCK) == ()
    assert BETA.project == "beta-x"


def test_comments_make_no_other_environment() -> None:
    bare = "".join(line + "\n" for line in LOCK.splitlines() if "# wheel" not in line)
    assert wanted.requirements(LOCK) == wanted.requirements(bare)


def test_an_entry_without_its_wheel_is_named() -> None:
    lock = LOCK + f"gamma==1 \\\n    --hash=sha256:{'c' * 64}\n"
    assert locked_wheels.entries_without_wheel(lock) == ("gamma",)
    assert locked_wheels.download_bytes(lock) is None


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((1000, 500), 1500), ((1000, None), None), ((None, None), None)],
)
def test_the_size_of_a_download(sizes: tuple[int | None, ...], expected: int | None) -> None:
    lock = "".join(
        f"p{n}==1 \\\n    --hash=sha256:{n:064}\n"
        f"{LockedWheel(f'p{n}-1-py3-none-any.whl', size, f'{n:064}').as_comment()}\n"
        for n, size in enumerate(sizes)
    )
    assert locked_wheels.download_bytes(lock) == expected
    room = locked_wheels.room_bytes(lock, 77)
    assert room == (77 if expected is None else 6750 + (64 << 20))


def test_of_several_files_of_a_project_the_largest_counts() -> None:
    other = LockedWheel("alpha-1.0-cp311-cp311-linux_x86_64.whl", 3000, "c" * 64)
    lock = f"alpha==1.0 \\\n    --hash=sha256:{'a' * 64}\n{ALPHA.as_comment()}\n"
    assert locked_wheels.download_bytes(lock + other.as_comment() + "\n") == 3000


def test_the_job_says_the_size_of_each_wheel() -> None:
    lock = f"alpha==1.0 \\\n    --hash=sha256:{'a' * 64}\n{ALPHA.as_comment()}\n"
    settings = worlds.settings_with({"runtime": {"installer": "pip"}})
    made = wanted.runtime_environment(settings, lock, None)
    assert made.job["wheel_bytes"] == {"alpha": 1000}
    assert made.job["cache_bytes_needed"] == 2000
    assert "wheel_bytes" not in wanted.runtime_environment(settings, LOCK, None).job


def runtime(wheelhouse: dict[str, Any], **more: Any) -> wanted.Environment:
    settings = worlds.settings_with({"runtime": {"wheelhouse": wheelhouse, **more}})
    return wanted.runtime_environment(settings, LOCK, "/srv/llm/tools/uv-1/bin/uv")


def test_a_place_goes_into_the_job() -> None:
    assert runtime({"path": "/srv/wheels"}).job["wheelhouse"] == "/srv/wheels"
    assert runtime({"url": "http://files.example.com/w/"}).job["wheelhouse"] == (
        "http://files.example.com/w/"
    )


def test_the_first_hosts_place_is_known_only_when_it_serves() -> None:
    made = runtime({"serve_from": "first", "port": 9000})
    assert "wheelhouse" not in made.job
    assert made.serve_port == 9000
    assert made.wheels == (BETA.as_spec(), ALPHA.as_spec())


def test_where_wheels_come_from_makes_no_other_environment() -> None:
    names = {runtime(one).name for one in ({"path": "/srv/wheels"}, {"serve_from": "first"})}
    assert names == {runtime({"url": "http://files.example.com/"}).name}
