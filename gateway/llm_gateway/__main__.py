"""`python -m llm_gateway [--socket PATH]`: the service as its unit runs it.

Without LLM_GATEWAY_CONFIG one process answers /auth (gateway.mode: direct). With it a supervisor
runs the worker that serves the API (gateway.mode: full).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .listening import inherited, listen
from .serving_log import configure_logging
from .supervise import SIGNALS, Supervisor, worker_command

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIG_VARIABLE = "LLM_GATEWAY_CONFIG"
_DIRECT_STOP_SECONDS = 5.0

__all__ = ["listen", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve on a Unix socket until SIGTERM; requests in flight are answered first."""
    parser = argparse.ArgumentParser(prog="llm_gateway", description=main.__doc__)
    parser.add_argument(
        "--socket", type=Path, help="Unix socket to listen on, unless systemd passes one"
    )
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    configure_logging()
    if given.worker is not None:
        return _serve_api(*given.worker)
    listener = inherited(os.environ, os.getpid())
    if listener is None:
        if given.socket is None:
            parser.error("--socket is needed: systemd has passed no socket")
        listener = listen(given.socket)
    if os.environ.get(CONFIG_VARIABLE):
        return Supervisor(listener, worker_command).run()
    return _serve_keys(listener)


def _serve_keys(listener: socket.socket) -> int:
    from .app import app_from_environment
    from .serving import Server

    application = app_from_environment()
    Server(application, stopping=lambda: _DIRECT_STOP_SECONDS).run(sockets=[listener])
    return 0


def _serve_api(listener_fd: int, ready_fd: int) -> int:
    from .app import table_from_environment
    from .bodies import MAX_DIGITS
    from .service import Service
    from .serving import Server
    from .watched import ConfigFile

    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    sys.set_int_max_str_digits(MAX_DIGITS)
    service = Service(
        table_from_environment(), ConfigFile(Path(os.environ.get(CONFIG_VARIABLE, "")))
    )
    server = Server(
        service.application, stopping=service.begin_stop, ready_fd=ready_fd, parent=parent
    )
    server.run(sockets=[socket.socket(fileno=listener_fd)])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
