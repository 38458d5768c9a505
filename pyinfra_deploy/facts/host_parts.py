"""CPU, NUMA nodes, memory, disks, operating system, board: from the plain files of Linux."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import Mount, NumaNode
from pyinfra_deploy.facts.values import digits

if TYPE_CHECKING:
    from collections.abc import Iterable

_CPUS_OF_NODE = re.compile(r"NUMA node([0-9]{1,6}) CPU\(s\)")
_SYS_NODE = re.compile(r"/node([0-9]{1,6})/(cpulist|meminfo):(.*)")
_NUMACTL = re.compile(r"^node ([0-9]{1,6}) (cpus|size):[ \t]*(.*)$", re.MULTILINE)
_MEMORY = re.compile(r"^(MemTotal|MemAvailable):[ \t]+([0-9]{1,15}) kB$", re.MULTILINE)
_BLOCKS = re.compile(r"^([0-9]{1,9})?([KMGB]?)B?-blocks$")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_UNITS = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_lscpu(text: str) -> tuple[str | None, int | None, tuple[NumaNode, ...]]:
    """`lscpu -J`: (model, logical CPUs, NUMA nodes without memory)."""
    try:
        document: Any = json.loads(text)
        found = dict(_lscpu_fields(document["lscpu"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableOutput(f"it is not the JSON of `lscpu -J`: {error}") from error
    cpus = found.get("CPU(s)", "")
    nodes = [
        NumaNode(int(match.group(1)), value or "")
        for name, value in found.items()
        if (match := _CPUS_OF_NODE.fullmatch(name))
    ]
    nodes.sort(key=lambda node: node.node)
    return found.get("Model name"), digits(cpus), tuple(nodes)


def _lscpu_fields(entries: Any) -> list[tuple[str, str]]:
    """Newer versions nest the fields (util-linux 2.38)."""
    found = []
    for entry in entries:
        name, data = str(entry["field"]).rstrip(":"), entry.get("data")
        found.append((name, "" if data is None else str(data)))
        found += _lscpu_fields(entry.get("children") or [])
    return found


def parse_numa_nodes(text: str) -> tuple[NumaNode, ...]:
    """`numactl -H`, or `grep . /sys/devices/system/node/node*/{cpulist,meminfo}`."""
    found: dict[int, dict[str, Any]] = {}
    for line in text.splitlines():
        match = _SYS_NODE.search(line)
        if match:
            node = found.setdefault(int(match.group(1)), {})
            total = re.search(r"MemTotal:\s*([0-9]{1,15}) kB", match.group(3))
            if match.group(2) == "cpulist":
                node["cpus"] = match.group(3).strip()
            elif total:
                node["bytes"] = int(total.group(1)) * 1024
    for number, what, value in _NUMACTL.findall(text):
        node = found.setdefault(int(number), {})
        size = re.fullmatch(r"([0-9]{1,15}) MB", value.strip())
        if what == "cpus":
            node["cpus"] = _as_list(value)
        elif size:
            node["bytes"] = int(size.group(1)) * 1024**2  # numactl says MB and means MiB
    if not found:
        raise UnreadableOutput("it names no NUMA node")
    return tuple(
        NumaNode(number, node.get("cpus", ""), node.get("bytes"))
        for number, node in sorted(found.items())
    )


def _as_list(numbers: str) -> str:
    """ "0 1 2 5" as Linux writes lists of CPUs: "0-2,5"."""
    ranges: list[list[int]] = []
    for number in sorted(n for word in numbers.split() if (n := digits(word)) is not None):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def parse_meminfo(text: str) -> tuple[int, int | None]:
    """/proc/meminfo: (total, available) in bytes."""
    found = {
        name: int(kib) * 1024
        for name, kib in re.findall(
            r"^(MemTotal|MemAvailable):\s+([0-9]{1,15}) kB$", text, re.MULTILINE
        )
    }
    if "MemTotal" not in found:
        raise UnreadableOutput("it has no line MemTotal")
    return found["MemTotal"], found.get("MemAvailable")


def parse_df(text: str) -> dict[str, int]:
    """`df` with a block size in its header: mount point -> free bytes for ordinary users."""
    lines = [line for line in text.splitlines() if line.strip()]
    header = next((at for at, line in enumerate(lines) if line.startswith("Filesystem")), None)
    if header is None:
        raise UnreadableOutput("it has no header line of df")
    names = lines[header].replace("Mounted on", "Mounted").split()
    blocks = next((match for name in names if (match := _BLOCKS.match(name))), None)
    if blocks is None or "Mounted" not in names:
        raise UnreadableOutput("its sizes are rounded (df -h); save it with `df -P -B1`")
    size = int(blocks.group(1) or 1) * _UNITS[blocks.group(2)]
    free_column = next((names.index(name) for name in ("Available", "Avail") if name in names), -1)
    found: dict[str, int] = {}
    for line in lines[header + 1 :]:
        # Counted from the right up to the mount point, for a device's name may have spaces.
        cells = line.split(None, len(names) - 1)
        available = digits(cells[free_column]) if len(cells) == len(names) else None
        if available is not None:
            found[cells[-1]] = available * size
    if not found:
        raise UnreadableOutput("it lists no file system")
    return found


def free_under(free: dict[str, int], path: str) -> int | None:
    """Free bytes of the file system that `path` is on, by the longest mount point above it."""
    above = [mount for mount in free if path == mount or path.startswith(mount.rstrip("/") + "/")]
    return free[max(above, key=len)] if above else None


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """/proc/self/mounts, proc_pid_mounts(5): what is mounted later on a point hides the earlier."""
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        cells = line.split(" ")
        if len(cells) != 6:
            raise UnreadableOutput(f"this is no line of /proc/mounts: {line[:80]}")
        device, point = (_ESCAPED.sub(lambda one: chr(int(one[1], 8)), cell) for cell in cells[:2])
        found[point] = Mount(point, device, cells[2], tuple(cells[3].split(",")))
    if not found:
        raise UnreadableOutput("it lists no file system")
    return tuple(found.values())


def mount_of(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount that `path` is on, by the longest mount point above it."""
    above = [
        one for one in mounts if path == one.point or path.startswith(one.point.rstrip("/") + "/")
    ]
    return max(above, key=lambda one: len(one.point), default=None)


