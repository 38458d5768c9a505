"""An upgrade that does not fit beside the runtime that is there is refused by the plan."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning.runtime_room import room_findings
from pyinfra_deploy.planning.wanted import Environment

LOCK = "vllm==0.34.0 \\\n    --hash=sha256:00\ntorch==2.14.0 \\\n    --hash=sha256:00\n"
OTHER = {
    "/srv/llm/runtimes/vllm-0.33.0-1": {
        "installer": "uv",
        "versions": {"vllm": "0.33.0", "torch": "2.14.0"},
    }
}


def runtime(installer: str = "uv") -> Environment:
    job = {
        "bytes_needed": 10_000,
        "installer": installer,
        "requirements": LOCK,
        "wheel_bytes": {"vllm": 25, "torch": 75},
    }
    return Environment("vLLM 0.34.0", "vllm-0.34.0-2", "/srv/llm/runtimes/x", "d", job)


def snapshot(free_bytes: int | None, environments: dict[str, Any]) -> dict[str, Any]:
    disk = {"llm_root": {"path": "/srv", "free_bytes": free_bytes}}
    return {"disk": disk, "environments": environments}


@pytest.mark.parametrize(
    ("free_bytes", "installer", "refused"),
    [
        (10_000, "pip", False),
        (9_999, "pip", True),
        (2_500, "uv", False),  # torch, three quarters of it, is there in the same version
        (2_499, "uv", True),
        (None, "uv", False),
    ],
)
def test_what_is_shared_takes_no_room_again(
    free_bytes: int | None, installer: str, refused: bool
) -> None:
    found = room_findings("gpu01", "/srv/llm", snapshot(free_bytes, OTHER), runtime(installer))
    assert [finding.id for finding in found] == (["disk.runtime"] if refused else [])
    for finding in found:
        assert finding.severity == "refuse"
        assert "vLLM 0.34.0 needs" in str(finding)
        assert "fleet runtime list" in str(finding)


def test_without_another_runtime_or_without_a_new_one_nothing_is_said() -> None:
    assert room_findings("gpu01", "/srv/llm", snapshot(1, {}), runtime()) == ()
    assert room_findings("gpu01", "/srv/llm", snapshot(1, OTHER), None) == ()
    tools = {"/srv/llm/tools/uv-1": {"installer": "pip", "versions": {}}}
    assert room_findings("gpu01", "/srv/llm", snapshot(1, tools), runtime()) == ()
