"""The raw outputs of a host: what `fleet facts collect` writes and everything else reads.

DIR/HOST/NAME holds what the command printed, NAME.exit its exit status and NAME.stderr its error
output, both only where it failed. All names are plain, so that a directory can also be filled by
hand and attached to a report.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.values import digits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SMI_XML = "nvidia-smi-q-x.xml"
SMI_QUERY = "nvidia-smi-query-gpu.csv"
SMI_TOPOLOGY = "nvidia-smi-topo-m.txt"
SMI_VERSION = "nvidia-smi-version.txt"
MODULE_LOADED = "nvidia-module-loaded.txt"
MODULE_INSTALLED = "nvidia-module-installed.txt"
PCI_GPUS = "pci-gpus.txt"
ACS = "pci-acs.txt"
IOMMU_GROUPS = "iommu-groups.txt"
CMDLINE = "cmdline.txt"
LSCPU = "lscpu.json"
NUMA = "numa-nodes.txt"
MEMINFO = "meminfo.txt"
DF = "df.txt"
MOUNTS = "mounts.txt"
OS_RELEASE = "os-release"
UNAME = "uname.txt"
KERNEL_LOG = "kernel-log.txt"
MAX_MAP_COUNT = "max-map-count.txt"
SYSCTL_FILES = "sysctl-files.txt"
DPKG = "dpkg.txt"
HOLDS = "apt-holds.txt"
APT_CONFIG = "apt-config.txt"
APT_POLICY = "apt-policy.txt"
DMI = "dmi.txt"
PATHS = "paths.txt"
PROCESSES = "gpu-processes.txt"
# Asked only where the XML is cut short or missing.
SMI_REMAPPED = "nvidia-smi-query-remapped-rows.csv"
SMI_APPS = "nvidia-smi-query-compute-apps.csv"
INSTEAD_OF_XML = (SMI_REMAPPED, SMI_APPS)
# What of ours is on the host. Beside the outputs: a directory made elsewhere has none.
SNAPSHOT = "snapshot.json"

# What is there on every host: a directory that lacks one of these is incomplete.
NAMES = (
    SMI_XML, SMI_QUERY, SMI_TOPOLOGY, SMI_VERSION, MODULE_LOADED, MODULE_INSTALLED, PCI_GPUS, ACS,
    IOMMU_GROUPS, CMDLINE, LSCPU, NUMA, MEMINFO, DF, MOUNTS, OS_RELEASE, UNAME, KERNEL_LOG,
    MAX_MAP_COUNT, SYSCTL_FILES, DPKG, HOLDS, APT_CONFIG, APT_POLICY, DMI, PATHS, PROCESSES,
)  # fmt: skip
# Far above any real output; a file that is bigger is something else.
MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class RawOutput:
    """exit: 124 for a command that did not answer in time, 127 for one that is not installed."""

    text: str
    exit: int = 0
    stderr: str = ""


def read_directory(directory: Path) -> dict[str, RawOutput]:
    """Every output in DIR/HOST. A file that cannot be read becomes an output that failed.

    Raises UnreadableOutput when there is no such directory, or nothing in it is known.
    """
    try:
        with os.scandir(directory) as entries:  # tells files apart without a call for each
            names = {entry.name for entry in entries if entry.is_file()}
    except OSError as error:
        raise UnreadableOutput(f"{directory} cannot be read: {error.strerror}") from error
    found = {
        name: _read(f"{directory}/", name, names)
        for name in (*NAMES, *INSTEAD_OF_XML, SNAPSHOT)
        if names & {name, f"{name}.exit", f"{name}.stderr"}
    }
    if not found:
        raise UnreadableOutput(f"{directory} holds none of the files of `fleet facts collect`")
    return found


def hosts_of(directory: Path) -> tuple[str, ...]:
    """The hosts in DIR, each a directory with at least one output of a known name."""
    try:
        return tuple(
            sorted(
                entry.name
                for entry in directory.iterdir()
                if entry.is_dir()
                and not entry.name.startswith(".")
                and any((entry / name).exists() for name in NAMES)
            )
        )
    except OSError as error:
        raise UnreadableOutput(f"{directory} cannot be read: {error.strerror}") from error


def _read(above: str, name: str, present: set[str]) -> RawOutput:
    texts, problem = {}, ""
    for suffix in ("", ".exit", ".stderr"):
        file = f"{name}{suffix}"
        if file not in present:
            continue
        try:
            with open(above + file, "rb", buffering=0) as stream:  # noqa: PTH123 - 30 a host
                if os.fstat(stream.fileno()).st_size > MOST_BYTES:
                    problem = f"{file} is bigger than any real output"
                    continue
                texts[suffix] = stream.read().decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = f"{file} cannot be read: {error.strerror}"
    status = texts.get(".exit", "").strip()
    if problem:
        return RawOutput("", 1, problem)
    if not status:
        return RawOutput(texts.get("", ""), 0 if "" in texts else 1, texts.get(".stderr", ""))
    known = digits(status.removeprefix("-"))
    exit_status = 1 if known is None else known  # -9, killed by a signal, only has to be no 0
    return RawOutput(texts.get("", ""), exit_status, texts.get(".stderr", ""))


def files_of(raw: Mapping[str, RawOutput]) -> dict[str, str]:
    """The files of a host's directory: name -> text."""
    files = {}
    for name, output in raw.items():
        files[name] = output.text
        if output.exit:
            files[f"{name}.exit"] = f"{output.exit}\n"
            files[f"{name}.stderr"] = output.stderr
    return files


def from_document(text: str) -> dict[str, RawOutput]:
    """What the collector prints: {name: {text, exit, stderr}}. Names that are unknown here, of a
    newer collector, are left out. Raises UnreadableOutput."""
    try:
        document = json.loads(text)
        return {
            name: RawOutput(str(found["text"]), int(found["exit"]), str(found["stderr"]))
            for name, found in document.items()
            if name in NAMES or name in INSTEAD_OF_XML
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableOutput(f"the collector printed no answer: {error}") from error
