"""The files that put the stand-ins onto a host. Only the lab installs them, never the deploy."""

from __future__ import annotations

from pathlib import Path

from lab.passed_on import FileCopy
from lab.standins.driver import version_file
from lab.standins.gpu_states import STATES

LIBRARY = "/usr/lib/fleet-lab"
# Settings of the whole machine, with the kernel's defaults
# (Documentation/admin-guide/sysctl/vm.rst). A lab host must not change the machine's, and must
# find the default again at each boot.
SYSCTLS = {"vm.max_map_count": "65530"}
COPIED_MODULES = ("lab/__init__.py", "lab/standins/__init__.py", "lab/standins/l20.py",
                  "lab/standins/gpu_states.py", "lab/standins/nvidia_smi.py",
                  "lab/standins/nvidia_smi_xml.py", "lab/standins/driver.py")  # fmt: skip
# In /usr/local, which comes first in root's and sudo's PATH: the real ones tell of the machine.
PROGRAMS = ("/usr/bin/nvidia-smi", "/usr/local/sbin/modinfo", "/usr/local/bin/dmesg")
# What the lab shows to a host, read-only, and may change while it runs (HostPaths.shown).
SHOWN = "/etc/fleet-lab"
VERSION_FILE = "nvidia/version"

MAIN = """\
import sys

from lab.standins import driver, nvidia_smi

if sys.argv[1] == "nvidia-smi":
    sys.exit(nvidia_smi.main(sys.argv[2:]))
sys.exit(driver.main(sys.argv[1:], nvidia_smi.current_state))
"""
SYSCTLS_UNIT = f"""\
[Unit]
Description=Stand-ins of the lab for what the kernel tells of the whole machine
DefaultDependencies=no
Before=systemd-sysctl.service sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={LIBRARY}/bind-sysctls

[Install]
WantedBy=sysinit.target
"""


def bind_sysctls_script(sysctls: dict[str, str]) -> str:
    """Shell that binds a plain file over each sysctl's file.

    In /run, which is empty at each boot, as the kernel forgets its settings; run before
    systemd-sysctl, so that sysctl.d is applied to it.
    """
    lines = ["#!/bin/sh", "set -eu", "umask 022", "mkdir -p /run/fleet-lab/sysctl"]
    for key, value in sysctls.items():
        file = f"/run/fleet-lab/sysctl/{key}"
        lines += [
            f"echo {value} > {file}",
            f"mount --bind {file} /proc/sys/{key.replace('.', '/')}",
        ]
    lines += [
        # /proc/driver/nvidia, of which the lab writes the content with each state of the GPUs.
        "mkdir -p /run/fleet-lab/driver",
        f"ln -sfn {SHOWN}/nvidia /run/fleet-lab/driver/nvidia",
        "mount --bind /run/fleet-lab/driver /proc/driver",
    ]
    return "\n".join(lines) + "\n"


def program(name: str) -> str:
    """The stand-in for a program: a shell script, so that it needs no bit of Python's own."""
    return (
        f"#!/bin/sh\n# Stand-in of the lab; see {LIBRARY}/lab/standins.\n"
        f'exec /usr/bin/python3 -B {LIBRARY} {name} "$@"\n'
    )


def shown_files(state: str) -> dict[str, str]:
    """File in SHOWN -> text, for GPUs in that state; an empty text means that there is none."""
    return {VERSION_FILE: version_file(STATES[state]), "gpu-state": f"{state}\n"}


def standin_files() -> dict[str, FileCopy]:
    """Absolute path in the host -> file."""
    package = Path(__file__).resolve().parent.parent.parent
    modules = {
        f"{LIBRARY}/{name}": FileCopy((package / name).read_bytes()) for name in COPIED_MODULES
    }
    return {
        **modules,
        f"{LIBRARY}/__main__.py": FileCopy(MAIN.encode()),
        **{path: FileCopy(program(Path(path).name).encode(), 0o755) for path in PROGRAMS},
        f"{LIBRARY}/bind-sysctls": FileCopy(bind_sysctls_script(SYSCTLS).encode(), 0o755),
        "/etc/systemd/system/fleet-lab-sysctls.service": FileCopy(SYSCTLS_UNIT.encode()),
    }
