"""Hosts that cannot be reached, runs that are killed, and two runs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from lab.commands import run_checked
from lab.hub.faults import Fault
from tests.hosts import host_state
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, upper_of, wait_for
from tests.hosts.standin_inventory import MODELS, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.hosts.pyinfra_run import Ran, Running
    from tests.hosts.standin_inventory import Checkout

LEASE = "srv/llm/state/lease.json"
SHARD = "model-00002-of-00003.safetensors"

pytestmark = pytest.mark.usefixtures("steady")


def named(ran: Ran, host: str, *words: str) -> None:
    """The run names the host and the cause, fails, and the other host has been dealt with."""
    assert ran.code == 1, ran.log
    assert host in ran.log
    ran.said(*words)
    assert ran.finished(DEBIAN12)


def test_a_host_that_is_down(checkout: Checkout) -> None:
    hosts.kill(DEBIAN13)
    ran = checkout.deploy()
    hosts.boot(DEBIAN13)
    named(ran, DEBIAN13)
    checkout.service(DEBIAN13).wait(30)
    assert checkout.deploy().done().unchanged


def test_a_wrong_ssh_key(checkout: Checkout, tmp_path: Path) -> None:
    key = tmp_path / "wrong"
    run_checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], what="a key")
    checkout.write(
        host_variables={DEBIAN13: {"ansible_ssh_private_key_file": str(key)}},
    )
    named(checkout.deploy(), DEBIAN13, "uthentication")
    checkout.write()


def test_a_user_without_sudo(checkout: Checkout) -> None:
    shell(
        DEBIAN13,
        "id nosudo >/dev/null 2>&1 || { useradd -m nosudo && mkdir -p ~nosudo/.ssh && "
        "cp ~admin/.ssh/authorized_keys ~nosudo/.ssh/ && chown -R nosudo: ~nosudo/.ssh; }",
    )
    checkout.write(host_variables={DEBIAN13: {"ansible_user": "nosudo"}})
    named(checkout.deploy(), DEBIAN13, "sudo")
    checkout.write()


GPUS = {**SETTINGS["gpu_host"], "expected_gpus": 8}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "for its GPUs": ("fallen-off", {"gpu_host": GPUS}, "gpu.fallen-off"),
    # 3 divides no number of heads of the lab's models.
    "for its settings": (
        "ok",
        {"gpu_host": GPUS,
         "engine": {**SETTINGS["engine"], "args": {"tensor-parallel-size": 3}}},
        "parallel.heads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_host_serves_on_unchanged_and_the_other_is_changed(
    checkout: Checkout, why: str
) -> None:
    state, own, refusal = REFUSED[why]
    hosts.gpu(DEBIAN13, state)
    # A change for both: the size of bodies that Nginx takes.
    checkout.write(host_variables={DEBIAN13: own}, gateway={"max_body_mb": 17})
    before = host_state.tree(DEBIAN13), host_state.invocations(DEBIAN13)
    ran = checkout.deploy()
    after = host_state.tree(DEBIAN13), host_state.invocations(DEBIAN13)
    hosts.gpu(DEBIAN13, "ok")
    sizes = "grep -rh client_max_body_size /etc/nginx"
    changed = shell(DEBIAN12, sizes)
    checkout.write()
    checkout.deploy().done()
    named(ran, DEBIAN13, refusal)
    assert ran.failed == {DEBIAN13}
    assert host_state.differences(before[0], after[0]) == []
    assert before[1] == after[1]
    assert "17m" in changed
    assert "17m" not in shell(DEBIAN12, sizes)
    assert checkout.service(DEBIAN13).answers()


def test_an_unknown_group(checkout: Checkout) -> None:
    ran = checkout.deploy("--limit", "gatewya")
    assert ran.code == 1
    ran.said("matches no group and no host", 'did you mean "gateway"?')


def begin_slow_pull(checkout: Checkout, hub_faults: Callable[..., None]) -> Running:
    """A run that has Debian 12's host for some seconds."""
    model = "/srv/llm/models/lab--tiny-qwen3-moe"
    shell(DEBIAN12, f"rm -rf {model} /srv/llm/models/.incoming/*")
    hub_faults(Fault("slow", model=MODELS[DEBIAN12], path=SHARD, value=40_000))
    running = checkout.start()
    wait_for((upper_of(DEBIAN12) / LEASE).exists)
    return running


def test_two_runs_at_once_never_interleave(
    checkout: Checkout, hub_faults: Callable[..., None]
) -> None:
    first = begin_slow_pull(checkout, hub_faults)
    second = checkout.deploy()
    assert first.process.poll() is None, "the first run was too quick for this test"
    assert second.code == 1
    assert second.failed == {DEBIAN12}
    second.said("another run is at work on this host", "Wait for it")
    first.finish().done()
    assert checkout.deploy().done().unchanged


def test_the_lease_of_a_killed_run_is_taken_over_at_once(
    checkout: Checkout, hub_faults: Callable[..., None]
) -> None:
    begin_slow_pull(checkout, hub_faults).kill()
    assert (upper_of(DEBIAN12) / LEASE).exists()
    checkout.deploy().done().said("was killed: taking over")
    assert not (upper_of(DEBIAN12) / LEASE).exists()
    assert checkout.deploy().done().unchanged
