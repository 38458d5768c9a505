"""kill -9 of a pull and power cuts, at random moments of it: the next one ends complete and correct
and goes on from where it was.

FLEET_KILLS says how many there are of each (default 2), FLEET_SEED at which moments (default: by
the clock). The seed is printed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from lab.hub import control
from lab.hub.faults import Fault
from lab.hub.places import hub_directory, models_directory
from lab.hub.store import publish, revision
from tests.fakes.lab_hub import make_directory
from tests.fakes.model_hub import safetensors
from tests.hosts import host_jobs
from tests.hosts.lab_session import DEBIAN12, shell
from tests.hosts.standin_inventory import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Faults = Callable[..., None]

KILLS = int(os.environ.get("FLEET_KILLS", "2"))
SEED = int(os.environ.get("FLEET_SEED", time.time_ns() % 1_000_000))
HOST = DEBIAN12
MODEL = "lab/tiny-slow"
SHARDS, SHARD_BYTES = 4, 3_000_000
# Two at a time, each at 1 MB/s: six seconds, begun within two.
BYTES_PER_SECOND, FILES_AT_ONCE = 1_000_000, 2
EARLIEST, LATEST = 1.0, 7.5
# Of each file in flight the client has what it has not written yet, and the hub what is on its way:
# 0.2 MB were seen.
LOST_BYTES = FILES_AT_ONCE * 750_000

pytestmark = pytest.mark.usefixtures("steady")


@pytest.fixture(scope="module")
def spec(lab_hosts: None) -> Iterator[dict[str, Any]]:
    """Of a pull of a locked model of several seconds."""
    hub = hub_directory()
    made = hub / "making-slow"
    shutil.rmtree(made, ignore_errors=True)
    names = [f"model-{number:05d}-of-{SHARDS:05d}.safetensors" for number in range(1, SHARDS + 1)]
    index = {"weight_map": {f"t{number}": name for number, name in enumerate(names)}}
    generator = random.Random(SEED)  # noqa: S311 - no secret
    files = {
        name: safetensors(generator.randbytes(SHARD_BYTES), f"t{number}")
        for number, name in enumerate(names)
    }
    files |= {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    publish(models_directory(hub), make_directory(made, files), MODEL)
    found = revision(models_directory(hub), MODEL, "master")
    host_jobs.forget(HOST, MODEL)
    yield {
        "model_id": MODEL,
        "revision": "master",
        "endpoint": SETTINGS["model"]["endpoint"],
        "target": host_jobs.MODELS,
        "client": host_jobs.client_of(HOST),
        "files_at_once": FILES_AT_ONCE,
        "stall_timeout_seconds": 60,
        "commit": found.commit,
        "files": [
            {"path": one.path, "size": one.size_bytes, "sha256": one.sha256} for one in found.files
        ],
    }
    host_jobs.forget(HOST, MODEL)
    shutil.rmtree(models_directory(hub) / MODEL, ignore_errors=True)


def kill_unit(job_id: str) -> None:
    """All of its processes at once, as the kernel does when memory is short."""
    shell(HOST, f"systemctl kill --signal=KILL llm-pull@{job_id}.service; true")
    host_jobs.finished(HOST, job_id)


def cut_power(_job_id: str) -> None:
    hosts.kill(HOST)
    hosts.boot(HOST)


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("end", [kill_unit, cut_power], ids=["kill -9", "power cut"])
def test_a_pull_that_is_cut_anywhere_goes_on(
    end: Callable[[str], None],
    number: int,
    spec: dict[str, Any],
    hub_faults: Faults,
    say: Callable[[str], None],
) -> None:
    job_id = f"faults-{end.__name__.replace('_', '-')}-{number}"
    place = f"{host_jobs.MODELS}/{MODEL.replace('/', '--')}/{job_id}"
    moment = random.Random(f"{SEED} {end.__name__} {number}").uniform(EARLIEST, LATEST)  # noqa: S311
    hub_faults(Fault("slow", path="*.safetensors", model=MODEL, value=BYTES_PER_SECOND))
    host_jobs.start_pull(HOST, job_id, {**spec, "directory": job_id})
    time.sleep(moment)
    ended = host_jobs.status_of(HOST, job_id)["state"] != "running"
    end(job_id)
    say(
        f"{job_id} of FLEET_SEED={SEED}: after {moment:.1f} s{' (it had ended)' if ended else ''}, "
        f"with {_sent() / 1e6:.1f} MB sent"
    )
    found = host_jobs.files_in(HOST, place)
    wanted = {file["path"]: file["sha256"] for file in spec["files"]}
    assert found in ({}, wanted), "a half model was visible"
    status = host_jobs.pull(HOST, job_id, {**spec, "directory": job_id})
    assert status["state"] == "done", status
    total = sum(file["size"] for file in spec["files"])
    assert _sent() <= total + LOST_BYTES, "it did not go on from where it was"
    # Every byte, as the disk has it.
    checked = host_jobs.ask(HOST, "model verify", {"path": place, "deep": True})
    assert checked.get("ok") is True, checked
    assert host_jobs.files_in(HOST, place) == wanted


def _sent() -> int:
    """Bytes of weights that the hub has sent in this test."""
    sent = control.counters()["bytes"]
    return sum(count for path, count in sent.items() if path.endswith(".safetensors"))
