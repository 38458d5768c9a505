"""The end in the middle of every kind of change: kill -9 of the host's own jobs and a power cut of
the host in turn, at random moments. What has its final name is whole, what served before is not
lost, and the next run completes.

FLEET_KILLS ends of each kind (default 20); FLEET_SEED repeats a run. tests/hosts has single ones:
test_40 (index, go-live), test_72 (the host that serves the wheels), test_80 (conda).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from lab import hosts
from lab.hub.places import hub_directory, wheels_directory
from tests.hosts import pyinfra_run, test_55_proof_and_watch
from tests.hosts.lab_session import DEBIAN12, put_directory, shell, wait_for
from tests.hosts.mended import ROOT, assert_nothing_is_half_visible
from tests.hosts.standin_inventory import NAME, python_of
from tests.moments import SEED, moment
from tests.standin import proving_wheels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.standin_inventory import Checkout

ENDS = int(os.environ.get("FLEET_KILLS", "20"))
OLD, NEW = proving_wheels.VERSIONS
WHEELS = "/srv/wheels"
ONLY = ("--limit", DEBIAN12)
JOBS = " ".join(f"'llm-{kind}@*.service'" for kind in ("environment", "golive", "proof"))


@pytest.fixture(scope="module", autouse=True)
def wheels(steady: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A directory of wheels on the host, both proving versions on the hub; afterwards the host runs
    what all tests share again."""
    directory = tmp_path_factory.mktemp("wheelhouse") / "wheels"
    command = [str(pyinfra_run.BIN / "fleet"), "runtime", "wheelhouse", NAME, "-o", str(directory)]
    done = pyinfra_run.run(command, root=steady.root)
    assert done.returncode == 0, done.stderr
    put_directory(DEBIAN12, directory, WHEELS)
    paths = proving_wheels.publish(wheels_directory(hub_directory()))
    yield
    for path in paths:
        path.unlink(missing_ok=True)
    shell(DEBIAN12, f"rm -rf {WHEELS}")
    steady.write()
    steady.deploy(*ONLY).done()


def forget_environments() -> None:
    names = ("runtimes/*", "runtimes/.u*", "tools/*")
    places = " ".join(f"/{ROOT}/{name}" for name in names)
    shell(DEBIAN12, f"systemctl stop llm-engine@main; rm -rf {places}")


def from_the_index(checkout: Checkout, _number: int) -> None:
    checkout.write()
    checkout.deploy(*ONLY).done()
    forget_environments()


def from_wheels_by_path(checkout: Checkout, _number: int) -> None:
    runtime = {**checkout.base["runtime"], "python": python_of(DEBIAN12), "find_links": [],
               "wheelhouse": {"path": WHEELS}}  # fmt: skip
    checkout.write(host_variables={DEBIAN12: {"runtime": runtime}})
    checkout.deploy(*ONLY).done()
    forget_environments()


def to_another_vllm(checkout: Checkout, _number: int) -> None:
    test_55_proof_and_watch.deploy(checkout, OLD).done()
    shell(DEBIAN12, f"rm -rf /{ROOT}/runtimes/vllm-{NEW}-*")
    test_55_proof_and_watch.write(checkout, NEW)


def to_another_release(checkout: Checkout, number: int) -> None:
    checkout.write()
    checkout.deploy(*ONLY).done()
    arguments = {"seed": 1000 + number, "additional-config": {"start_seconds": 3}}
    engine = {**checkout.base["engine"], "args": arguments}
    checkout.write(host_variables={DEBIAN12: {"engine": engine}})


# What is made ready, and how long what follows takes at most once its first job runs, in seconds.
KINDS: dict[str, tuple[Callable[[Checkout, int], None], float]] = {
    "install from the index": (from_the_index, 15.0),
    "install from wheels by path": (from_wheels_by_path, 12.0),
    "upgrade of vLLM": (to_another_vllm, 12.0),
    "go-live": (to_another_release, 7.0),
}


def a_job_runs() -> bool:
    states = "--state=active,activating,deactivating"
    return bool(
        shell(DEBIAN12, f"systemctl list-units --plain --no-legend {states} {JOBS}").strip()
    )


@pytest.mark.parametrize("number", range(ENDS))
@pytest.mark.parametrize("kind", KINDS)
def test_an_end_in_the_middle(
    checkout: Checkout, kind: str, number: int, say: Callable[[str], None]
) -> None:
    prepare, longest = KINDS[kind]
    prepare(checkout, number)
    old = test_55_proof_and_watch.runtimes() if kind == "upgrade of vLLM" else {}
    running = checkout.start(*ONLY)
    wait_for(a_job_runs)
    after = moment(number, 0.0, longest)
    time.sleep(after)
    late = " (it had ended)" if running.process.poll() is not None else ""
    cut = number % 2 == 0
    if cut:
        hosts.kill(DEBIAN12)
        assert_nothing_is_half_visible(DEBIAN12, is_on=False)
        hosts.boot(DEBIAN12)
    else:
        shell(DEBIAN12, f"systemctl kill --signal=KILL {JOBS}", check=False)
    way = "power cut" if cut else "kill -9"
    say(f"{kind}: {way} {number} of FLEET_SEED={SEED}: after {after:.1f} s{late}")
    ran = running.finish()
    assert ran.code == 0 or ran.failed == {DEBIAN12}, ran.log
    assert_nothing_is_half_visible(DEBIAN12)
    checkout.deploy(*ONLY).done()
    assert checkout.service(DEBIAN12).answers()
    assert_nothing_is_half_visible(DEBIAN12)
    now = test_55_proof_and_watch.runtimes()
    assert {name: now[name] for name in old} == old
    ran = checkout.deploy(*ONLY).done()
    assert ran.unchanged, ran.log
