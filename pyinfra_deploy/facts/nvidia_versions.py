"""Versions of the driver's parts: what answers, what is loaded, what is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra_deploy.facts.errors import UnreadableOutput

_VERSION = r"(\d+\.\d+(?:\.\d+)*)"
_SMI_LINE = re.compile(r"^([A-Za-z][A-Za-z -]*?)\s*:\s*(.+)$", re.MULTILINE)
_MODULE = re.compile(rf"NVRM version:\s+NVIDIA UNIX\s+(Open )?.*?Kernel Module.*?\s{_VERSION}\s")
_LISTED = re.compile(r"^GPU ([0-9]{1,3}): (.+?) \(UUID: (GPU-[^)\s]+)\)\s*$")
_MIG = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)\s*$")
_LIBRARY_FILE = re.compile(rf"libnvidia-ml\.so\.{_VERSION}$")


def parse_smi_version(text: str) -> tuple[str | None, str | None]:
    """`nvidia-smi --version`: (driver, CUDA). From the 610 driver on they are called KMD and UMD.

    Raises UnreadableOutput when it is something else.
    """
    said = {name.strip().lower(): value.strip() for name, value in _SMI_LINE.findall(text)}
    if "nvidia-smi version" not in said:
        raise UnreadableOutput("it does not begin with the version of nvidia-smi")

    def first(*names: str) -> str | None:
        values = [said[name] for name in names if re.fullmatch(_VERSION, said.get(name, ""))]
        return values[0] if values else None

    return first("kmd version", "driver version"), first("cuda umd version", "cuda version")


def parse_module_version(text: str) -> tuple[str, bool]:
    """/proc/driver/nvidia/version: (version of the loaded module, whether it is the open one)."""
    match = _MODULE.search(text + "\n")
    if match is None:
        raise UnreadableOutput("it has no line with the version of a kernel module")
    return match.group(2), match.group(1) is not None


def parse_modinfo(text: str) -> str:
    """`modinfo -F version nvidia`, or the whole of `modinfo nvidia`."""
    match = re.search(rf"^(?:version:\s*)?{_VERSION}\s*$", text, re.MULTILINE)
    if match is None:
        raise UnreadableOutput("it has no version of a module")
    return match.group(1)


def library_version(paths: tuple[str, ...]) -> str | None:
    """The version in the name of libnvidia-ml.so.VERSION; None without or with several of them."""
    found = {match.group(1) for match in map(_LIBRARY_FILE.search, paths) if match}
    return found.pop() if len(found) == 1 else None


@dataclass(frozen=True)
class ListedGpu:
    """A line of `nvidia-smi -L`; mig: the profiles of its MIG devices ("3g.40gb")."""

    index: int
    name: str
    uuid: str
    mig: tuple[str, ...] = ()


def parse_gpu_list(text: str) -> tuple[ListedGpu, ...]:
    """`nvidia-smi -L`. Raises UnreadableOutput with a line that is none of its lines."""
    found: list[ListedGpu] = []
    for line in text.splitlines():
        gpu, mig = _LISTED.match(line), _MIG.match(line)
        if gpu:
            found.append(ListedGpu(int(gpu.group(1)), gpu.group(2), gpu.group(3)))
        elif mig and found:
            last = found[-1]
            found[-1] = ListedGpu(last.index, last.name, last.uuid, (*last.mig, mig.group(1)))
        elif line.strip():
            raise UnreadableOutput(f"this line is not of `nvidia-smi -L`: {line.strip()[:80]}")
    if not found:
        raise UnreadableOutput("it lists no GPU")
    return tuple(found)
