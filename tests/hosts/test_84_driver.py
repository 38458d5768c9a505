"""gpu_driver: install on a host that serves: refused without a source, drained, installed,
rebooted, proven, held; gone on with after a kill. The driver is a package whose boot makes the
lab's nvidia-smi tell of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from tests.hosts import care_host, driver_package, host_state
from tests.hosts.driver_package import PACKAGE, VERSION
from tests.hosts.lab_session import DEBIAN12, shell, wait_for
from tests.hosts.standin_inventory import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.pyinfra_run import Ran
    from tests.hosts.standin_inventory import Checkout

HOST = DEBIAN12
WANTED = {"gpu_driver": "install", "gpu_driver_packages": [PACKAGE]}


@pytest.fixture(scope="module")
def driver(steady: Checkout) -> Iterator[Checkout]:
    """A host that serves, with the lab's driver 580; the new one is nowhere in apt."""
    hosts.gpu(HOST, "ok")
    yield steady
    steady.write()


def write(checkout: Checkout, **wanted: Any) -> None:
    variables = {"gpu_host": {**SETTINGS["gpu_host"], "expected_gpus": 8}, **wanted}
    checkout.write(HOST, host_variables={HOST: variables})


def deploy(checkout: Checkout, **wanted: Any) -> Ran:
    write(checkout, **wanted)
    return checkout.deploy()


def boot_id() -> str:
    return shell(HOST, "cat /proc/sys/kernel/random/boot_id")


def test_without_a_source_it_is_refused_and_nothing_changes(driver: Checkout) -> None:
    files, starts = host_state.tree(HOST), host_state.invocations(HOST)
    ran = deploy(driver, **WANTED)
    assert ran.code != 0
    ran.said("driver.not-available", PACKAGE, "The deploy adds no repository")
    assert host_state.differences(files, host_state.tree(HOST)) == []
    assert host_state.invocations(HOST) == starts
    assert driver.service(HOST).answers()


def test_a_run_that_is_killed_while_apt_works_leaves_the_job_to_the_host(
    driver: Checkout, say: Callable[[str], None]
) -> None:
    care_host.add_source(HOST, driver_package.build(HOST))
    before = boot_id()
    write(driver, **WANTED)
    running = driver.start()
    installing = "pgrep -fx 'sleep 8' > /dev/null && echo yes || true"
    wait_for(lambda: shell(HOST, installing).strip() == "yes", 180)
    running.kill()
    # Drained and stopped for it.
    assert care_host.unit(HOST, "llm-engine@main.service")["ActiveState"] != "active"
    state = "systemctl is-active llm-driver@main.service || true"
    wait_for(lambda: shell(HOST, state).strip() != "active", 120)
    assert PACKAGE in care_host.held(HOST)
    assert boot_id() == before
    say("the run was killed; its job installed and held the driver")


def test_the_next_run_reboots_and_the_engine_serves_again(driver: Checkout) -> None:
    before = boot_id()
    release = shell(HOST, "readlink /srv/llm/engines/main/current")
    ran = deploy(driver, **WANTED)
    ran.said("reboot for the driver", f"{VERSION} runs 8 GPUs", "Run the same command again")
    assert ran.code != 0
    assert boot_id() != before
    said = shell(HOST, "nvidia-smi --query-gpu=driver_version --format=csv,noheader").split()
    assert said == [VERSION] * 8
    assert driver.service(HOST).answers()
    assert shell(HOST, "readlink /srv/llm/engines/main/current") == release
    assert "llm-driver@.service" not in shell(HOST, "ls /etc/systemd/system")
    assert json.loads(shell(HOST, "cat /srv/llm/engines/main/golive.json"))["phase"] == "done"


def test_then_the_rest_is_planned_and_nothing_is_left_to_do(driver: Checkout) -> None:
    deploy(driver, **WANTED).done()
    assert PACKAGE in care_host.held(HOST)
    assert deploy(driver, **WANTED).done().unchanged


def test_a_wish_for_less_gives_up_the_hold_and_leaves_the_driver(driver: Checkout) -> None:
    deploy(driver).done()
    assert care_host.held(HOST) == []
    assert shell(HOST, f"dpkg-query -W -f '${{Version}}' {PACKAGE}") == f"{VERSION}-1"
