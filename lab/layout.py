"""Where the lab keeps its things."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT_DIRECTORY = "/var/lib/fleet-lab"
# One lock for the machine, not one for each state directory: bridge and table names are global.
LOCK_FILE = Path("/run/lock/fleet-lab.lock")


@dataclass(frozen=True)
class HostPaths:
    """Files of one host, below hosts/NAME of the state directory."""

    directory: Path

    @property
    def upper(self) -> Path:
        return self.directory / "upper"

    @property
    def work(self) -> Path:
        return self.directory / "work"

    @property
    def root(self) -> Path:
        """Mount point of the overlay; mounted only in the supervisor's own mount namespace."""
        return self.directory / "root"

    @property
    def shown(self) -> Path:
        """Bound read-only at /etc/fleet-lab in the host, so its state can change while it runs."""
        return self.directory / "etc-fleet-lab"

    @property
    def supervise(self) -> Path:
        return self.directory / "supervise"


@dataclass(frozen=True)
class Layout:
    """The lab's state directory and the repository it serves."""

    directory: Path
    repository: Path = REPOSITORY

    @property
    def state_file(self) -> Path:
        return self.directory / "state.json"

    @property
    def bases(self) -> Path:
        return self.directory / "bases"

    @property
    def layers(self) -> Path:
        return self.directory / "layers"

    @property
    def hosts(self) -> Path:
        return self.directory / "hosts"

    @property
    def trash(self) -> Path:
        return self.directory / "trash"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def admin_key(self) -> Path:
        return self.directory / "keys" / "admin_ed25519"

    def host_key(self, name: str) -> Path:
        """The host's own ssh key: kept apart from its clone, so that a reset keeps it."""
        return self.directory / "keys" / "hosts" / name / "ssh_host_ed25519_key"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def inventory(self) -> Path:
        return self.repository / "inventories" / "lab" / "hosts.yml"

    def host(self, name: str) -> HostPaths:
        return HostPaths(self.hosts / name)

    def console_log(self, name: str) -> Path:
        return self.logs / f"{name}.console.log"


def current_layout() -> Layout:
    """From FLEET_LAB_DIR, default /var/lib/fleet-lab."""
    return Layout(Path(os.environ.get("FLEET_LAB_DIR") or DEFAULT_DIRECTORY).absolute())


def operator_ids() -> tuple[int, int] | None:
    """User and group behind sudo, who must be able to read the lab's key and inventory."""
    user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    return (int(user), int(group)) if user and group and os.geteuid() == 0 else None


def hand_to_operator(path: Path) -> None:
    """Give a file the lab wrote as root to the user who ran sudo; nothing without sudo."""
    ids = operator_ids()
    if ids:
        os.chown(path, *ids)
