"""vm.max_map_count: raised where it is too low, never lowered, and the same after a reboot.

A large engine maps many files and arenas; the kernel's default of 65530 maps a process can be too
few. Distributions and other software set it too (Ubuntu 24.04 ships 10-map-count.conf with
1048576), in files of which systemd-sysctl lets the last by name win: a blind 99-file of ours could
lower it, and a file after ours with less would undo ours at the next boot. So the files are read in
that order, ours is written only when they end too low, under a name that comes last.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import durable, events, fields, snapshot
from .errors import HostError

# The kernel's own value when nothing sets it (Documentation/admin-guide/sysctl/vm.rst).
KERNEL_DEFAULT = 65530
LIVE = Path("/proc/sys/vm/max_map_count")
DIRECTORY = Path("/etc/sysctl.d")
# In order of preference; the later ones only when another file's name comes after the former.
OUR_NAMES = (
    "60-llm-map-count.conf",
    "99-zz-llm-map-count.conf",
    "zz-llm-map-count.conf",
    "zzzz-llm-map-count.conf",
)


def raise_map_count(request: dict[str, Any]) -> dict[str, Any]:
    """`kernel raise-map-count` {minimum} -> {changed, live, at_boot, file, notes}.

    live and at_boot are as they are afterwards; file is ours, null when none is needed.
    """
    minimum = fields.whole(request, "minimum")
    before = read_live()
    changed = _settle_files(minimum)
    if before < minimum:
        _write_live(minimum)
        changed = True
    live, at_boot, ours = read_live(), boot_value(assignments()), our_files()
    if min(live, at_boot) < minimum:
        raise HostError(
            f"vm.max_map_count did not become {minimum}",
            f"it is {live} now and would be {at_boot} after a reboot.",
            "Look at the files below; systemd-sysctl takes them by name, the last one wins.",
            [f"{item['file']}:{item['line']}: {item['value']}" for item in assignments()],
        )
    if changed:
        events.record("vm.max_map_count raised", before=before, live=live, at_boot=at_boot)
    return {
        "changed": changed,
        "live": live,
        "at_boot": at_boot,
        "file": str(ours[0]) if ours else None,
        "notes": notes(minimum),
    }


def assignments() -> list[dict[str, Any]]:
    """Every line that sets it, in the order in which a boot applies them (snapshot.py)."""
    return snapshot.sysctl_assignments(snapshot.sysctl_files())


def boot_value(lines: list[dict[str, Any]]) -> int:
    """What the next boot ends with. A value that is no number is refused by the kernel."""
    values = [int(line["value"]) for line in lines if str(line["value"]).isdigit()]
    return values[-1] if values else KERNEL_DEFAULT


def our_files() -> list[Path]:
    return [DIRECTORY / name for name in OUR_NAMES if (DIRECTORY / name).is_file()]


def _settle_files(minimum: int) -> bool:
    """Have exactly the file of ours that is needed; whether anything was written or removed."""
    ours = {str(DIRECTORY / name) for name in OUR_NAMES}
    others = [line for line in assignments() if line["file"] not in ours]
    if boot_value(others) >= minimum:
        # Ours may only go where it would lower the others, as when an operator added a file with
        # more and a name before ours. Where it does no harm, it stays: they may go again.
        if boot_value(assignments()) >= boot_value(others):
            return False
        wanted = None
    else:
        wanted = _name_after([Path(line["file"]).name for line in others])
    changed = False
    if wanted is not None:
        text = content(minimum, others)
        path = DIRECTORY / wanted
        if not path.is_file() or path.read_text() != text:
            durable.make_directories(DIRECTORY)
            durable.write_file(path, text, mode=0o644)
            changed = True
    for path in our_files():
        if path.name != wanted:
            durable.remove_file(path)
            changed = True
    return changed


def _name_after(names: list[str]) -> str:
    for name in OUR_NAMES:
        if all(name > other for other in names):
            return name
    last = max(names)
    raise HostError(
        "vm.max_map_count cannot be raised for good",
        f"{last} sets it lower and sorts after every name that we use.",
        f"Remove the setting from {last}, or give that file an ordinary name such as 50-*.conf.",
    )


def content(minimum: int, others: list[dict[str, Any]]) -> str:
    lines = [
        "# Written by the LLM deploy: group_vars gpu_host.max_map_count, raised only.",
        "# systemd-sysctl takes the files by name and the last one wins, hence this file's name.",
    ]
    lines += [f"# Overrides {item['file']}:{item['line']} ({item['value']})." for item in others]
    return "\n".join([*lines, f"vm.max_map_count = {minimum}", ""])


def read_live() -> int:
    return int(LIVE.read_text())


def _write_live(value: int) -> None:
    try:
        descriptor = os.open(LIVE, os.O_WRONLY)
        try:
            os.write(descriptor, f"{value}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HostError(
            f"vm.max_map_count cannot be set to {value}",
            f"writing {LIVE} failed: {error.strerror}. In a container it belongs to the machine "
            "around it.",
            f"Set it there: sysctl -w vm.max_map_count={value}. Then run again.",
        ) from error


def notes(minimum: int) -> list[str]:
    """What does not count at boot, but would surprise somebody who runs `sysctl --system`."""
    path = str(DIRECTORY.parent / "sysctl.conf")
    linked = any(os.path.realpath(file) == path for file in snapshot.sysctl_files())
    lines = [] if linked else snapshot.sysctl_assignments([path])
    if lines and boot_value(lines) < minimum:
        line = lines[-1]
        return [
            f"{path}:{line['line']} sets {line['value']}: `sysctl --system` reads it last and "
            "would lower the running value; the boot does not read it. Remove that line."
        ]
    return []
