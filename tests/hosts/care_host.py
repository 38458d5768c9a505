"""Stand-ins on a lab host for what cools it and for packages of a driver: NVIDIA's management
library, a BMC, packages that are built on the host itself."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import TYPE_CHECKING, Any

from tests.fakes import bmc
from tests.hosts.lab_session import shell
from tests.hosts.pyinfra_run import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

STATE = "/var/lib/stand-ins"
LIBRARY = "/usr/local/lib/stand-ins/libnvidia-ml.so.1"
BOARD = {
    "board_vendor": "Supermicro",
    "board_name": "X11DPG-OT-CPU",
    "sys_vendor": "Supermicro",
    "product_name": "SYS-4029GP-TRT",
}
# What our units may see and write of the stand-ins; they are confined to their own otherwise.
DROP_IN = f"""\
[Service]
Environment=FAKE_NVML={STATE} FLEET_NVML_LIBRARY={LIBRARY}
Environment=FAKE_BMC={STATE} FLEET_DMI_ROOT=/sys/class/dmi/id
ReadWritePaths={STATE}
"""


def put(host: str, path: str, content: bytes, mode: str = "0644") -> None:
    script = f"mkdir -p $(dirname {path}) && base64 -d > {path} && chmod {mode} {path}"
    shell(host, script, input_text=base64.b64encode(content).decode())


def put_nvml(host: str, directory: Path) -> None:
    """The library, compiled here, for two GPUs with a fan each, at 30 degrees."""
    built = directory / "libnvidia-ml.so.1"
    source = REPOSITORY / "tests" / "fakes" / "nvml.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", built, source], check=True)
    put(host, LIBRARY, built.read_bytes())
    shell(host, f"mkdir -p {STATE}; printf '1 30 100\\n1 30 100\\n' > {STATE}/cards")
    for index in (0, 1):
        temperature(host, index, 30)
    put(host, "/etc/systemd/system/llm-fans.service.d/stand-ins.conf", DROP_IN.encode())


def temperature(host: str, index: int, degrees: int) -> None:
    path = f"{STATE}/temperature-{index}"
    shell(host, f"echo {degrees} > {path}.new && mv {path}.new {path}")


def fans(host: str) -> list[str]:
    """Of both GPUs: the percent that was set, or auto."""
    return shell(host, f"cat {STATE}/fan-0-0; echo; cat {STATE}/fan-1-0").split()


def put_bmc(host: str) -> None:
    """A BMC with its program, and a board that the table knows, until the next boot."""
    program = bmc.PROGRAM.replace("PYTHON", "/usr/bin/python3")
    put(host, "/usr/local/bin/ipmitool", program.encode(), "0755")
    put(host, "/etc/systemd/system/llm-chassis-fans.service.d/stand-ins.conf", DROP_IN.encode())
    names = " ".join(f"'{name}={value}'" for name, value in BOARD.items())
    shell(
        host,
        f"""
        set -e
        mkdir -p {STATE}; printf 02 > {STATE}/mode; touch /dev/ipmi0
        # The machine may tell nothing of a board: its class is shown to this host with one.
        cp -a /sys/class /run/class 2>/dev/null || true
        rm -rf /run/class/dmi; mkdir -p /run/class/dmi/id
        for pair in {names}; do echo "${{pair#*=}}" > "/run/class/dmi/id/${{pair%%=*}}"; done
        mount --bind /run/class /sys/class
        """,
    )


def bmc_mode(host: str) -> str:
    return shell(host, f"cat {STATE}/mode")


def package(host: str, name: str, version: str, files: dict[str, tuple[str, str]]) -> str:
    """Build a package on the host; its path there. files: path -> (text, mode)."""
    root = f"/srv/packages/{name}"
    control = f"""\
Package: {name}
Version: {version}
Architecture: amd64
Maintainer: The lab <lab@fleet.internal>
Description: stand-in for a package of the NVIDIA driver
"""
    shell(host, f"rm -rf {root}")
    put(host, f"{root}/DEBIAN/control", control.encode())
    for path, (text, mode) in files.items():
        put(host, f"{root}{path}", text.encode(), mode)
    shell(host, f"dpkg-deb --root-owner-group --build {root} {root}.deb")
    return f"{root}.deb"


def add_source(host: str, deb: str) -> None:
    """A source of apt with this one package, as an operator adds one."""
    shell(
        host,
        f"""
        set -e
        mkdir -p /srv/local-apt; cp {deb} /srv/local-apt/; cd /srv/local-apt
        file=$(basename {deb})
        {{ dpkg-deb --field $file
           echo "Filename: ./$file"
           echo "Size: $(stat -c %s $file)"
           echo "SHA256: $(sha256sum $file | cut -d' ' -f1)"; }} > Packages
        echo 'deb [trusted=yes] file:/srv/local-apt ./' > /etc/apt/sources.list.d/local-apt.list
        apt-get update -o Dir::Etc::sourcelist=sources.list.d/local-apt.list \
            -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0
        """,
    )


def unit(host: str, name: str) -> dict[str, str]:
    """ActiveState, UnitFileState and InvocationID."""
    properties = "ActiveState,UnitFileState,InvocationID"
    shown = shell(host, f"systemctl show {name} -p {properties}")
    return dict(line.split("=", 1) for line in shown.splitlines())


def held(host: str) -> list[str]:
    return shell(host, "apt-mark showhold").split()


def manifest(host: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell(host, "cat /srv/llm/state/manifest.json"))
    return found
