"""The few calls to systemd that the program makes, with their failures in words."""

from __future__ import annotations

import subprocess

from .errors import HostError

CALL_TIMEOUT_SECONDS = 30.0


def call(arguments: list[str], timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> str:
    """Run systemctl and return its stdout. HostError with systemd's own words when it fails."""
    command = ["systemctl", "--no-pager", "--no-ask-password", *arguments]
    words = " ".join(["systemctl", *arguments])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise HostError(
            f"'{words}' could not be run", "there is no systemctl here.", "Use a systemd host."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"'{words}' did not answer within {timeout_seconds:.0f} seconds",
            "systemd or its bus hangs.",
            "Look at 'systemctl list-jobs' and 'journalctl -b -p warning' on the host.",
        ) from error
    if done.returncode != 0:
        raise HostError(
            f"'{words}' failed with exit code {done.returncode}",
            (done.stderr.strip().splitlines() or ["it printed no reason."])[-1],
            "Look at the unit with 'systemctl status' and 'systemctl cat' on the host.",
            done.stderr.strip().splitlines(),
        )
    return done.stdout


def show(unit: str, properties: list[str]) -> dict[str, str]:
    """The unit's properties; one that systemd leaves out is the empty string."""
    output = call(["show", unit, "--property=" + ",".join(properties)])
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
