"""The engine's log as a file, on a real host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.hosts import host_state
from tests.hosts.lab_session import DEBIAN12, shell, wait_for
from tests.hosts.test_55_proof_and_watch import OLD, UNIT, WATCH, deploy, invocation, wheels
from tests.standin import proving_wheels

if TYPE_CHECKING:
    from tests.hosts.standin_inventory import Checkout

__all__ = ["wheels"]  # a fixture of the whole file


def test_the_log_is_a_file_where_it_is_wanted(checkout: Checkout) -> None:
    """And not any more where it is not: the unit ends, the file stays."""
    service = checkout.service(DEBIAN12)
    log = "/var/log/llm/main.log"
    deploy(checkout, OLD).done()
    checkout.write(
        runtime={"vllm": OLD, "lock": proving_wheels.lock_of(OLD)},
        engine={"proof": "required", "watch": WATCH, "args": {}, "log_file": {"max_mb": 1}},
    )
    started = invocation()
    checkout.deploy("--limit", DEBIAN12).done()
    assert service.answers()
    assert invocation() == started, "a log file is no reason to restart the engine"
    shell(DEBIAN12, f"systemctl restart {UNIT}")
    wait_for(lambda: "Uvicorn running on" in shell(DEBIAN12, f"cat {log}", check=False), 30)
    service.wait(60)
    assert host_state.exposures(DEBIAN12)["llm-log@main.service"] <= 2.0
    deploy(checkout, OLD).done()
    assert shell(DEBIAN12, "systemctl is-active llm-log@main.service", check=False) == "inactive\n"
    assert "Uvicorn running on" in shell(DEBIAN12, f"cat {log}")
