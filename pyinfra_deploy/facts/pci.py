"""The PCI bus as the kernel sees it: GPUs whatever the driver says, IOMMU, ACS of bridges."""

from __future__ import annotations

import re

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import PciGpu
from pyinfra_deploy.facts.values import digits, pci_address

_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_LSPCI_DEVICE = re.compile(r"^((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) (.*)$")
_ACS_FLAG = re.compile(r"ACSCtl:.*\bSrcValid([+-])")
_SETPCI = re.compile(rf"^({_ADDRESS})\s+(?:@[0-9a-fA-F]+\s*=\s*)?([0-9a-fA-F]{{4}})\s*$")


def parse_pci_gpus(text: str) -> tuple[tuple[PciGpu, ...], frozenset[str] | None]:
    """The collector's lines "ADDRESS name=value ...", one for each NVIDIA display or 3D controller:
    (GPUs, bridges above them where the lines give a path).

    An empty text is a host without such a controller.
    """
    gpus, bridges, with_path = [], set(), True
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if not re.fullmatch(_ADDRESS, words[0]):
            raise UnreadableOutput(f"this line does not begin with a PCI address: {line[:80]}")
        values = dict(word.partition("=")[::2] for word in words[1:])
        address = pci_address(words[0]) or words[0]
        node = values.get("numa_node", "")
        gpus.append(
            PciGpu(
                address,
                values.get("driver") or None,
                digits(node),  # -1: the firmware tells none
                _width(values.get("current_link_width")),
                _width(values.get("max_link_width")),
            )
        )
        path = re.findall(_ADDRESS, values.get("path", ""))
        with_path = with_path and bool(path)
        bridges |= {str(pci_address(part)) for part in path} - {address}
    gpus.sort(key=lambda gpu: gpu.address)
    return tuple(gpus), frozenset(bridges) if with_path and gpus else None


def _width(text: str | None) -> int | None:
    width = digits(text)
    return width if width and width <= 32 else None


def parse_acs(text: str) -> tuple[str, ...]:
    """Bridges with ACS source validation on, from `lspci -vvv` or `setpci -v -s ADDR ECAP_ACS+6.w`.

    "If SrcValid is on, ACS might be enabled": NVIDIA's troubleshooting of NCCL. Switches then send
    traffic between GPUs up to the root complex.
    """
    found, device, seen = [], None, False
    for line in text.splitlines():
        register = _SETPCI.match(line)
        if register:
            seen = True
            if int(register.group(2), 16) & 1:  # bit 0: PCI_ACS_SV of linux/pci_regs.h
                found.append(_full(register.group(1)))
            continue
        header = _LSPCI_DEVICE.match(line)
        if header:
            device = header.group(1) if "bridge" in header.group(2).lower() else None
            seen = True
            continue
        flag = _ACS_FLAG.search(line)
        if flag and device and flag.group(1) == "+":
            found.append(_full(device))
    if text.strip() and not seen:
        raise UnreadableOutput("it is neither of `lspci -vvv` nor of `setpci`")
    return tuple(dict.fromkeys(found))


def _full(address: str) -> str:
    return pci_address(address if address.count(":") == 2 else f"0000:{address}") or address


def iommu_state(groups: str | None, cmdline: str | None) -> tuple[bool | None, bool | None]:
    """(the IOMMU translates for devices, it lets the host's own DMA through untranslated).

    groups: names in /sys/kernel/iommu_groups, one a line: there are some exactly when an IOMMU is
    in use. The kernel's default for the second is a build option, so without a parameter it is not
    known (kernel-parameters.txt: iommu=, iommu.passthrough=).
    """
    enabled = None if groups is None else any(line.strip() for line in groups.splitlines())
    passthrough = None
    for word in (cmdline or "").split():
        if word in ("iommu=pt", "iommu.passthrough=1"):
            passthrough = True
        elif word in ("iommu=nopt", "iommu.passthrough=0"):
            passthrough = False
    return enabled, passthrough if enabled else (False if enabled is False else passthrough)
