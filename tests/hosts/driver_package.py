"""A package that stands in for an NVIDIA driver: installed, the module on the disk is another one
than the loaded; booted, the lab's nvidia-smi tells of eight GPUs and of its version."""

from __future__ import annotations

from tests.hosts import care_host

PACKAGE, VERSION = "nvidia-driver-lab", "590.10"
SMI = f"""\
#!/usr/bin/python3 -B
import os, sys
sys.path.insert(0, "/usr/lib/fleet-lab")
from lab.standins import gpu_states, nvidia_smi
loaded = os.path.exists("/run/{PACKAGE}/version")
new = {{"driver": "{VERSION}", "cuda": "13.1"}} if loaded else gpu_states.STATES["no-driver"]
gpu_states.STATES["installed"] = new
nvidia_smi.current_state = lambda: "installed"
sys.exit(nvidia_smi.main(sys.argv[1:]))
"""
MODINFO = f"""\
#!/bin/sh
[ "$*" = "-F version nvidia" ] && echo {VERSION}
"""
LINE = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Tue Sep 23 10:11:16 UTC 2025"
# The module is loaded by a boot, as a real one after a driver of another version.
UNIT = f"""\
[Unit]
Description=Stand-in for the boot that loads the new module
DefaultDependencies=no
After=fleet-lab-sysctls.service
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'mkdir -p /run/{PACKAGE} && echo "{LINE}" > /run/{PACKAGE}/version && \
ln -sfn /run/{PACKAGE} /run/fleet-lab/driver/nvidia'
"""
FILES = {
    "/usr/bin/nvidia-smi": (SMI, "0755"),
    "/usr/local/sbin/modinfo": (MODINFO, "0755"),
    f"/etc/systemd/system/{PACKAGE}.service": (UNIT, "0644"),
    # Long enough for the run to be killed in the middle.
    "/DEBIAN/postinst": (
        "#!/bin/sh\nset -e\n"
        f"ln -sf ../{PACKAGE}.service /etc/systemd/system/sysinit.target.wants/\nsleep 8\n",
        "0755",
    ),
}


def build(host: str) -> str:
    """On the host; its path there."""
    return care_host.package(host, PACKAGE, f"{VERSION}-1", FILES)
