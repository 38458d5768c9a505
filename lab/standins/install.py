"""The files that put the stand-ins onto a host. Only the lab installs them, never the deploy."""

from __future__ import annotations

from pathlib import Path

from lab.passed_on import FileCopy

LIBRARY = "/usr/lib/fleet-lab"
# Settings of the whole machine, with the kernel's defaults
# (Documentation/admin-guide/sysctl/vm.rst). A lab host must not change the machine's, and must
# find the default again at each boot.
SYSCTLS = {"vm.max_map_count": "65530"}
COPIED_MODULES = ("lab/__init__.py", "lab/standins/__init__.py", "lab/standins/l20.py",
                  "lab/standins/gpu_states.py", "lab/standins/nvidia_smi.py",
                  "lab/standins/nvidia_smi_xml.py")  # fmt: skip

NVIDIA_SMI = f"""\
#!/bin/sh
# Stand-in of the lab; see {LIBRARY}/lab/standins.
exec /usr/bin/python3 -B {LIBRARY} "$@"
"""
MAIN = """\
import sys

from lab.standins.nvidia_smi import main

sys.exit(main(sys.argv[1:]))
"""
SYSCTLS_UNIT = f"""\
[Unit]
Description=Stand-ins of the lab for sysctls of the whole machine
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
    return "\n".join(lines) + "\n"


def standin_files() -> dict[str, FileCopy]:
    """Absolute path in the host -> file."""
    package = Path(__file__).resolve().parent.parent.parent
    modules = {
        f"{LIBRARY}/{name}": FileCopy((package / name).read_bytes()) for name in COPIED_MODULES
    }
    return {
        **modules,
        f"{LIBRARY}/__main__.py": FileCopy(MAIN.encode()),
        "/usr/bin/nvidia-smi": FileCopy(NVIDIA_SMI.encode(), 0o755),
        f"{LIBRARY}/bind-sysctls": FileCopy(bind_sysctls_script(SYSCTLS).encode(), 0o755),
        "/etc/systemd/system/fleet-lab-sysctls.service": FileCopy(SYSCTLS_UNIT.encode()),
    }
