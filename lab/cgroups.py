"""Where a host's processes live, so that all of them can be ended at one stroke.

Hosts started from one cgroup would share nspawn's `payload` tree and collide, so each gets its
own. Three machines are known: systemd with cgroup v2 (any current Debian or Ubuntu), and without
systemd as PID 1 either cgroup v2 alone or the hybrid layout (v2 at /sys/fs/cgroup/unified).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

SLICE = "fleetlab.slice"
TREE = "fleet-lab"
ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cgroups:
    """How this machine's cgroups are laid out, and so where hosts go."""

    systemd: bool
    """systemd is PID 1 and owns the tree: hosts run in scopes with a delegated cgroup."""
    unified: Path
    """Mount point of the cgroup2 hierarchy."""
    named: Path | None
    """Mount point of the v1 name=systemd hierarchy of a hybrid machine."""

    def host_tree(self) -> Path:
        return self.unified / (SLICE if self.systemd else TREE)

    def host(self, name: str) -> Path:
        """The cgroup v2 directory that holds all processes of a host."""
        return self.host_tree() / (f"fleetlab-{name}.scope" if self.systemd else name)

    def joined(self, name: str) -> list[Path]:
        """Directories the supervisor puts itself into; none where systemd has done it."""
        if self.systemd:
            return []
        named = [self.named / TREE / name] if self.named else []
        return [*named, self.host(name)]

    def trees(self) -> list[Path]:
        """Top directories of ours, to be removed by `down`; none where systemd removes them."""
        if self.systemd:
            return []
        return [base / TREE for base in (self.named, self.unified) if base]


def mounted_cgroups(proc_mounts: str) -> dict[str, str]:
    """Mount point -> kind, where kind is "cgroup2" or the options of a v1 hierarchy."""
    found = {}
    for line in proc_mounts.splitlines():
        words = line.split()
        if len(words) >= 4 and words[2] in ("cgroup", "cgroup2"):
            found[words[1]] = "cgroup2" if words[2] == "cgroup2" else words[3]
    return found


def choose_cgroups(proc_mounts: str, systemd_is_pid1: bool) -> Cgroups:
    """Pick the layout from /proc/mounts. LabError where hosts cannot be kept apart."""
    mounted = mounted_cgroups(proc_mounts)
    if mounted.get(str(ROOT)) == "cgroup2":
        return Cgroups(systemd=systemd_is_pid1, unified=ROOT, named=None)
    unified, named = ROOT / "unified", ROOT / "systemd"
    if not systemd_is_pid1 and mounted.get(str(unified)) == "cgroup2":
        has_named = "name=systemd" in mounted.get(str(named), "").split(",")
        return Cgroups(systemd=False, unified=unified, named=named if has_named else None)
    raise LabError(
        what="this machine's cgroups do not suit the lab",
        why="hosts need the cgroup v2 hierarchy"
        + (", and under systemd it must be the only one" if systemd_is_pid1 else ""),
        fix="boot with the kernel parameter systemd.unified_cgroup_hierarchy=1, "
        "or mount it: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified",
    )


def machine_cgroups() -> Cgroups:
    """The layout of this machine: sd_booted(3) tells whether systemd is PID 1."""
    return choose_cgroups(Path("/proc/mounts").read_text(), Path("/run/systemd/system").is_dir())


def is_populated(events: str) -> bool:
    """From the text of cgroup.events: does any live process remain below?"""
    return "populated 1" in events.splitlines()


def is_running(cgroups: Cgroups, name: str) -> bool:
    try:
        return is_populated((cgroups.host(name) / "cgroup.events").read_text())
    except OSError:
        return False


def kill_host(cgroups: Cgroups, name: str, timeout_seconds: float = 10.0) -> None:
    """SIGKILL to all processes of the host at once (cgroup.kill, Linux 5.14); waits for the end."""
    directory = cgroups.host(name)
    try:
        (directory / "cgroup.kill").write_text("1")
    except FileNotFoundError:
        if not directory.exists():
            return
        raise LabError(
            what=f"{name} cannot be killed",
            why=f"{directory}/cgroup.kill does not exist: the kernel is older than 5.14",
            fix="use a newer kernel (Debian 12 and Ubuntu 24.04 have one)",
        ) from None
    deadline = time.monotonic() + timeout_seconds
    while is_running(cgroups, name):
        if time.monotonic() > deadline:
            raise LabError(
                what=f"{name} still has processes {timeout_seconds:.0f} s after they were killed",
                why=f"they hang in the kernel; see {directory}/cgroup.procs and those below",
                fix="wait and run the same command again; a reboot of this machine ends them",
            )
        time.sleep(0.01)


def clear_host(cgroups: Cgroups, name: str, timeout_seconds: float = 10.0) -> None:
    """Remove a dead host's cgroups, so that its next boot starts in new ones.

    A cgroup remembers that it was killed. Seen with Linux 6.18: a process that systemd 257 starts
    from its old, once killed init.scope straight into a new cgroup (CLONE_INTO_CGROUP) gets SIGKILL
    at once, as if it had escaped a kill in progress; half of the services fail. 252 forks first.
    """
    if not cgroups.systemd:
        for directory in cgroups.joined(name):
            remove_tree(directory)
        return
    deadline = time.monotonic() + timeout_seconds
    while cgroups.host(name).exists():  # systemd removes an empty scope by itself
        if time.monotonic() > deadline:
            raise LabError(
                what=f"the scope of {name} does not end",
                why=f"{cgroups.host(name)} still exists",
                fix=f"systemctl stop fleetlab-{name}.scope, then run the same command again",
            )
        time.sleep(0.02)


def remove_tree(directory: Path) -> None:
    """Remove a cgroup and those below it, deepest first. Only directories can be removed there."""
    if not directory.is_dir():
        return
    for child in directory.iterdir():
        if child.is_dir():
            remove_tree(child)
    for _ in range(100):
        try:
            directory.rmdir()
            return
        except OSError:
            time.sleep(0.02)  # EBUSY until the last killed process is reaped
    raise LabError(
        what=f"{directory} cannot be removed",
        why="it still holds processes",
        fix=f"see {directory}/cgroup.procs, then run `lab down` again",
    )


def host_names(cgroups: Cgroups) -> list[str]:
    """Hosts that have a cgroup, also those that the state file does not know."""
    tree = cgroups.host_tree()
    if not tree.is_dir():
        return []
    names = [child.name for child in tree.iterdir() if child.is_dir()]
    if cgroups.systemd:
        names = [
            name.removeprefix("fleetlab-").removesuffix(".scope")
            for name in names
            if name.startswith("fleetlab-") and name.endswith(".scope")
        ]
    return sorted(names)
