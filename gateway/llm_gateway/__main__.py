"""`python -m llm_gateway --socket PATH`: the service as its unit runs it."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import stat
from pathlib import Path

import uvicorn

from .app import app_from_environment


def main() -> None:
    """Serve on a Unix socket until SIGTERM; requests in flight are answered first."""
    parser = argparse.ArgumentParser(prog="llm_gateway", description=main.__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    arguments = parser.parse_args()
    # journald adds the time, the host and the unit.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    application = app_from_environment()
    listener = listen(arguments.socket)
    config = uvicorn.Config(
        application,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        # Longer than Nginx keeps an idle connection to us (30 s), so that Nginx is the one to close
        # and never sends a request into a connection that is just being closed.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        backlog=1024,
    )
    uvicorn.Server(config).run(sockets=[listener])


def listen(path: Path) -> socket.socket:
    """A listening Unix socket that its owner and group may connect to.

    The group is the process's own (the unit's Group=llm-http): Nginx's user is a member of it.
    A socket left by a killed predecessor is replaced; anything else at the path is an error.
    """
    if path.exists() and stat.S_ISSOCK(path.lstat().st_mode):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Between bind and chmod the socket would be open to more than it should be.
    previous = os.umask(0o117)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise SystemExit(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.umask(previous)
    return listener


if __name__ == "__main__":
    main()
