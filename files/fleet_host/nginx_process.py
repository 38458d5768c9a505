"""The running Nginx: start it, have it load its files, and see as a client whether it did."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import fields, layout, systemctl
from .errors import HostError

UNIT = "nginx.service"
LOAD_SECONDS = 10.0
PROBE_SECONDS = 10.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Probe:
    """A request that the new configuration must answer with a status."""

    port: int
    server_name: str
    path: str
    status: int


def read_probe(asked: dict[str, Any]) -> Probe:
    return Probe(
        port=fields.whole(asked, "port"),
        server_name=fields.text(asked, "server_name"),
        path=fields.text(asked, "path", "/"),
        status=fields.whole(asked, "status", 200),
    )


def is_active() -> bool:
    return systemctl.show(UNIT, ["ActiveState"])["ActiveState"] == "active"


def enable() -> bool:
    """Have it come back at each boot, as the package does it; False when that is so already."""
    if systemctl.show(UNIT, ["UnitFileState"])["UnitFileState"] == "enabled":
        return False
    systemctl.call(["enable", UNIT])
    return True


def start() -> None:
    systemctl.call(["reset-failed", UNIT])
    try:
        systemctl.call(["start", UNIT])
    except HostError as error:
        raise HostError(
            "Nginx did not start with the new configuration",
            _bind_error() or f"{error.why}",
            "See its log below; a port that is taken shows with 'ss -ltnp' on the host.",
            _log(),
        ) from error


def stop() -> None:
    """Back to inactive, as it was found."""
    systemctl.call(["stop", UNIT])


def reload() -> None:
    """Load the files, and make sure that it did: `systemctl reload` succeeds although Nginx keeps
    its old configuration, for example because a new port is taken."""
    master = int(systemctl.show(UNIT, ["MainPID"])["MainPID"] or 0)
    before = workers(master)
    systemctl.call(["reload", UNIT])
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline:
        now = workers(master)
        # New workers are what a successful reload makes. Old ones may live on for their streams,
        # but until they say so in their title they still accept, with the old configuration.
        if now is None or before is None:
            return  # not to be seen from here: the probe has to do
        if now - before and not any(_accepts(pid) for pid in now & before):
            return
        time.sleep(POLL_SECONDS)
    raise HostError(
        "Nginx did not take over the new configuration; the old one runs on",
        _bind_error() or f"no new worker process appeared within {LOAD_SECONDS:.0f} seconds.",
        "See the end of its error log below.",
        _log(),
    )


def reload_quietly() -> None:
    """The reload after files were put back: the error that led here is the one to be told."""
    try:
        systemctl.call(["reload", UNIT])
    except HostError as error:
        _aside(f"after going back: {error}")


def _aside(text: str) -> None:
    subprocess.run(["logger", "-t", "fleet-host", text], check=False, capture_output=True)


def workers(master: int) -> set[int] | None:
    """The master's child processes; None when they cannot be read."""
    try:
        text = Path(f"/proc/{master}/task/{master}/children").read_text()
    except OSError:
        return None
    return {int(pid) for pid in text.split()}


def _accepts(pid: int) -> bool:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return False  # it has ended
    return "worker process" in title and "shutting down" not in title


def _log(lines: int = 15) -> list[str]:
    """The end of the unit's journal and of the error log, repeated messages once."""
    shown = systemctl.show(UNIT, ["InvocationID"])["InvocationID"]
    found = systemctl.journal_tail(shown, lines) if shown else []
    path = layout.log_root() / "nginx" / "error.log"
    if path.exists():
        found = [*found, *path.read_text(errors="replace").splitlines()[-lines:]]
    # Nginx tries to bind five times: the same words after another date and process number.
    return list({_message(line): line for line in found}.values())


def _message(line: str) -> str:
    """A line of Nginx's log without date, level and process number."""
    return re.sub(r"^.*?\[\w+\] (\d+#\d+: )?", "", line).strip()


def _bind_error() -> str | None:
    taken = [_message(line) for line in _log() if "bind() to" in line]
    return f"{taken[-1]}." if taken else None


def wait_for(probe: Probe) -> None:
    """HostError unless the probe is answered as wanted within PROBE_SECONDS."""
    deadline = time.monotonic() + PROBE_SECONDS
    while True:
        seen = ask(probe)
        if seen == str(probe.status):
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS * 2)
    raise HostError(
        "the new Nginx configuration does not answer as it should; the old one is back",
        f"https://{probe.server_name}:{probe.port}{probe.path} on 127.0.0.1 gave {seen}, "
        f"{probe.status} was expected.",
        "See the end of Nginx's log below, and whether the services behind it run.",
        _log(),
    )


def ask(probe: Probe) -> str:
    """The status that the probe gets, or what went wrong, as text."""
    # Whose certificate it is, is for `verify`: here only that this configuration answers.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", probe.port, timeout=5, context=context)
    try:
        # http.client takes the name for SNI from the host; Nginx picks the server by both.
        connection.sock = _tls(context, probe)
        connection.request("GET", probe.path, headers={"Host": probe.server_name})
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def _tls(context: ssl.SSLContext, probe: Probe) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", probe.port), timeout=5)
    try:
        return context.wrap_socket(raw, server_hostname=probe.server_name)
    except OSError:
        raw.close()
        raise
