"""Fixtures of the tests on real hosts. They need root, and run in the order of the files' names."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub import control
from tests.hosts import lab_session
from tests.hosts.real_deploy import RealDeploy
from tests.hosts.standin_inventory import Checkout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab.hub.faults import Fault

HERE = __file__.rsplit("/", 1)[0]
# For working on a test: hosts and inventory stay, and the next run takes them as they are.
KEEP = bool(os.environ.get("FLEET_KEEP"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    reason = "real hosts need root (namespaces, mounts, a bridge): run `sudo make hosts`"
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line of progress past pytest's capturing."""
    capturing: Any = request.config.pluginmanager.get_plugin("capturemanager")

    def write(text: str) -> None:
        with capturing.global_and_fixture_disabled():
            print(f"\n  {text}", end="", flush=True)

    return write


@pytest.fixture(scope="session")
def lab_hosts() -> Iterator[None]:
    """The tests' hosts, fresh, with the hub beside them."""
    put_back = lab_session.bring_up(keep=KEEP)
    yield
    put_back()


@pytest.fixture(scope="session")
def checkout(lab_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The stand-in's inventory, as all tests share it."""
    if KEEP:
        return Checkout(Path(tempfile.gettempdir()) / "fleet-hosts-checkout")
    # One a process, as the hosts are: tests/soak has a fixture of its own from here.
    directory = tmp_path_factory.getbasetemp() / "checkout"
    return Checkout(directory)


@pytest.fixture(scope="module")
def steady(checkout: Checkout) -> Checkout:
    """Both stand-in hosts serve by the settings as they are in standin_inventory.py."""
    checkout.write()
    checkout.deploy().done()
    return checkout


@pytest.fixture
def hub_faults() -> Iterator[Callable[..., None]]:
    """Switch faults of the lab's hub on; off again after the test."""

    def switch(*faults: Fault) -> None:
        control.reset_counters()
        control.set_faults(*faults)

    yield switch
    control.clear_faults()


@pytest.fixture(scope="session")
def real_deploy(lab_hosts: None) -> Iterator[RealDeploy]:
    """The real vLLM's first deploy, in the background from the first test on."""
    deploy = RealDeploy()
    yield deploy
    deploy.stop()
