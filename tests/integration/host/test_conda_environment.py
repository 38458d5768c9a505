"""Environments that conda makes, with a stand-in that makes real ones; vLLM's wheel goes in by
uv or pip as anywhere else."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import conda, environment, environment_spec, prune
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.fakes.conda_world import system_python
from tests.fakes.killed_build import build_killed_at
from tests.standin import conda_channel

if TYPE_CHECKING:
    from tests.fakes.conda_world import CondaWorld


def refused(world: CondaWorld, *args: Any, **changes: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        world.build(*args, **changes)
    assert not (world.path / environment_spec.COMPLETE).exists()
    return caught.value


def test_an_environment_of_conda_is_built_and_recorded(conda_world: CondaWorld) -> None:
    answer = conda_world.build()
    record = json.loads((conda_world.path / environment_spec.COMPLETE).read_text())
    assert answer["state"] == "built"
    assert conda_world.works()
    assert record["python"].startswith(system_python())
    assert record["conda"]["version"] == "26.7.1"
    assert record["conda"]["terms"] == {}
    assert record["conda"]["consent"] is None
    assert f"python-{system_python()}.9-0_standin" in record["conda"]["packages"]
    # The cache of the build's packages goes with it.
    assert [path.name for path in (conda_world.root / "llm/runtimes").glob(".conda*")] == []
    assert not list((conda_world.root / "cache").glob("tmp-*"))


def test_pip_of_condas_installs_into_it_too(conda_world: CondaWorld) -> None:
    conda_world.build(installer="pip")
    assert conda_world.works()


def test_a_second_run_asks_conda_nothing(conda_world: CondaWorld) -> None:
    conda_world.build()
    asked = len(conda_world.commands())
    assert conda_world.build()["state"] == "present"
    assert len(conda_world.commands()) == asked


def test_conda_solves_nothing_and_asks_only_the_channels_named(conda_world: CondaWorld) -> None:
    conda_world.build()
    create = conda_channel.calls(conda_world.prefix)[-1]["argv"]
    assert create[0] == "create"
    assert create[1:4] == ["--yes", "--prefix", str(conda_world.path)]
    assert create[4:7] == ["--override-channels", "--channel", conda_world.forge.url]
    assert create[7] == "--file"


def test_another_lock_of_conda_is_another_environment(conda_world: CondaWorld) -> None:
    conda_world.build()
    other = conda_world.spec()
    other["conda"]["lock"] += conda_world.forge.put("zlib-1.3.1-1_standin") + "\n"
    with pytest.raises(HostError, match="holds another environment"):
        environment.run(other, Progress(None))


def test_a_tampered_package_is_not_installed(conda_world: CondaWorld) -> None:
    spec = conda_world.spec()
    package = next(conda_world.forge.directory.glob("linux-64/python-*"))
    package.write_bytes(b"tampered")
    with pytest.raises(HostError) as caught:
        environment.run(spec, Progress(None))
    assert "does not have the hash" in caught.value.why
    assert not (conda_world.path / environment_spec.COMPLETE).exists()


def test_a_package_that_is_gone_is_told_with_its_address(conda_world: CondaWorld) -> None:
    spec = conda_world.spec()
    next(conda_world.forge.directory.glob("linux-64/python-*")).unlink()
    with pytest.raises(HostError) as caught:
        environment.run(spec, Progress(None))
    assert "cannot be reached" in caught.value.why
    assert any("python-" in line for line in caught.value.detail)


def test_a_full_disk_is_told_as_one(conda_world: CondaWorld) -> None:
    conda_world.switch(fails_at="fetch", says=["NoSpaceLeftError", "No space left on devices."])
    assert "no space is left" in refused(conda_world).why


def test_create_is_never_run_over_an_existing_environment(
    conda_world: CondaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --yes it would be deleted. Whatever comes between the check and the call, it stays."""
    precious = conda_world.path / "conda-meta" / "history"
    settle = conda.check_program

    def somebody_makes_one(found: Any, home: Path) -> str:
        precious.parent.mkdir(parents=True)
        precious.write_text("somebody's")
        return settle(found, home)

    monkeypatch.setattr(conda, "check_program", somebody_makes_one)
    assert "'conda create' would delete it" in refused(conda_world).why
    assert precious.read_text() == "somebody's"
    assert "create --yes" not in conda_world.commands()


