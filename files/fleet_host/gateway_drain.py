"""A gateway host that is being shut down takes no new requests, and says so.

Nginx answers 503 with Retry-After while the flag is there (templates/nginx), and runs until the
service has finished its answers (the order of the units).
"""

from __future__ import annotations

import time
from typing import Any

from . import durable, layout, systemctl

# planning/nginx.py, GATEWAY_DRAIN_FLAG: no engine can have this name.
FLAG = "_gateway"
BY_SHUTDOWN = "shutdown"


def stopping(_request: dict[str, Any]) -> dict[str, Any]:
    """`gateway stopping`, the unit's ExecStop: {drained}. A restart of the service alone drains
    nothing: what connects meanwhile waits in its socket."""
    if systemctl.show("", ["SystemState"])["SystemState"] != "stopping":
        return {"drained": False}
    flag = layout.run_root() / "llm" / "drain" / FLAG
    if not flag.exists():
        why = "the host is being shut down"
        document = {"by": BY_SHUTDOWN, "reason": why, "since": int(time.time())}
        durable.write_json(flag, document)
    return {"drained": True}


def undrain(_request: dict[str, Any]) -> dict[str, Any]:
    """`gateway undrain`, of the unit's start: {undrained}. What somebody has drained by hand stays
    drained."""
    flag = layout.run_root() / "llm" / "drain" / FLAG
    ours = (durable.read_object(flag) or {}).get("by") == BY_SHUTDOWN
    if ours:
        durable.remove_file(flag)
    return {"undrained": ours}
