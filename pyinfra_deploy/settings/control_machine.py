"""What the machine that deploys needs for a connection: key files, a file of known host keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyinfra_deploy.settings.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.settings.fleet import Fleet
    from pyinfra_deploy.settings.inventory_file import Located

KNOWN_HOSTS = "~/.ssh/known_hosts"
# What pyinfra's ssh connector does where nothing is said of it (3.10, connectors/ssh.py).
CHECKING = "accept-new"


def missing_key(key_file: str, name: str, located: Located) -> Iterator[Problem]:
    """pyinfra ends the run of all hosts with a traceback for a key file that is not there."""
    if Path(key_file).is_file():
        return
    yield Problem(
        located.document.shown,
        located.line(),
        name,
        None,
        key_file,
        "there is no such file on this machine, and the host is to be logged in to with this key.",
        "mend the path, or make the key (ssh-keygen -t ed25519 -f FILE); with an ssh-agent the "
        "line is not needed.",
    )


def make_known_hosts(fleet: Fleet) -> None:
    """As ssh does where a new host's key is to be accepted: the directory for its owner alone, the
    file too. pyinfra (3.10, append_hostkey) fails where the directory is missing.

    Where it cannot be made pyinfra says so for each host.
    """
    for host in fleet.hosts.values():
        data = host.connection
        if host.is_local or data.get("ssh_strict_host_key_checking", CHECKING) != CHECKING:
            continue
        path = Path(data.get("ssh_known_hosts_file", KNOWN_HOSTS)).expanduser()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
        except OSError:
            return
