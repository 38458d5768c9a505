"""The real modelscope client against a hub that misbehaves, a disk that is full, a power cut.

Debian 12's host pulls; the other one must not suffer from it. What serves goes on serving.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import hosts
from lab.hub import control
from lab.hub.faults import LISTING, Fault
from tests.hosts import pyinfra_run
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, upper_of, wait_for
from tests.hosts.standin_inventory import NAME, Checkout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.pyinfra_run import Ran

    Faults = Callable[..., None]

MODELS = Path("srv/llm/models")
PUBLISHED = MODELS / "lab--tiny-qwen3-moe" / "master"
SHARD = "model-00002-of-00003.safetensors"

pytestmark = pytest.mark.usefixtures("steady")


def forget_model() -> None:
    """As on a host that has not pulled it yet."""
    shell(DEBIAN12, f"rm -rf /{PUBLISHED} /{PUBLISHED}.json /{MODELS}/.incoming/*")


def published() -> bool:
    return (upper_of(DEBIAN12) / PUBLISHED).is_dir()


def refused(ran: Ran, checkout: Checkout, *words: str) -> None:
    """One host failed with these words, nothing is visible, and everybody still serves."""
    ran.said(*words)
    assert ran.code == 1
    assert ran.failed == {DEBIAN12}
    assert ran.finished(DEBIAN13)
    assert not published()
    assert checkout.service(DEBIAN12).answers()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("no_sha256", path=SHARD), ["has no Sha256", "not fit to be checked against"]),
        (Fault("omit", path=SHARD), ["is not complete on the hub", SHARD]),
        (
            Fault("extra", value="../../../etc/cron.d/evil"),
            ["leaves the model's directory", "../../../etc/cron.d/evil"],
        ),
        (Fault("no_revision", path="master"), ["has no revision 'master'"]),
        (Fault("error", path=LISTING, value=500), ["it answered 500, 4 times"]),
        (Fault("corrupt", path=SHARD), [SHARD]),
        (Fault("drop", path=SHARD, value=1000), [SHARD]),
    ],
    ids=["no hash", "no shard", "traversal", "no revision", "500", "corrupt", "drop"],
)
def test_a_hub_that_stays_bad_is_named(
    checkout: Checkout, hub_faults: Faults, fault: Fault, words: list[str]
) -> None:
    forget_model()
    hub_faults(fault)
    refused(checkout.deploy(), checkout, "model:", *words)
    assert control.counters()["applied"][fault.kind] >= 1
    assert not (upper_of(DEBIAN12) / "etc/cron.d/evil").exists()


@pytest.mark.parametrize(
    "fault",
    [Fault("corrupt", path=SHARD, times=1), Fault("drop", path=SHARD, times=1)],
    ids=["corrupt", "drop"],
)
def test_a_hub_that_is_bad_once_costs_nothing(
    checkout: Checkout, hub_faults: Faults, fault: Fault
) -> None:
    forget_model()
    hub_faults(fault)
    checkout.deploy().done()
    assert control.counters()["applied"] == {fault.kind: 1}
    assert whole(checkout)


def whole(checkout: Checkout) -> bool:
    """Whether every file is there as the record says, and nothing else, and a run sees it so."""
    script = (
        f"cd /{PUBLISHED} && python3 -c 'import hashlib, json, pathlib\n"
        f'record = json.load(open("/{PUBLISHED}.json"))["files"]\n'
        "here = {p.as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() "
        'for p in pathlib.Path(".").rglob("*") if p.is_file()}\n'
        'wanted = {f["path"]: f["sha256"] for f in record}\n'
        "print(here == wanted and len(here) == 10)'"
    )
    return shell(DEBIAN12, script).strip() == "True" and checkout.deploy().done().unchanged


def test_a_hub_that_is_gone_is_named(checkout: Checkout) -> None:
    forget_model()
    checkout.write(model={"endpoint": "http://10.213.77.1:8099"})
    try:
        refused(checkout.deploy(), checkout, "http://10.213.77.1:8099", "refused")
    finally:
        checkout.write()
    checkout.deploy().done()
    assert whole(checkout)


def test_power_loss_during_the_pull(checkout: Checkout, hub_faults: Faults) -> None:
    forget_model()
    hub_faults(Fault("slow", path=SHARD, value=40_000))
    running = pyinfra_run.start(checkout.root, f"inventories/{NAME}.py")
    staged = upper_of(DEBIAN12) / MODELS / ".incoming/lab--tiny-qwen3-moe/master/model"
    wait_for(lambda: any(path.stat().st_size for path in staged.glob(f"{SHARD}*")))
    hosts.kill(DEBIAN12)
    assert not published()
    hosts.boot(DEBIAN12)
    cut_off = pyinfra_run.finish(running)
    assert cut_off.failed == {DEBIAN12}
    cut_off.said("model:", "run the same command again")
    control.clear_faults()
    control.reset_counters()
    checkout.deploy().done()
    assert whole(checkout)
    # What was good before the cut is not pulled again.
    sent = control.counters()["bytes"]
    assert sum(count for path, count in sent.items() if path.endswith("json")) < 10_000


@contextlib.contextmanager
def small_disk(size_mib: int) -> Iterator[None]:
    """A small file system where the models lie."""
    user = "uid=llm-build,gid=llm-build,mode=0755"
    shell(DEBIAN12, f"mount -t tmpfs -o size={size_mib}m,{user} tmpfs /{MODELS}")
    try:
        yield
    finally:
        shell(DEBIAN12, f"umount -l /{MODELS}")


def test_a_disk_too_small_for_the_model_is_refused_before_a_byte(checkout: Checkout) -> None:
    forget_model()
    control.reset_counters()
    with small_disk(200):
        ran = checkout.deploy()
    refused(ran, checkout, "does not fit on the disk", "are lacking", "df -h")
    assert not [path for path in control.counters()["bytes"] if path.endswith("safetensors")]


def test_a_disk_that_fills_up_in_the_middle(checkout: Checkout, hub_faults: Faults) -> None:
    """1 GiB has to stay free beside the model, so the disk is that large and somebody fills it."""
    hub_faults(Fault("slow", path=SHARD, value=40_000))
    with small_disk(1200):
        running = pyinfra_run.start(checkout.root, f"inventories/{NAME}.py")
        wait_for(lambda: "safetensors" in shell(DEBIAN12, f"ls -R /{MODELS}/.incoming; true"))
        shell(DEBIAN12, f"dd if=/dev/zero of=/{MODELS}/filler bs=1M 2>/dev/null; true")
        ran = pyinfra_run.finish(running)
        ran.said("model:", "space")
        assert ran.failed == {DEBIAN12}
        assert "master" not in shell(DEBIAN12, f"ls /{MODELS}/lab--tiny-qwen3-moe; true")
        shell(DEBIAN12, f"rm /{MODELS}/filler")
        control.clear_faults()
        checkout.deploy().done()
        assert shell(DEBIAN12, f"ls /{PUBLISHED} | wc -l").strip() == "10"
    checkout.deploy().done()
    assert whole(checkout)
