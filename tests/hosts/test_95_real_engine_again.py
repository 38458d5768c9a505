"""The real engine's host after its reboot: everything came back by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyinfra_deploy.settings import load_fleet
from tests.hosts import host_state
from tests.hosts.lab_session import REAL, shell
from tests.hosts.pyinfra_run import REPOSITORY
from tests.hosts.real_deploy import deploy, real_service
from tests.hosts.traffic import Capture

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


def test_the_real_release_was_proven_before_it_went_live() -> None:
    home = "/srv/llm/engines/main"
    name = shell(REAL, f"basename $(readlink {home}/current)").strip()
    record = json.loads(shell(REAL, f"cat {home}/proofs/{name}.json"))
    assert record["state"] == "passed"
    assert record["seen"]["torch"].endswith("+cpu")
    assert record["seen"]["architectures"] == ["LlamaForCausalLM"]


def test_the_real_engine_sends_nothing_outside_the_inventory() -> None:
    """From before its start, when vLLM's usage report would go out. Nor could it: its network has a
    loopback interface and nothing else."""
    fleet = load_fleet("lab", REPOSITORY)
    service = real_service(fleet)
    with Capture(REAL) as capture:
        shell(REAL, "systemctl restart llm-engine@main.service", timeout_seconds=300)
        service.wait(START_SECONDS)
        for _ in range(5):
            assert service.answers()
    assert len(capture.sent()) > 20
    assert capture.foreign([REAL]) == []
    links = shell(
        REAL,
        "nsenter -n -t $(systemctl show --value -p MainPID llm-engine@main) ip -o link show",
    )
    assert [line.split(": ")[1] for line in links.splitlines()] == ["lo"]
