"""The process that runs one host: systemd-nspawn in a loop, in a cgroup and mount namespace.

The overlay is mounted inside that mount namespace, so the machine's own mount table stays as it is
and a killed host leaves no mount behind.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.cgroups import SLICE, Cgroups
from lab.commands import SYSTEM_PATH
from lab.plan import Host, machine_id_of, netns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.layout import HostPaths

# nspawn's exit status when the host asked for a reboot (nspawn.c, CONTAINER_REBOOTED).
REBOOT_STATUS = 133
MACHINE_PREFIX = "fleetlab-"
NSPAWN_RUN = Path("/run/systemd/nspawn")


@dataclass(frozen=True)
class Boot:
    """All that is needed to start a host."""

    host: Host
    paths: HostPaths
    lower: tuple[Path, ...]
    """Read-only layers, uppermost first."""
    binds: tuple[str, ...]
    machine_id_salt: str
    open_files: int | None = None
    """Hard limit on open files to hand to the host; None leaves nspawn's default."""


def overlay_options(boot: Boot) -> str:
    lower = ":".join(str(path) for path in boot.lower)
    return f"lowerdir={lower},upperdir={boot.paths.upper},workdir={boot.paths.work}"


def nspawn_command(boot: Boot) -> list[str]:
    """systemd-nspawn(1) for one host. CAP_SYS_TIME stays out: the clock is the machine's."""
    name = boot.host.name
    limit = [f"--rlimit=RLIMIT_NOFILE=1024:{boot.open_files}"] if boot.open_files else []
    return [
        "systemd-nspawn",
        "--quiet",
        "--settings=no",
        "--register=no",
        "--keep-unit",
        "--boot",
        f"--directory={boot.paths.root}",
        f"--machine={MACHINE_PREFIX}{name}",
        f"--uuid={machine_id_of(name, boot.machine_id_salt)}",
        f"--hostname={name}",
        f"--network-namespace-path=/run/netns/{netns_of(name)}",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--capability=CAP_NET_ADMIN,CAP_SYSLOG",
        "--console=pipe",
        *limit,
        f"--bind-ro={boot.paths.shown}:/etc/fleet-lab",
        *(f"--bind-ro={path}" for path in boot.binds),
    ]


def supervise_script(boot: Boot, cgroups: Cgroups) -> str:
    """The shell script that becomes the host's supervisor."""
    lines = [
        "#!/bin/sh",
        f"# Written by the lab: runs {boot.host.name} until it powers off; after a reboot, again.",
        "set -eu",
        f"export PATH={SYSTEM_PATH} SYSTEMD_NSPAWN_API_VFS_WRITABLE=network",
    ]
    for directory in cgroups.joined(boot.host.name):
        quoted = shlex.quote(str(directory))
        lines += [f"mkdir -p {quoted}", f"echo $$ > {quoted}/cgroup.procs"]
    if cgroups.named is not None or str(cgroups.unified) != "/sys/fs/cgroup":
        # nspawn reads the layout from here; only this mount namespace sees the change.
        lines.append("mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    # nspawn's lock files and directories, which it leaves behind when killed.
    lines += [f"mkdir -p {NSPAWN_RUN}", f"mount -t tmpfs tmpfs {NSPAWN_RUN}"]
    options, root = shlex.quote(overlay_options(boot)), shlex.quote(str(boot.paths.root))
    lines += [
        f"mount -t overlay -o {options} fleet-lab {root}",
        "while :; do",
        "  status=0",
        f"  {shlex.join(nspawn_command(boot))} </dev/null || status=$?",
        f'  [ "$status" -eq {REBOOT_STATUS} ] || exit "$status"',
        '  echo "lab: reboot"',
        "done",
    ]
    return "\n".join(lines) + "\n"


def start_command(boot: Boot, cgroups: Cgroups) -> list[str]:
    """argv that starts the supervisor and returns at once.

    Under systemd a scope of its own with Delegate=yes, as nspawn's --keep-unit demands
    (https://systemd.io/CGROUP_DELEGATION): the tree below it is nspawn's to use, and systemd
    neither moves the processes nor kills them with the caller's session.
    """
    script: Sequence[str] = ("sh", str(boot.paths.supervise))
    if cgroups.systemd:
        scope = [
            "systemd-run",
            "--quiet",
            "--scope",
            "--collect",
            f"--slice={SLICE}",
            f"--unit=fleetlab-{boot.host.name}",
            "--property=Delegate=yes",
            "--",
        ]
    else:
        scope = []
    # setsid: the host outlives the terminal and does not get its Ctrl-C.
    return ["setsid", "--fork", *scope, "unshare", "-m", "--propagation", "slave", *script]
