"""Debian 12 and Debian 13 side by side, with the stand-in engine: first deploy to power loss."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import pytest

from lab import hosts
from pyinfra_deploy.deploys import artefacts
from pyinfra_deploy.settings.schema import Runtime, Settings
from tests.hosts import host_state
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts.standin_inventory import Checkout

BOTH = (DEBIAN12, DEBIAN13)


def test_dry_run_on_untouched_hosts_changes_nothing(checkout: Checkout) -> None:
    before = {host: host_state.tree(host) for host in BOTH}
    checkout.deploy("--dry").done().said("will go live: nothing is live yet")
    for host in BOTH:
        assert host_state.differences(before[host], host_state.tree(host)) == []
    assert not (checkout.inventory / "first-key.txt").exists()
    assert not (checkout.inventory / "ca.key").exists()


def test_first_deploy(checkout: Checkout, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    ran = checkout.deploy().done()
    say(f"first deploy of two hosts with the stand-in: {time.monotonic() - began:.0f} s")
    for host in BOTH:
        assert ran.finished(host)
        assert checkout.service(host).answers()
    assert "1.22." in shell(DEBIAN12, "nginx -v 2>&1")
    assert "1.26." in shell(DEBIAN13, "nginx -v 2>&1")
    assert "systemd 257" in shell(DEBIAN13, "systemctl --version")


def test_second_run_changes_nothing(checkout: Checkout) -> None:
    files = {host: host_state.tree(host) for host in BOTH}
    starts = {host: host_state.invocations(host) for host in BOTH}
    ran = checkout.deploy().done()
    assert ran.unchanged, ran.log
    for host in BOTH:
        assert host_state.invocations(host) == starts[host]
        assert host_state.differences(files[host], host_state.tree(host)) == []


@pytest.mark.parametrize("host", BOTH)
def test_units_are_hardened(checkout: Checkout, host: str) -> None:
    figures = host_state.exposures(host)
    assert set(figures) >= host_state.HARDENED
    assert {name: figure for name, figure in figures.items() if figure > 2.0} == {}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("host", BOTH)
def test_units_that_these_hosts_do_not_have_are_hardened_too(
    checkout: Checkout, host: str, device: Literal["cpu", "cuda"]
) -> None:
    """For GPUs, fans and the driver, by the same systemd 252 and 257."""
    runtime = Runtime(vllm="0.33.0", lock="locks/none.txt", device=device)
    units = artefacts.units_of(Settings(runtime=runtime))
    figures = host_state.offline_exposures(
        host, {name: unit.content for name, unit in units.items()}
    )
    services = [name for name in units if name.endswith(".service")]
    assert set(figures) == {name.replace("@.", "@main.") for name in services}
    assert set(figures) > host_state.HARDENED | {
        "llm-chassis-fans.service", "llm-fans.service", "llm-persistence.service",
    }  # fmt: skip
    # It installs kernel modules, and is there only while it does.
    assert [name for name in figures if figures[name] > 2.0] == ["llm-driver@main.service"]


@pytest.mark.parametrize("host", BOTH)
def test_nothing_but_nginx_and_sshd_listens(checkout: Checkout, host: str) -> None:
    found = {line.rsplit(":", 1)[1] for line in host_state.listeners(host)}
    assert found == {"22 sshd", "80 nginx", "443 nginx"}


def test_power_loss_of_serving_hosts(checkout: Checkout) -> None:
    """Everything comes back by itself, and nothing is left to change."""
    for host in BOTH:
        hosts.kill(host)
    for host in BOTH:
        hosts.boot(host)
    for host in BOTH:
        checkout.service(host).wait(60)
    ran = checkout.deploy().done()
    assert ran.unchanged, ran.log


def test_dead_engine_is_started_again(checkout: Checkout) -> None:
    """As when the kernel kills it for memory. RestartSec= is 15 s."""
    service = checkout.service(DEBIAN12)
    shell(DEBIAN12, "systemctl kill --signal=KILL llm-engine@main.service")
    answer = service.request("POST", "/v1/chat/completions", service.chat_body(2))
    assert answer.status == 503
    assert answer.headers["retry-after"].isdigit()
    assert answer.json()["error"]["code"] == "engine_unavailable"
    service.wait(40)
    assert checkout.deploy().done().unchanged
