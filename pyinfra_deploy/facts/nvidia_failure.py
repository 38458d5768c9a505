"""What nvidia-smi says when it does not list GPUs, and outputs that are not the one asked for."""

from __future__ import annotations

import re

from pyinfra_deploy.facts.hardware import DriverFailure, FailureKind
from pyinfra_deploy.facts.values import pci_address

# Exit statuses that the collector writes and that timeout(1) and the shell use.
TIMED_OUT = 124
NOT_INSTALLED = 127

# First match wins. The texts are NVML's (nvml.h, nvmlReturn_t) and nvidia-smi's own; lines may be
# wrapped, so they are matched with all white space made one space.
_FAILURES: tuple[tuple[FailureKind, str], ...] = (
    ("mismatch", r"Driver/library version mismatch"),
    ("no-driver", r"couldn't communicate with the NVIDIA driver"),
    ("no-driver", r"Failed to initialize NVML: Driver Not Loaded"),
    ("no-library", r"couldn't find libnvidia-ml\.so"),
    ("no-library", r"libnvidia-ml\.so(?:\.1)?: cannot open shared object file"),
    ("no-library", r"Failed to initialize NVML: (?:NVML Shared )?Library Not Found"),
    ("gpu-lost", r"Unable to determine the device handle for GPU[^\n]*?: GPU is lost"),
    ("gpu-lost", r"GPU is lost"),
    ("unknown-error", r"Unable to determine the device handle for GPU"),
    ("unknown-error", r"Failed to initialize NVML: "),
    ("no-devices", r"No devices were found"),
    ("not-installed", r"nvidia-smi: (?:command )?not found"),
    ("not-installed", r"(?:exec(?:utable)? [^:]*)?nvidia-smi[^:]{0,20}: No such file or directory"),
)
_LIBRARY_VERSION = re.compile(r"NVML library version:\s*(\d+(?:\.\d+)+)")

# Outputs of other calls that people save under the wrong name.
_OTHERS = (
    (r"=+NVSMI LOG=+", "the text of `nvidia-smi -q`; save `nvidia-smi -q -x`, which is XML"),
    (r"\| NVIDIA-SMI \d|\|=+\+=+", "the table of `nvidia-smi`; save `nvidia-smi -q -x`"),
    (r"^\s*Link \d+: ", "the output of `nvidia-smi nvlink -s`"),
    (r"^NVIDIA-SMI version\s*:", "the output of `nvidia-smi --version`"),
    (r"^GPU \d+: .*\(UUID: ", "the output of `nvidia-smi -L`"),
    (r"^\s*(?:\x1b\[\d*m)?GPU0\s.*CPU Affinity", "the output of `nvidia-smi topo -m`"),
    (r"<nvidia_smi_log>", "the XML of `nvidia-smi -q -x`"),
)


def failure_in(text: str) -> DriverFailure | None:
    """The failure that the text tells of; None where it tells of none that is known here."""
    flat = " ".join(text.split())
    for kind, pattern in _FAILURES:
        match = re.search(pattern, flat)
        if match:
            line = _sentence(text, match.group())
            # Only an address in the failure itself: a text may name other GPUs as well.
            address = pci_address(line) if kind in ("gpu-lost", "unknown-error") else None
            return DriverFailure(kind, line, address)
    return None


def failure_of_run(text: str, exit_status: int, stderr: str) -> DriverFailure | None:
    """Why a run of nvidia-smi gave no GPUs, by its texts and exit status; None for a good run
    or for words that are not known here."""
    if exit_status == TIMED_OUT:
        return DriverFailure("hang", stderr.strip() or "nvidia-smi did not answer in time")
    found = failure_in(text) or failure_in(stderr)
    if found is None and exit_status == NOT_INSTALLED:
        said = stderr.strip().splitlines()
        return DriverFailure("not-installed", said[-1] if said else "nvidia-smi is not installed")
    return found


def library_version_in(text: str) -> str | None:
    """The version that a mismatch names: "580.178", without the last part that drivers print."""
    match = _LIBRARY_VERSION.search(text)
    return match.group(1) if match else None


def what_it_is(text: str) -> str | None:
    """Which other output of nvidia-smi this is, in words; None when it is none of them."""
    for pattern, said in _OTHERS:
        if re.search(pattern, text[:20000], re.MULTILINE):
            return said
    return None


def _sentence(text: str, matched: str) -> str:
    """The line of the text in which the match begins, or the match where lines were wrapped."""
    start = matched.split(" ", 1)[0] if len(matched) > 60 else matched
    for line in text.splitlines():
        if matched in " ".join(line.split()):
            return line.strip()[:300]
    for line in text.splitlines():
        if start in line or matched[:25] in line:
            return line.strip()[:300]
    return matched[:300]
