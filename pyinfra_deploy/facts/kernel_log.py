"""Kernel lines about GPUs: Xid errors and what else the NVIDIA module (NVRM) complains of.

Read as dmesg, dmesg -T, dmesg -r, /dev/kmsg and journalctl -k print them. Xid numbers are listed in
https://docs.nvidia.com/deploy/xid-errors/.
"""

from __future__ import annotations

import re

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import KernelEvent
from pyinfra_deploy.facts.values import pci_address

# Time stamps in front of the message; of these only the first kinds count from boot.
_PREFIXES = (
    # dmesg, dmesg -r, journalctl -o short-monotonic
    re.compile(r"^(?:<\d+>)?\[\s*([0-9]{1,12}\.[0-9]+)\](?:\s\S+ kernel:)?\s*"),
    re.compile(r"^\d+,\d+,(?P<microseconds>[0-9]{1,18}),[^;]*;"),  # /dev/kmsg
    re.compile(r"^(?:<\d+>)?\[[A-Z][a-z]{2} [A-Z][a-z]{2} [\d: ]+\]\s*"),  # dmesg -T
    re.compile(r"^[A-Z][a-z]{2} [ \d]\d [\d:.]+ \S+ kernel:\s*"),  # journalctl
    re.compile(r"^\d{4}-\d\d-\d\dT\S+(?: \S+ kernel:)?\s*"),  # ISO times of both
)  # fmt: skip
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+)[^)]*\): ([0-9]{1,6})\b")
_ABOUT_GPUS = re.compile(r"NVRM:|\bnvidia[-:. ]|\bnouveau\b", re.IGNORECASE)
# What the module prints when all is well, and lines that only belong to one before them.
_ORDINARY = re.compile(
    r"loading NVIDIA UNIX|GPU at PCI:|GPU Board Serial Number|"
    r"GPU crash dump|nvidia-bug-report|NVIDIA kernel module is unloaded|"
    r"module verification failed|module license|Disabling lock debugging|"
    r"Loading driver|Initialized nvidia|registered as|Registered|"
    r"enabling device|vgaarb|unregistered|Unloading|Creating|modprobe|nvidia-modeset: (?!ERROR)|"
    r"nvidia-uvm: (?!.*(?:fail|error))|nvlink: .*(?:loaded|initialized)|\[drm\]|input: |snd_hda"
)
# Kernel lines that are about something else and mention nvidia, such as another driver's names.
_TROUBLE = re.compile(
    r"fail|error|fallen off|mismatch|lost|time(?:d )?out|unable|cannot|not supported|fatal|stuck",
    re.IGNORECASE,
)


def parse_kernel_log(text: str) -> tuple[tuple[KernelEvent, ...], tuple[str, ...]]:
    """(events in the order of the log, Xid lines that cannot be read).

    Raises UnreadableOutput for a text without any line.
    """
    if not text.strip():
        raise UnreadableOutput("it is empty: the kernel's log was not to be read, or it is cleared")
    events: list[KernelEvent] = []
    unread: list[str] = []
    for seconds, message in _messages(text):
        if not _ABOUT_GPUS.search(message):
            continue
        xid = _XID.search(message)
        if xid:
            events.append(
                KernelEvent(message, int(xid.group(2)), pci_address(xid.group(1)), seconds)
            )
        elif "NVRM: Xid" in message:
            unread.append(message)
        elif _is_trouble(message):
            events.append(KernelEvent(message, None, pci_address(message), seconds))
    return tuple(events), tuple(unread)


def _is_trouble(message: str) -> bool:
    if _ORDINARY.search(message):
        return False
    return "NVRM:" in message or bool(_TROUBLE.search(message))


def _messages(text: str) -> list[tuple[float | None, str]]:
    """(seconds since boot, message), with lines that continue another joined to it.

    dmesg prints the further lines of a message without a time and indented; in a raw log each has
    its own time, and "The NVIDIA GPU ADDRESS" stands alone before what is wrong with it.
    """
    found: list[tuple[float | None, str]] = []
    for line in text.splitlines():
        seconds, message, has_time = _split(line)
        if not message.strip():
            continue
        continues = not has_time and line[:1] in (" ", "\t")
        if found and (continues or _goes_on(found[-1][1], message)):
            before_seconds, before = found[-1]
            found[-1] = (before_seconds, f"{before} {_without_tag(message)}")
        else:
            found.append((seconds, " ".join(message.split())))
    return found


def _goes_on(before: str, message: str) -> bool:
    return (
        ("NVRM: The NVIDIA GPU " in before or "NVRM: API mismatch" in before)
        and "NVRM: " in message
        and not before.rstrip().endswith(".")
        and len(before) < 400
    )


def _without_tag(message: str) -> str:
    return " ".join(message.replace("NVRM:", " ", 1).split())


def _split(line: str) -> tuple[float | None, str, bool]:
    for prefix in _PREFIXES:
        match = prefix.match(line)
        if match:
            seconds = None
            if match.groupdict().get("microseconds"):
                seconds = int(match.group("microseconds")) / 1e6
            elif match.groups() and match.group(1):
                seconds = float(match.group(1))
            return seconds, line[match.end() :], True
    return None, line, False
