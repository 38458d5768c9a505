"""Stand-ins for what the kernel tells of the NVIDIA driver: its module's version and its log."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lab.standins.gpu_states import STATES, State
from lab.standins.l20 import DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = tuple[str, int]
"""What to print and the exit status."""

_BUILT = "Tue Sep 23 10:11:16 UTC 2025"


def loaded_version(state: State) -> str:
    """Of the loaded kernel module, "" when none is loaded."""
    return state.get("loaded", state.get("driver", DRIVER))


def version_file(state: State) -> str:
    """/proc/driver/nvidia/version, "" when there is none."""
    version = loaded_version(state)
    if not version:
        return ""
    return (
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  {_BUILT}\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )


def modinfo(argv: list[str], state: State) -> Answer:
    """`modinfo [-F version] nvidia`: the module on disk; a lab host has no other."""
    if not argv or argv[-1] != "nvidia":
        return f"modinfo: ERROR: Module {argv[-1] if argv else ''} not found.\n", 1
    version = state.get("driver", DRIVER)
    if argv[:-1] == ["-F", "version"]:
        return f"{version}\n", 0
    return f"filename:       /lib/modules/nvidia.ko\nversion:        {version}\n", 0


def dmesg(state: State) -> str:
    """The kernel log of a machine with these cards; the real one is the whole machine's."""
    lines = [f"Linux version {os.uname().release} (lab) {os.uname().version}"]
    version = loaded_version(state)
    if version:
        lines.append(f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {version}  {_BUILT}")
    lines += state.get("kernel", [])
    return "".join(f"[{4.0 * number:12.6f}] {line}\n" for number, line in enumerate(lines))


def main(argv: list[str], current_state: Callable[[], str]) -> int:
    """argv: the program's name and its arguments."""
    state = STATES[current_state()]
    text, status = (dmesg(state), 0) if argv[0] == "dmesg" else modinfo(argv[1:], state)
    (sys.stderr if status else sys.stdout).write(text)
    return status
