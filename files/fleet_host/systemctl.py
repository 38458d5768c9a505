"""The few calls to systemd that the program makes, with their failures in words."""

from __future__ import annotations

import subprocess

from . import programs

CALL_TIMEOUT_SECONDS = 30.0
FIXES = programs.Fixes(
    absent="Use a systemd host.",
    hangs="Look at 'systemctl list-jobs' and 'journalctl -b -p warning' on the host.",
    fails="Look at the unit with 'systemctl status' and 'systemctl cat' on the host.",
)


def call(arguments: list[str], timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> str:
    """Run systemctl and return its stdout. HostError with systemd's own words when it fails."""
    command = ["systemctl", "--no-pager", "--no-ask-password", *arguments]
    return programs.output_of(command, timeout_seconds, FIXES, " ".join(["systemctl", *arguments]))


def show(unit: str, properties: list[str]) -> dict[str, str]:
    """The unit's properties, or without one systemd's; what it leaves out is the empty string."""
    named = [unit] if unit else []
    output = call(["show", *named, "--property=" + ",".join(properties)])
    values = dict.fromkeys(properties, "")
    for line in output.splitlines():
        key, separator, value = line.partition("=")
        if separator and key in values:
            values[key] = value
    return values


def journal_tail(invocation_id: str, lines: int = 20) -> list[str]:
    """The last journal lines of one run of a unit; what went wrong when it cannot be read."""
    command = ["journalctl", "--no-pager", "--quiet", "--output=cat", f"--lines={lines}"]
    try:
        done = subprocess.run(
            [*command, f"_SYSTEMD_INVOCATION_ID={invocation_id}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"(the journal could not be read: {error})"]
    return (done.stdout if done.returncode == 0 else done.stderr).splitlines()
