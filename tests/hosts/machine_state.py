"""What this machine is like, for comparing before and after the lab: what others made is in it."""

from __future__ import annotations

from pathlib import Path

from lab.cgroups import SLICE, TREE, machine_cgroups
from lab.commands import run_checked
from lab.machine import SYSCTLS, sysctl_path

# What `ip netns` and systemd-nspawn make by the way, and leave.
BY_THE_WAY = ("/run/netns", "/run/systemd/nspawn")


def snapshot() -> dict[str, list[str]]:
    """kind -> sorted lines of what there is of it."""
    lines = {
        "links": [_link(path) for path in Path("/sys/class/net").iterdir()],
        "routes": _output("ip", "-o", "route").splitlines(),
        # -s: without counters, which go on counting.
        "nft": _output("nft", "-s", "list", "ruleset").splitlines(),
        "netns": _names(Path("/run/netns")),
        "mounts": [_mount(line) for line in Path("/proc/self/mountinfo").read_text().splitlines()],
        "sysctls": [f"{key} = {sysctl_path(key).read_text().strip()}" for key in SYSCTLS],
        "cgroups": _cgroups(),
        "processes": _processes(),
        "left": [path for path in BY_THE_WAY if Path(path).exists()],
    }
    return {kind: sorted(found) for kind, found in lines.items()}


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """`+ KIND LINE` for what came, `- KIND LINE` for what went."""
    found = []
    for kind in before:
        found += [f"- {kind} {line}" for line in before[kind] if line not in after[kind]]
        found += [f"+ {kind} {line}" for line in after[kind] if line not in before[kind]]
    return found


def _output(*argv: str) -> str:
    return run_checked(list(argv), what=" ".join(argv))


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()] if directory.is_dir() else []


def _cgroups() -> list[str]:
    """The lab's trees and the hosts in them; below these systemd makes and removes its own. An
    empty slice is systemd's to keep."""
    layout = machine_cgroups()
    bases = [base for base in (layout.unified, layout.named) if base]
    trees = [path for base in bases for path in (base / TREE, base / SLICE) if path.is_dir()]
    hosts = [path for tree in trees for path in tree.iterdir() if path.is_dir()]
    return [str(path) for path in (*trees, *hosts) if path.name != SLICE]


def _link(path: Path) -> str:
    if not (path / "address").exists():
        return path.name  # bonding_masters is a file
    address, alias, flags = (
        (path / name).read_text().strip() for name in ("address", "ifalias", "flags")
    )
    return f"{path.name} {address} {alias} {flags}"


def _mount(line: str) -> str:
    """Mount point, type and source; not the numbers, which count on."""
    ahead, _, behind = line.partition(" - ")
    return f"{ahead.split()[4]} {' '.join(behind.split()[:2])}"


def _processes() -> list[str]:
    """The supervisors and machines of lab hosts, by their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        found += [word.decode() for word in words if word.startswith(b"--machine=fleetlab-")]
    return found
