"""Ctrl-C in a run of pyinfra ends it with exit code 130, as a shell expects (128 + SIGINT).

pyinfra 3.10 (pyinfra_cli/main.py, _handle_interrupt) says "Exiting upon user request!" and ends
with 0: `deploy && next` would go on after half a go-live. It also goes on with what it is at:
disconnecting waits for a place in the pool of hosts at work, so the first Ctrl-C ends nothing while
as many hosts are busy as it takes at a time. Their places are freed here.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
_WORDS = (
    b"Interrupted. Jobs that have begun on hosts go on there: run the same command again, "
    b"which joins them or goes on from what they did.\n"
)


def exit_as_interrupted() -> None:
    """From here on in this process; nothing changes where the process is not pyinfra's."""
    pyinfras = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        return
    # By its name: pyinfra_cli is no public interface, and need not be imported for it.
    if not callable(pyinfras) or not str(pyinfras.__module__).startswith("pyinfra_cli"):
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        # RuntimeError: its print came in the middle of another print.
        with suppress(SystemExit, RuntimeError):
            pyinfras(number, frame)
        os.write(2, _WORDS)
        _end_hosts_at_work()
        raise SystemExit(INTERRUPTED)

    signal.signal(signal.SIGINT, interrupted)


def _end_hosts_at_work() -> None:
    from pyinfra.context import ctx_state

    state = ctx_state.get() if ctx_state.isset() else None
    for name in ("pool", "fact_pool"):
        pool = getattr(state, name, None)  # made with the state, after the inventory is read
        if pool is not None:
            # In the handler of a signal nothing can be waited for.
            pool.kill(block=False)
