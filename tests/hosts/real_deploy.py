"""The first deploy of the real vLLM takes minutes, mostly waiting: other tests run meanwhile."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from lab.demo import lock_model
from pyinfra_deploy.keys import keyfile
from tests.hosts import pyinfra_run
from tests.hosts.lab_session import REAL
from tests.hosts.pyinfra_run import REPOSITORY, Ran, Running
from tests.hosts.service import Service

if TYPE_CHECKING:
    from pyinfra_deploy.settings import Fleet

INVENTORY = "inventories/lab.py"
TIMEOUT_SECONDS = 900


def deploy(*options: str) -> Ran:
    return pyinfra_run.deploy(REPOSITORY, INVENTORY, "--limit", REAL, *options)


def real_service(fleet: Fleet) -> Service:
    """The real engine's service with the lab's first key."""
    settings = fleet.hosts[REAL].settings
    assert settings.gateway is not None
    return Service(
        host=REAL,
        server_name=settings.gateway.server_name,
        ca=fleet.directory / "ca.crt",
        key=keyfile.first_key_path(fleet).read_text().strip(),
        model=settings.served_model_name,
    )


class RealDeploy:
    """One deploy in the background, and its end when it is asked for."""

    def __init__(self) -> None:
        self._running: Running | None = None
        self._ran: Ran | None = None
        self._watch = threading.Thread(target=self._wait, daemon=True)
        self.seconds = 0.0
        self.starts_before_reboot: dict[str, str] = {}

    def begin(self) -> None:
        if self._running is None:
            lock_model()
            self._running = pyinfra_run.start(REPOSITORY, INVENTORY, "--limit", REAL)
            self._watch.start()

    def _wait(self) -> None:
        assert self._running is not None
        began = time.monotonic()
        self._ran = self._running.finish(TIMEOUT_SECONDS)
        self.seconds = time.monotonic() - began

    def end(self) -> Ran:
        """Wait for it. The result, the same at each call."""
        self.begin()
        self._watch.join(TIMEOUT_SECONDS)
        assert self._ran is not None, f"it did not end within {TIMEOUT_SECONDS} s"
        return self._ran

    def stop(self) -> None:
        if self._running is not None:
            self._running.kill()
