"""An environment's build whose process is killed when a phase begins."""

from __future__ import annotations

import os
import signal
from typing import Any

from fleet_host import environment
from fleet_host.status import Progress


def build_killed_at(phase: str, spec: dict[str, Any]) -> None:
    """In a child of this process. AssertionError when it ended otherwise."""

    class Fatal(Progress):
        def phase(self, name: str, **details: Any) -> None:
            if name == phase:
                os.kill(os.getpid(), signal.SIGKILL)
            super().phase(name, **details)

    child = os.fork()
    if child == 0:
        try:
            environment.run(spec, Fatal(None))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
