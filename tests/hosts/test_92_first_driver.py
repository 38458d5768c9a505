"""The first driver of a bare host: installed, rebooted, proven; then its GPUs can be planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from lab import hosts
from tests.hosts import care_host, driver_package, foresight_host, pyinfra_run
from tests.hosts.driver_package import PACKAGE, VERSION
from tests.hosts.foresight_host import INVENTORY, NAME, SETTINGS
from tests.hosts.lab_session import is_lab_down, shell
from tests.hosts.pyinfra_run import BIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A host of the lab without a driver, whose apt sources have one."""
    was_down = is_lab_down()
    foresight_host.bring_up()
    hosts.gpu(NAME, "no-library")
    care_host.add_source(NAME, driver_package.build(NAME))
    root = tmp_path_factory.mktemp("driver")
    found = foresight_host.checkout(root, [NAME])
    wanted = {**SETTINGS, "gpu_driver": "install", "gpu_driver_packages": [PACKAGE]}
    (root / "group_vars" / f"{INVENTORY}.yml").write_text(yaml.safe_dump(wanted))
    yield found
    foresight_host.take_down(was_down=was_down)


def plan(inventory: Path) -> tuple[int, str]:
    done = pyinfra_run.run([str(BIN / "fleet"), "plan", str(inventory)], root=inventory.parents[1])
    return done.returncode, done.stdout + done.stderr


def test_a_first_driver(inventory: Path) -> None:
    code, text = plan(inventory)
    assert code == 2, text
    assert "[driver.will-install]" in text
    before = shell(NAME, "cat /proc/sys/kernel/random/boot_id")
    ran = pyinfra_run.deploy(inventory.parents[1], f"inventories/{INVENTORY}.py")
    ran.said(f"{VERSION} runs 8 GPUs", "Run the same command again")
    assert ran.code != 0
    assert shell(NAME, "cat /proc/sys/kernel/random/boot_id") != before
    assert care_host.held(NAME) == [PACKAGE]
    # Nothing else of ours has come with it.
    found = shell(NAME, "find /srv/llm/runtimes /srv/llm/models /srv/llm/tools -type f")
    assert found == ""
    code, text = plan(inventory)
    assert "8x NVIDIA L20" in text
    assert "driver.will-install" not in text
    assert f"driver {VERSION}" in text
