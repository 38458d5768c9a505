"""A parent that holds the listening socket and one worker that serves on it.

SIGHUP (systemctl reload) starts a new worker, from the code and environment that are there by now,
and once it serves lets the old one finish its answers: an upgrade that cuts no stream and lets no
request wait. A new worker that does not come up is ended, and the old one goes on.

A worker that dies is started again; meanwhile connections wait in the socket's queue. The parent
itself does nothing that could fail: it imports neither the service nor its libraries.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger("llm_gateway.supervise")

READY_SECONDS = 30.0
RESPAWN_SECONDS = 1.0
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}

Worker = subprocess.Popen[bytes]


@dataclass
class Supervisor:
    """command: what starts a worker now, and its environment; the numbers of the socket and of the
    ready pipe are appended to it."""

    listener: socket.socket
    command: Callable[[], tuple[Sequence[str], Mapping[str, str]]]
    ready_seconds: float = READY_SECONDS
    current: Worker | None = None
    leaving: list[Worker] = field(default_factory=list)

    def run(self) -> int:
        """Supervise until SIGTERM or SIGINT; the exit status."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.current = self._start()
        retry_at: float | None = None
        while True:
            received = signal.sigtimedwait(SIGNALS, RESPAWN_SECONDS)
            number = received.si_signo if received is not None else 0
            if number in (signal.SIGTERM, signal.SIGINT):
                return self._end()
            self.leaving = [worker for worker in self.leaving if worker.poll() is None]
            if self.current is not None and self.current.poll() is not None:
                log.error("the worker ended by itself (%s)", _how(self.current))
                self.current, retry_at = None, time.monotonic() + RESPAWN_SECONDS
            if number == signal.SIGHUP:
                self._hand_over()
            elif self.current is None and (retry_at is None or time.monotonic() >= retry_at):
                self.current = self._start()
                retry_at = time.monotonic() + RESPAWN_SECONDS

    def _start(self) -> Worker | None:
        """A worker that accepts connections, or None when it does not come up in time."""
        reading, writing = os.pipe()
        try:
            command, environment = self.command()
            worker = subprocess.Popen(
                [*command, str(self.listener.fileno()), str(writing)],
                env=environment,
                pass_fds=(self.listener.fileno(), writing),
            )
        except OSError as error:
            log.error("cannot start a worker: %s", error.strerror)
            os.close(reading)
            return None
        finally:
            os.close(writing)
        # Readable by its byte, or by its end.
        told, _, _ = select.select([reading], [], [], self.ready_seconds)
        ready = bool(told) and os.read(reading, 1) == b"1"
        os.close(reading)
        if ready:
            return worker
        if told:
            worker.wait()
            log.error("the worker ended before it served (%s); its lines are above", _how(worker))
        else:
            worker.kill()
            worker.wait()
            log.error("the worker did not come up within %g seconds", self.ready_seconds)
        return None

    def _hand_over(self) -> None:
        successor = self._start()
        if successor is None:
            log.error("hand-over failed: the worker that serves goes on")
            return
        if self.current is not None:
            self.current.send_signal(signal.SIGUSR1)
            self.leaving.append(self.current)
        self.current = successor
        log.info("handed over to worker %d", successor.pid)

    def _end(self) -> int:
        workers = [*self.leaving, *([self.current] if self.current is not None else [])]
        self.listener.close()
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.wait()  # its own limit ends it, or systemd's
        return 0


def worker_command() -> tuple[list[str], dict[str, str]]:
    """A worker of what `current` leads to now: sys.executable and PYTHONPATH are paths through it.

    The links are followed here: a worker that finishes its answers after `current` has moved on
    must not import what is left of its imports from another version.
    """
    executable = Path(sys.executable)
    # Not the program itself, a link out of the environment.
    program = executable.parent.resolve() / executable.name
    environment = dict(os.environ)
    if places := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = ":".join(
            str(Path(place).resolve()) for place in places.split(":") if place
        )
    return [str(program), "-m", "llm_gateway", "--worker"], environment


def _how(worker: Worker) -> str:
    code = worker.returncode
    return f"signal {-code}" if code < 0 else f"exit status {code}"
