"""The real modelscope client against a hub that misbehaves, a disk that is full, a power cut.

The models are not locked here: what the hub lists counts. test_31 has the faults of locked ones.
Each host has a model of its own here, so that two faults are tried in one run. What serves goes on
serving.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import hosts
from lab.hub import control
from lab.hub.faults import LISTING, Fault
from tests.hosts.host_jobs import small_disk
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, upper_of, wait_for
from tests.hosts.standin_inventory import MODELS, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.pyinfra_run import Ran
    from tests.hosts.standin_inventory import Checkout

    Faults = Callable[..., None]

BOTH = (DEBIAN12, DEBIAN13)
PLACE = Path("srv/llm/models")
SHARD = "model-00002-of-00003.safetensors"
FILES = 10
NOWHERE = "http://10.213.77.1:8099"

pytestmark = pytest.mark.usefixtures("steady")


def published(host: str) -> Path:
    return PLACE / MODELS[host].replace("/", "--") / "master"


@pytest.fixture(scope="module", autouse=True)
def without_locks(checkout: Checkout) -> Iterator[None]:
    checkout.locked = False
    yield
    checkout.locked = True


def forget_model(*names: str) -> None:
    """As on a host that has not pulled it yet, in no revision of which it could take files."""
    for host in names:
        shell(host, f"rm -rf /{published(host).parent} /{PLACE}/.incoming/*")


def on(host: str, fault: Fault) -> Fault:
    return replace(fault, model=MODELS[host])


def refused(ran: Ran, checkout: Checkout, host: str, *words: str) -> None:
    """The host failed with these words, nothing is visible there, and it still serves."""
    assert ran.code == 1
    assert host in ran.failed
    of_host = "\n".join(line for line in ran.log.splitlines() if f"[{host}]" in line)
    missing = [word for word in ("model:", *words) if word not in of_host]
    assert not missing, f"{host} did not say {missing}\n{ran.log}"
    assert not (upper_of(host) / published(host)).is_dir()
    assert checkout.service(host).answers()


def staged() -> Path:
    return upper_of(DEBIAN12) / PLACE / ".incoming/lab--tiny-qwen3-moe/master/model"


def is_whole(host: str) -> bool:
    """Whether every file is there as the record says, and nothing else."""
    script = f"""
        cd /{published(host)} && python3 - <<'END'