def test_a_create_that_ends_well_and_did_nothing_is_found_out(conda_world: CondaWorld) -> None:
    """As it does without --yes when it gets no answer."""
    program = conda_world.prefix / "bin" / "conda"
    program.write_text(
        program.read_text().replace("check_terms(arguments.channel or [])", "sys.exit(0)", 1)
    )
    assert "conda-meta/history is missing" in refused(conda_world).why


def test_another_python_than_asked_for_is_refused(conda_world: CondaWorld) -> None:
    assert "not 3.99" in refused(conda_world, python="3.99").why


def test_a_missing_conda_is_told(conda_world: CondaWorld) -> None:
    (conda_world.prefix / "bin" / "conda").unlink()
    error = refused(conda_world)
    assert str(conda_world.prefix) in error.what
    assert "runtime.conda.prefix" in error.fix


def test_a_line_without_a_hash_is_refused_before_anything_is_run(conda_world: CondaWorld) -> None:
    spec = conda_world.spec()
    spec["conda"]["lock"] += f"{conda_world.forge.url}/linux-64/x-1-0.conda\n"
    with pytest.raises(HostError, match="of conda's lock cannot be used"):
        environment.run(spec, Progress(None))
    assert conda_world.commands() == []


PLACES = ("download", "link", "fetch", "done")
KILLS = int(os.environ.get("FLEET_KILLS", "2"))
SEED = int(os.environ.get("FLEET_SEED", time.time_ns() % 1_000_000))


def built_in_a_child(world: CondaWorld) -> int:
    child = os.fork()
    if child == 0:
        try:
            environment.run(world.spec(), Progress(None))
        finally:
            os._exit(0)
    return child


def kill_all_of_it(world: CondaWorld, child: int) -> None:
    """kill -9 of the job and of what it runs, as when its unit is killed (KillMode=control-group):
    of every process that names this test's own directory."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    own = str(world.root).encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if own in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is another's


def assert_mended(world: CondaWorld) -> None:
    world.switch()
    world.build()
    assert world.works()
    assert world.build()["state"] == "present"
    assert not list((world.root / "llm/runtimes").glob(".conda*"))


@pytest.mark.parametrize("number", range(KILLS))
def test_kill_in_the_middle_of_conda_and_run_again(conda_world: CondaWorld, number: int) -> None:
    conda_world.switch(hangs_at=PLACES[number % len(PLACES)])
    child = built_in_a_child(conda_world)
    wait_for(conda_world.prefix / "standin.hangs")
    kill_all_of_it(conda_world, child)
    assert environment.read_record(conda_world.path) is None
    assert_mended(conda_world)


@pytest.mark.parametrize("number", range(KILLS))
def test_kill_at_any_moment_and_run_again(conda_world: CondaWorld, number: int) -> None:
    """FLEET_SEED repeats the moments of a run."""
    moment = random.Random(SEED + number).uniform(0.0, 2.0)  # noqa: S311 - not a secret
    print(f"kill {number} of FLEET_SEED={SEED}: after {moment:.2f} s")
    child = built_in_a_child(conda_world)
    time.sleep(moment)
    kill_all_of_it(conda_world, child)
    record = environment.read_record(conda_world.path)
    assert record is None or conda_world.works()
    assert_mended(conda_world)


def wait_for(marker: Path) -> None:
    deadline = time.monotonic() + 60
    while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert marker.exists()


@pytest.mark.parametrize("phase", ["terms", "conda", "install", "finish", "sync"])
def test_a_kill_in_any_phase_leaves_nothing_that_counts(
    conda_world: CondaWorld, phase: str
) -> None:
    build_killed_at(phase, conda_world.spec())
    assert environment.read_record(conda_world.path) is None
    assert conda_world.build()["state"] == "built"


def test_what_a_killed_build_left_of_packages_is_pruned(conda_world: CondaWorld) -> None:
    """Under a name that is not built again; not what a build uses now."""
    beside = conda_world.root / "llm/runtimes"
    for name in ("gone", "building"):
        (beside / f"{conda.PACKAGES}{name}").mkdir()
    with environment.held(beside / "building"):
        prune.drop_package_caches(beside)
    left = sorted(path.name for path in beside.glob(f"{conda.PACKAGES}*"))
    assert left == [f"{conda.PACKAGES}building"]
