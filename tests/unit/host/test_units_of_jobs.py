"""The job units: exposure as systemd itself rates it, and what they must and must not say."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
from fleet_host import jobs

TEMPLATES = Path(__file__).parents[3] / "templates" / "units"


def render(kind: str) -> str:
    text = (TEMPLATES / f"llm-{kind}@.service.j2").read_text()
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - not HTML
    template = environment.from_string(text)
    return template.render(llm_root="/srv/llm", users={"build": "llm-build"})


@pytest.mark.parametrize("kind", ["environment", "pull", "wheels"])
def test_the_unit_runs_its_own_kind_as_the_build_user_without_restarts(kind: str) -> None:
    lines = render(kind).splitlines()
    assert f"ExecStart=/srv/llm/bin/fleet-host job run {kind} %i" in lines
    for line in ("User=llm-build", "Type=exec", "Restart=no", "KillMode=control-group"):
        assert line in lines
    assert f"RuntimeDirectory=llm-{kind}/%i" in lines
    assert f"StateDirectory=llm-{kind}/%i" in lines
    assert not any(line.startswith(("IPAddress", "PrivateNetwork=yes")) for line in lines)


def writable(kind: str) -> list[str]:
    (line,) = [line for line in render(kind).splitlines() if line.startswith("ReadWritePaths=")]
    return line.removeprefix("ReadWritePaths=").split()


def test_each_unit_may_write_only_what_it_makes() -> None:
    assert writable("pull") == ["-/srv/llm/models"]
    assert writable("environment") == ["-/srv/llm/runtimes", "-/srv/llm/tools"]
    assert writable("wheels") == ["-/srv/llm/wheels"]


def test_a_verification_reads_at_low_priority_and_reaches_nobody() -> None:
    lines = render("verify").splitlines()
    assert "ExecStart=/srv/llm/bin/fleet-host job run verify %i" in lines
    for line in ("User=llm-build", "Restart=no", "PrivateNetwork=yes", "CapabilityBoundingSet="):
        assert line in lines
    for line in ("Nice=19", "CPUSchedulingPolicy=idle", "IOSchedulingClass=idle"):
        assert line in lines
    assert writable("verify") == ["-/srv/llm/models"]


@pytest.mark.parametrize("kind", ["pull", "verify"])
def test_what_a_job_did_to_models_is_put_into_the_log_by_root_however_it_ended(kind: str) -> None:
    # Without "+" it would run as the build user, who may not write there.
    line = f"ExecStopPost=+/srv/llm/bin/fleet-host job record {kind} %i"
    assert line in render(kind).splitlines()


def test_the_timer_starts_the_job_that_needs_no_request() -> None:
    text = (TEMPLATES / "llm-verify.timer.j2").read_text()
    assert f"Unit=llm-{jobs.SCHEDULED[0]}@{jobs.SCHEDULED[1]}.service" in text.splitlines()


def test_the_server_of_wheels_lets_nobody_through_by_itself_and_writes_nothing() -> None:
    lines = render("serve").splitlines()
    assert "IPAddressDeny=any" in lines
    assert not any(line.startswith(("IPAddressAllow", "ReadWritePaths")) for line in lines)
    assert "ExecStart=/srv/llm/bin/fleet-host job run serve %i" in lines
    for line in ("User=llm-build", "Restart=no", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert line in lines


def test_the_server_of_models_is_let_through_nobody_ends_and_takes_its_secrets_along() -> None:
    lines = render("share").splitlines()
    assert "IPAddressDeny=any" in lines
    assert not any(line.startswith(("IPAddressAllow", "ReadWritePaths")) for line in lines)
    assert "ExecStart=/srv/llm/bin/fleet-host job run share %i" in lines
    for line in ("User=llm-build", "Restart=no", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert line in lines
    assert "RuntimeMaxSec=2d" in lines
    assert "ExecStopPost=+/srv/llm/bin/fleet-host fan-out closed" in lines
    assert "[Install]" not in lines, "a boot must not open it"