import hashlib, json, pathlib
record = json.load(open("/{published(host)}.json"))["files"]
here = {{
    path.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
    for path in pathlib.Path(".").rglob("*") if path.is_file()
}}
print(here == {{file["path"]: file["sha256"] for file in record}}, len(here))
END
    """
    return shell(host, script).split() == ["True", str(FILES)]


def test_one_hosts_bad_model_is_that_hosts_alone(checkout: Checkout, hub_faults: Faults) -> None:
    """The other host has a change to make in the same run, and makes it."""
    forget_model(*BOTH)
    hub_faults(on(DEBIAN12, Fault("omit", path=SHARD)))
    ran = checkout.deploy()
    refused(ran, checkout, DEBIAN12, "is not complete on the hub", SHARD)
    assert ran.failed == {DEBIAN12}
    assert ran.finished(DEBIAN13)
    assert (upper_of(DEBIAN13) / published(DEBIAN13)).is_dir()
    control.clear_faults()
    checkout.deploy().done()
    assert all(is_whole(host) for host in BOTH)
    assert checkout.deploy().done().unchanged


def test_listings_that_cannot_be_trusted(checkout: Checkout, hub_faults: Faults) -> None:
    evil = "../../../etc/cron.d/evil"
    forget_model(*BOTH)
    hub_faults(
        on(DEBIAN12, Fault("no_sha256", path=SHARD)), on(DEBIAN13, Fault("extra", value=evil))
    )
    ran = checkout.deploy()
    refused(ran, checkout, DEBIAN12, "has no Sha256", "not fit to be checked against")
    refused(ran, checkout, DEBIAN13, "leaves the model's directory", evil)
    assert not (upper_of(DEBIAN13) / "etc/cron.d/evil").exists()


def test_a_hub_that_fails_and_one_that_is_gone(checkout: Checkout, hub_faults: Faults) -> None:
    forget_model(*BOTH)
    hub_faults(on(DEBIAN12, Fault("error", path=LISTING, value=500)))
    gone = {**SETTINGS["model"], "id": MODELS[DEBIAN13], "endpoint": NOWHERE}
    checkout.write(host_variables={DEBIAN13: {"model": gone}})
    ran = checkout.deploy()
    checkout.write()
    refused(ran, checkout, DEBIAN12, "it answered 500, 4 times", "try again later")
    refused(ran, checkout, DEBIAN13, NOWHERE, "refused")


def test_files_that_stay_corrupt_or_break_off(checkout: Checkout, hub_faults: Faults) -> None:
    forget_model(*BOTH)
    hub_faults(
        on(DEBIAN12, Fault("corrupt", path=SHARD)),
        on(DEBIAN13, Fault("drop", path=SHARD, value=0)),
    )
    ran = checkout.deploy()
    for host in BOTH:
        refused(ran, checkout, host, SHARD)
    applied = control.counters()["applied"]
    assert applied["corrupt"] >= 2
    assert applied["drop"] >= 2


def test_a_hub_that_is_bad_once_costs_nothing(checkout: Checkout, hub_faults: Faults) -> None:
    hub_faults(
        on(DEBIAN12, Fault("corrupt", path=SHARD, times=1)),
        on(DEBIAN13, Fault("drop", path=SHARD, times=1)),
    )
    checkout.deploy().done()
    assert control.counters()["applied"] == {"corrupt": 1, "drop": 1}
    for host in BOTH:
        assert is_whole(host)


def test_power_loss_during_the_pull(checkout: Checkout, hub_faults: Faults) -> None:
    forget_model(DEBIAN12)
    hub_faults(on(DEBIAN12, Fault("slow", path=SHARD, value=40_000)))
    running = checkout.start()
    wait_for(lambda: any(path.stat().st_size for path in staged().glob(f"{SHARD}*")))
    # A start whose answer was lost is asked again: that run would end well.
    wait_for(lambda: running.has_said(f"[{DEBIAN12}] model: download"))
    hosts.kill(DEBIAN12)
    assert not (upper_of(DEBIAN12) / published(DEBIAN12)).exists()
    hosts.boot(DEBIAN12)
    cut_off = running.finish()
    assert cut_off.failed == {DEBIAN12}, cut_off.log
    cut_off.said("connection lost", "model:", "again")
    control.clear_faults()
    checkout.deploy().done()
    assert is_whole(DEBIAN12)


def test_the_network_goes_away_during_the_pull(checkout: Checkout, hub_faults: Faults) -> None:
    """And with it the SSH session, which does not come back by itself: the same run connects again
    and sees the same job end."""
    forget_model(DEBIAN12)
    began = shell(DEBIAN12, "date +%s").strip()
    checkout.write(model={"stall_timeout_seconds": 60, "file_timeout_seconds": 120})
    hub_faults(on(DEBIAN12, Fault("slow", path=SHARD, value=20_000)))
    running = checkout.start("--limit", DEBIAN12)
    wait_for(lambda: any(path.stat().st_size for path in staged().glob(f"{SHARD}*")))
    shell(
        DEBIAN12,
        "systemd-run -q --on-active=2 --timer-property=AccuracySec=100ms "
        "pkill -KILL -f '^sshd: admin'",
    )
    hosts.cut(DEBIAN12)
    try:
        time.sleep(15)  # tests of the control side's patience use clocks of their own
        assert running.process.poll() is None
        assert not (upper_of(DEBIAN12) / published(DEBIAN12)).exists()
    finally:
        hosts.heal(DEBIAN12)
    running.finish().done().said("connection lost (", "trying again")
    assert is_whole(DEBIAN12)
    journal = shell(DEBIAN12, f"journalctl -o cat --since @{began} -u 'llm-pull@*'")
    assert len(re.findall(r"^Started ", journal, re.MULTILINE)) == 1, journal
    checkout.write()
    assert checkout.deploy().done().unchanged


def test_a_disk_too_small_for_the_model_is_refused_before_a_byte(checkout: Checkout) -> None:
    forget_model(DEBIAN12)
    control.reset_counters()
    with small_disk(DEBIAN12, 200):
        ran = checkout.deploy()
    refused(ran, checkout, DEBIAN12, "does not fit on the disk", "are lacking", "df -h")
    assert not [path for path in control.counters()["bytes"] if path.endswith("safetensors")]


def test_a_disk_that_fills_up_in_the_middle(checkout: Checkout, hub_faults: Faults) -> None:
    """1 GiB has to stay free beside the model, so the disk is that large and somebody fills it."""
    hub_faults(on(DEBIAN12, Fault("slow", path=SHARD, value=10_000)))
    with small_disk(DEBIAN12, 1200):
        running = checkout.start()
        wait_for(lambda: "safetensors" in shell(DEBIAN12, f"ls -R /{PLACE}/.incoming; true"))
        shell(DEBIAN12, f"dd if=/dev/zero of=/{PLACE}/filler bs=1M 2>/dev/null; true")
        ran = running.finish()
        ran.said("model:", "space")
        assert ran.failed == {DEBIAN12}
        assert "master" not in shell(DEBIAN12, f"ls /{published(DEBIAN12).parent}; true")
        shell(DEBIAN12, f"rm /{PLACE}/filler")
        control.clear_faults()
        checkout.deploy().done()
        assert shell(DEBIAN12, f"ls /{published(DEBIAN12)} | wc -l").strip() == str(FILES)
    checkout.deploy().done()
    assert is_whole(DEBIAN12)
    assert checkout.deploy().done().unchanged
