"""The gateway service on its host: which environment is live, and whether it answers."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from . import durable, events, fields, layout, probe, systemctl
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

READY_SECONDS = 30.0
POLL_SECONDS = 0.2


def home() -> Path:
    return layout.llm_root() / "gateway"


def socket_path() -> Path:
    return layout.run_root() / "llm-gateway" / "auth.sock"


def linked() -> str | None:
    """The environment that `current` names; None without the link.

    The link and the key files lie in a directory of root's own: whoever builds environments must
    not be able to replace a key file.
    """
    current = home() / "current"
    return current.readlink().name if current.is_symlink() else None


def _environment(name: str) -> Path:
    return layout.llm_root() / "tools" / name


def started(_request: dict[str, Any]) -> dict[str, Any]:
    """`gateway started`, the unit's ExecStartPre: note which environment this start runs."""
    document = {"environment": linked(), "invocation": os.environ.get("INVOCATION_ID", "")}
    path = layout.run_root() / "llm-gateway" / "started.json"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # No fsync: /run is memory, and after a power cut nothing runs.
    temporary.write_text(json.dumps(document) + "\n")
    temporary.replace(path)
    return document


def activate(request: dict[str, Any]) -> dict[str, Any]:
    """`gateway activate` {environment, unit} -> {environment, previous}.

    environment: the name of a complete environment below {llm_root}/tools. The service is
    restarted on it and must answer /ready; else the former environment is put back. Nginx answers
    503 for the moment in between and cuts no running stream: it asks only before a request starts.
    """
    name, unit = fields.text(request, "environment"), fields.text(request, "unit")
    if "/" in name or name.startswith("."):
        raise SpecError(f"{name!r} is no environment's name", "it is a directory.", "Correct it.")
    if durable.read_object(_environment(name) / ".fleet-complete.json") is None:
        raise HostError(
            f"the gateway's environment {name} is not there in full",
            "its completion record is missing or cut off.",
            "Run the deploy; it builds the environment first.",
        )
    previous = linked()
    durable.replace_symlink(home() / "current", f"../tools/{name}")
    systemctl.call(["enable", "--quiet", unit])
    try:
        _restart(unit)
    except HostError:
        if previous not in (None, name) and _environment(str(previous)).is_dir():
            durable.replace_symlink(home() / "current", f"../tools/{previous}")
            _restart(unit)
            events.record("gateway reverted", environment=previous, failed=name)
        raise
    events.record("gateway live", environment=name, previous=previous)
    return {"environment": name, "previous": previous}


def _restart(unit: str) -> None:
    # A unit that has failed too often refuses to start until it is reset.
    systemctl.call(["reset-failed", unit])
    systemctl.call(["restart", unit])
    deadline = time.monotonic() + READY_SECONDS
    seen = "no answer yet"
    while time.monotonic() < deadline:
        try:
            status, _ = probe.request(socket_path(), "GET", "/ready", timeout_seconds=5.0)
        except probe.NotReadyError as error:
            seen = str(error)
        else:
            if status == 200:
                return
            seen = f"/ready was answered {status}"
        shown = systemctl.show(unit, ["ActiveState", "Result", "InvocationID"])
        if shown["ActiveState"] in ("failed", "inactive"):
            seen = f"{unit} is {shown['ActiveState']} ({shown['Result']})"
            break
        time.sleep(POLL_SECONDS)
    shown = systemctl.show(unit, ["InvocationID"])
    raise HostError(
        "the gateway service did not become ready",
        f"{seen}.",
        f"Its log: journalctl -u {unit}. Without it Nginx answers every request 503.",
        systemctl.journal_tail(shown["InvocationID"]) if shown["InvocationID"] else [],
    )
