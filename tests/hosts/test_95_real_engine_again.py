"""The real engine's host after its reboot: everything came back by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.settings import load_fleet
from tests.hosts import host_state
from tests.hosts.lab_session import REAL
from tests.hosts.pyinfra_run import REPOSITORY
from tests.hosts.real_deploy import deploy, real_service

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts.real_deploy import RealDeploy

# vLLM's start on two cores takes 30 to 60 s when nothing else runs.
START_SECONDS = 240


def test_everything_comes_back_after_a_reboot(
    real_deploy: RealDeploy, say: Callable[[str], None]
) -> None:
    before = real_deploy.starts_before_reboot
    assert before, "nothing was rebooted: run this together with test_65"
    seconds = real_service(load_fleet("lab", REPOSITORY)).wait(START_SECONDS)
    say(f"the real engine answered, after {seconds:.0f} s of waiting for it here")
    now = host_state.invocations(REAL)
    assert [unit for unit, start in before.items() if now[unit] == start] == []
    ran = deploy().done()
    assert ran.unchanged, ran.log
