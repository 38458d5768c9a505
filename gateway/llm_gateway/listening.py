"""The socket that the service listens on: handed over by systemd, or made here."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# sd_listen_fds(3): the first descriptor that systemd passes.
FIRST_FD = 3
BACKLOG = 1024


def inherited(environment: Mapping[str, str], pid: int) -> socket.socket | None:
    """The listening socket of a socket unit, or None when none was passed to this process.

    While the service restarts, systemd keeps it: connections wait in its queue, none is refused.
    Raises SystemExit when there are several, as then it is not clear which one is meant.
    """
    if environment.get("LISTEN_PID") != str(pid):
        return None
    try:
        count = int(environment.get("LISTEN_FDS", "0"))
    except ValueError:
        count = -1
    if count == 0:
        return None
    if count != 1:
        raise SystemExit(
            f"LISTEN_FDS is {environment.get('LISTEN_FDS')!r}: the socket unit must have exactly "
            "one ListenStream="
        )
    return socket.socket(fileno=FIRST_FD)


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
        # At once: what connects while the service is still starting waits, and is not refused.
        listener.listen(BACKLOG)
    except OSError as error:
        raise SystemExit(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.umask(previous)
    return listener
