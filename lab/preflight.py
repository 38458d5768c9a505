"""What the machine must have before the lab touches anything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.apt_config import DEBIAN_KEYRING
from lab.commands import SYSTEM_PATH, run_checked
from lab.errors import LabError
from lab.report import timed

PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "tar": "tar",
}
# Debian's keys are not installed on Ubuntu; without them Debian's archive cannot be verified.
FILES = {DEBIAN_KEYRING: "debian-archive-keyring"}
_BASE_BYTES = 2 * 1024**3
_NO_UPPER = ("overlay", "nfs", "nfs4", "9p", "virtiofs", "vfat", "exfat", "ntfs")


def refuse_without_root(command: str, user_id: int) -> None:
    if user_id != 0:
        raise LabError(
            what=f"`lab {command}` needs root",
            why="it makes mounts, network namespaces and a bridge",
            fix=f"sudo --preserve-env=PATH,VIRTUAL_ENV env lab {command}",
        )


def missing_packages(path: str = SYSTEM_PATH, root: Path = Path("/")) -> list[str]:
    """Debian packages that must be installed, each once."""
    programs = [package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)]
    files = [package for name, package in FILES.items() if not (root / name.lstrip("/")).is_file()]
    return list(dict.fromkeys(programs + files))


def refuse_missing(packages: list[str]) -> None:
    if packages:
        raise LabError(
            what=f"the lab needs Debian packages that are not installed: {' '.join(packages)}",
            why="hosts are systemd-nspawn machines made with mmdebstrap, joined by nftables",
            fix=f"apt-get install --no-install-recommends {' '.join(packages)}"
            " (or let the lab do it: `lab up --install`)",
        )


def install_packages(packages: list[str]) -> None:
    """apt-get install; LabError with apt's last words, or where there is no apt-get."""
    if not packages:
        return
    if not shutil.which("apt-get", path=SYSTEM_PATH):
        raise LabError(
            what="the lab cannot install its packages here",
            why="there is no apt-get: this machine is neither Debian nor Ubuntu",
            fix="run the lab on Debian 12 or newer, or Ubuntu 24.04 or newer",
        )
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    hint = "see apt's message; check /etc/apt/sources.list.d and the network, then run it again"
    with timed(f"installing {' '.join(packages)}"):
        run_checked(["apt-get", "-q", "update"], what="apt-get update", fix=hint)
        run_checked(
            ["apt-get", "-qy", "install", "--no-install-recommends", *packages],
            what="installing the lab's packages",
            fix=hint,
        )


def filesystem_of(directory: Path, proc_mounts: str) -> str:
    """Type of the file system that holds a directory, from /proc/mounts."""
    best, kind = "", "unknown"
    for line in proc_mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        point = words[1].replace("\\040", " ")
        inside = point == "/" or str(directory) == point or str(directory).startswith(f"{point}/")
        if inside and len(point) >= len(best):
            best, kind = point, words[2]
    return kind


def refuse_filesystem(directory: Path, kind: str) -> None:
    if kind in _NO_UPPER or kind.startswith("fuse"):
        raise LabError(
            what=f"the lab cannot keep hosts in {directory}",
            why=f"it is on {kind}, which cannot hold the writable layer of an overlay",
            fix="set FLEET_LAB_DIR to a directory on ext4, xfs, btrfs or tmpfs",
        )


def refuse_full_disk(directory: Path, free_bytes: int) -> None:
    if free_bytes < _BASE_BYTES:
        raise LabError(
            what=f"too little space for the lab in {directory}",
            why=f"{free_bytes / 1024**3:.1f} GiB are free, a base and hosts need 2 GiB",
            fix="free some space, or set FLEET_LAB_DIR to a larger disk",
        )


def existing_parent(directory: Path) -> Path:
    while not directory.exists():
        directory = directory.parent
    return directory


def check_machine(command: str, directory: Path, *, install: bool) -> None:
    """Root, packages, file system, space: all that can be known before the first change."""
    refuse_without_root(command, os.geteuid())
    missing = missing_packages()
    if install:
        install_packages(missing)
        missing = missing_packages()
    refuse_missing(missing)
    refuse_filesystem(directory, filesystem_of(directory, Path("/proc/mounts").read_text()))
    if command == "up":  # `down` must work on a full disk: it makes room
        refuse_full_disk(directory, shutil.disk_usage(existing_parent(directory)).free)