def parse_os_release(text: str) -> tuple[str, str | None]:
    """/etc/os-release: (ID, VERSION_ID), os-release(5)."""
    found = _os_release(text)
    if not found.get("ID"):
        raise UnreadableOutput("it has no line ID")
    return found["ID"], found.get("VERSION_ID")


def codename_of(text: str) -> tuple[str | None, str]:
    """/etc/os-release: (VERSION_CODENAME, the name apt uses as origin: "Debian", "Ubuntu")."""
    found = _os_release(text)
    return found.get("VERSION_CODENAME"), found.get("ID", "").capitalize()


def _os_release(text: str) -> dict[str, str]:
    """The assignments; of quoted values nothing that is read here needs more of a shell's rules."""
    lines = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip().strip("\"'") for name, equals, value in lines if equals}


def parse_uname(text: str) -> str:
    """`uname -a` or `uname -r`: the kernel's release."""
    words = text.split()
    release = words[2] if len(words) > 2 and words[0] == "Linux" else words[0] if words else ""
    if not re.match(r"\d+\.\d+", release):
        raise UnreadableOutput("it has no release of a kernel")
    return release


def parse_machine(text: str) -> str | None:
    """`uname -a`: the processor's architecture, "x86_64"; None where the line does not tell."""
    match = re.search(r"\s([\w.-]+) GNU/Linux\s*$", text)
    return match.group(1) if match else None


def parse_dmi(text: str) -> dict[str, str]:
    """ "PATH:VALUE" of /sys/class/dmi/id/* (`grep .`): name of the file -> value; empty where the
    machine's firmware tells none, as in a container, on small virtual machines and with a device
    tree."""
    lines = [line for line in text.splitlines() if line.startswith("/sys/class/dmi/id/")]
    if not lines:
        raise UnreadableOutput("it has no lines of /sys/class/dmi/id")
    found = {}
    for line in lines:
        path, _, value = line.partition(":")
        if value.strip():
            found[path.rsplit("/", 1)[-1]] = value.strip()
    return found


def parse_max_map_count(text: str) -> int:
    """/proc/sys/vm/max_map_count, or `sysctl vm.max_map_count`."""
    match = re.fullmatch(r"(?:vm\.max_map_count\s*=\s*)?([0-9]{1,15})", text.strip())
    if match is None:
        raise UnreadableOutput("it is no number")
    return int(match.group(1))


def max_map_count_file(text: str) -> str | None:
    """Which file sets vm.max_map_count at boot: the last of "PATH:[LINE:]TEXT", in the order in
    which systemd-sysctl reads them (sysctl.d(5): by name, later ones win)."""
    found = None
    for line in text.splitlines():
        match = re.match(r"(/[^:]+):(?:\d+:)?\s*-?vm[./]max_map_count\s*=\s*\S", line)
        if match:
            found = match.group(1)
    return found


def parse_paths(text: str) -> tuple[str, ...]:
    """One path a line: which of the files that are asked for are there."""
    return tuple(line.strip() for line in text.splitlines() if line.startswith("/"))
