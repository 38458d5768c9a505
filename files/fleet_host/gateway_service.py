"""Starting, handing over and stopping the gateway service, until it runs what it is to run."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import layout, probe, systemctl
from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DIRECT = "direct"
SOCKET_UNIT = "llm-gateway.socket"
# Above the time that the service's supervisor gives a new worker (30 s).
HAND_OVER_SECONDS = 45.0
READY_SECONDS = 30.0
POLL_SECONDS = 0.2
REFUSED = "it refuses its configuration"


def auth_socket() -> Path:
    return layout.run_root() / "llm-gateway" / "auth.sock"


def api_socket() -> Path:
    return layout.run_root() / "llm-gateway" / "http.sock"


@dataclass(frozen=True)
class Service:
    """shape: what its unit makes of it. stop_seconds: how long its answers may go on when it is
    stopped."""

    unit: str
    shape: str
    stop_seconds: int

    def bring_up(self, environment: str, configuration: str | None, *, was: str | None) -> bool:
        """Have it run this environment and configuration. was: the shape in which it runs.

        True when it handed over, False when it was started. HostError when it does not get there.
        """
        if configuration is None:
            if was not in (None, DIRECT):
                self._leave_full()
            systemctl.call(["enable", "--quiet", self.unit])
            self._restart()
            self._wait(lambda: _answered(auth_socket()), READY_SECONDS)
            return False
        digest = hashlib.sha256(configuration.encode()).hexdigest()
        # A socket unit that is gone cannot come back while its service runs.
        handed_over = was == self.shape and _active(self.unit) and _active(SOCKET_UNIT)
        if not handed_over:
            self._start_on_socket()
        elif _ready().get("environment") != environment:
            systemctl.call(["reload", self.unit])
        systemctl.call(["enable", "--quiet", self.unit, SOCKET_UNIT])
        self._wait(lambda: _in_force(environment, digest), HAND_OVER_SECONDS)
        return handed_over

    def _start_on_socket(self) -> None:
        """Start it anew, on the socket that systemd holds: what connects from here on waits."""
        self._stop(self.unit)
        self._forget_failures()
        systemctl.call(["start", SOCKET_UNIT])
        # Nginx asks there until it has its own new configuration: the service answers /auth too.
        link = auth_socket().with_name(".auth.sock")
        link.unlink(missing_ok=True)
        link.symlink_to(api_socket().name)
        link.replace(auth_socket())
        systemctl.call(["start", self.unit])

    def _leave_full(self) -> None:
        """Nginx brings nothing new by now, but may still ask about keys: it is stopped when the
        last answer is over."""
        deadline = time.monotonic() + self.stop_seconds
        while time.monotonic() < deadline and _outstanding():
            time.sleep(POLL_SECONDS)
        systemctl.call(["disable", "--quiet", SOCKET_UNIT])
        self._stop(self.unit, SOCKET_UNIT)

    def _stop(self, *units: str) -> None:
        systemctl.call(["stop", *units], timeout_seconds=self.stop_seconds + 60.0)

    def _restart(self) -> None:
        self._forget_failures()
        systemctl.call(["restart", self.unit])

    def _forget_failures(self) -> None:
        """A unit that has failed too often refuses to start until it is reset. One that systemd has
        not loaded, as before its first start, cannot be reset."""
        if systemctl.show(self.unit, ["ActiveState"])["ActiveState"] != "inactive":
            systemctl.call(["reset-failed", self.unit])

    def _wait(self, look: Callable[[], str], seconds: float) -> None:
        """Until `look` returns an empty text; what it returns instead says what is missing."""
        deadline = time.monotonic() + seconds
        seen = "no answer yet"
        while time.monotonic() < deadline:
            try:
                seen = look()
            except probe.NotReadyError as error:
                seen = str(error)
            if not seen:
                return
            if seen.startswith(REFUSED):
                break
            shown = systemctl.show(self.unit, ["ActiveState", "Result", "InvocationID"])
            if shown["ActiveState"] in ("failed", "inactive"):
                seen = f"{self.unit} is {shown['ActiveState']} ({shown['Result']})"
                break
            time.sleep(POLL_SECONDS)
        shown = systemctl.show(self.unit, ["InvocationID"])
        raise HostError(
            "the gateway service did not become ready",
            f"{seen}.",
            f"Its log: journalctl -u {self.unit}. Without it Nginx answers every request 503.",
            systemctl.journal_tail(shown["InvocationID"]) if shown["InvocationID"] else [],
        )


def _active(unit: str) -> bool:
    return systemctl.show(unit, ["ActiveState"])["ActiveState"] == "active"


def answers() -> bool:
    """Whether the service answers, in either shape; also where no engine serves just now."""
    if _ready():
        return True
    try:
        return not _answered(auth_socket())
    except probe.NotReadyError:
        return False


def served_models() -> list[str]:
    """One name of each model that the service has an engine for, in the order of its
    configuration, by what the engines say themselves; models whose engines all drain left out."""
    backends = _ready().get("backends") or {}
    open_ones = [one for one in backends.values() if not one.get("draining")]
    return list(dict.fromkeys(str(one["models"][0]) for one in open_ones if one.get("models")))


def _answered(socket: Path) -> str:
    status, _ = probe.request(socket, "GET", "/ready", timeout_seconds=5.0)
    return "" if status == 200 else f"/ready was answered {status}"


def _ready() -> dict[str, Any]:
    """What the service says of itself; empty when it does not answer. Its status is no matter: it
    is 503 as long as no engine serves."""
    try:
        _, body = probe.request(api_socket(), "GET", "/ready", timeout_seconds=5.0)
        document = json.loads(body)
    except (probe.NotReadyError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _outstanding() -> bool:
    backends = _ready().get("backends") or {}
    return any(one.get("outstanding") for one in backends.values())


def _in_force(environment: str, digest: str) -> str:
    """Empty when the service runs this environment with this configuration and has keys."""
    document = _ready()
    if not document:
        return "it does not answer /ready"
    if document.get("environment") != environment:
        return f"environment {document.get('environment')} still runs"
    if document.get("configuration") == digest:
        return "" if document.get("keys") is not None else "it has no keys"
    if document.get("configuration_problem"):
        return f"{REFUSED}: {document['configuration_problem']}"
    return "it has not taken up its configuration yet"
