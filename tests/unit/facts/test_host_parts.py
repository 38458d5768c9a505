"""CPU, memory, disks, bus and packages: each parser, and how it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.facts import apt_packages, host_parts, pci, processes
from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import Mount, NumaNode, Package

if TYPE_CHECKING:
    from collections.abc import Callable


def test_lscpu_flat_and_nested() -> None:
    fields = [
        {"field": "CPU(s):", "data": "16"},
        {"field": "Model name:", "data": "AMD EPYC 9124"},
        {"field": "NUMA node1 CPU(s):", "data": "8-15"},
        {"field": "NUMA node0 CPU(s):", "data": "0-7"},
    ]
    expected = ("AMD EPYC 9124", 16, (NumaNode(0, "0-7"), NumaNode(1, "8-15")))
    assert host_parts.parse_lscpu(json.dumps({"lscpu": fields})) == expected
    nested = [{"field": "Vendor ID:", "data": "AMD", "children": fields}]
    assert host_parts.parse_lscpu(json.dumps({"lscpu": nested})) == expected


def test_numa_nodes_of_sys_and_of_numactl() -> None:
    base = "/sys/devices/system/node/node"
    text = f"{base}1/cpulist:8-15\n{base}0/cpulist:0-7\n{base}0/meminfo:Node 0 MemTotal:  2048 kB\n"
    assert host_parts.parse_numa_nodes(text) == (NumaNode(0, "0-7", 2097152), NumaNode(1, "8-15"))
    numactl = (
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 1 2 3 8 9\nnode 0 size: 2 MB\n"
        "node 0 free: 1 MB\nnode 1 cpus:\nnode 1 size: 4 MB\nnode distances:\n"
    )
    assert host_parts.parse_numa_nodes(numactl) == (
        NumaNode(0, "0-3,8-9", 2097152), NumaNode(1, "", 4194304),
    )  # fmt: skip


def test_df_in_several_block_sizes() -> None:
    bytes_text = (
        "Filesystem 1-blocks Used Available Capacity Mounted on\n"
        "/dev/a 1000 1 700 1% /\n/dev/b 1000 1 900 1% /srv\n/dev/c 9 1 8 1% /srv/llm data\n"
    )
    free = host_parts.parse_df(bytes_text)
    assert host_parts.free_under(free, "/srv/llm") == 900
    assert host_parts.free_under(free, "/srvx") == 700
    assert free["/srv/llm data"] == 8
    kib = "Filesystem     1K-blocks  Used Available Use% Mounted on\n/dev/a 10 1 7 1% /\n"
    assert host_parts.parse_df(kib) == {"/": 7 * 1024}
    posix = "Filesystem     1024-blocks  Used Available Capacity Mounted on\n/dev/a 10 1 7 1% /\n"
    assert host_parts.parse_df(posix) == {"/": 7 * 1024}
    with pytest.raises(UnreadableOutput, match="rounded"):
        host_parts.parse_df("Filesystem Size Used Avail Use% Mounted on\n/dev/a 1T 1G 1T 1% /\n")


def test_small_files() -> None:
    assert host_parts.parse_meminfo("MemTotal:  10 kB\nMemAvailable: 5 kB\n") == (10240, 5120)
    assert host_parts.parse_meminfo("MemTotal:  10 kB\n") == (10240, None)
    assert host_parts.parse_os_release('ID="debian"\nVERSION_ID="12"\n') == ("debian", "12")
    assert host_parts.parse_os_release("ID=arch\n") == ("arch", None)
    assert host_parts.parse_uname("Linux h 6.1.0-37-amd64 #1 SMP x86_64\n") == "6.1.0-37-amd64"
    assert host_parts.parse_uname("6.1.0-37-amd64\n") == "6.1.0-37-amd64"
    assert host_parts.parse_max_map_count("vm.max_map_count = 65530\n") == 65530
    assert host_parts.parse_dmi("/sys/class/dmi/id/board_vendor:Dell Inc.\n/sys/x:\n") == {
        "board_vendor": "Dell Inc."
    }
    assert host_parts.parse_paths("/a\nls: no such file\n/b\n") == ("/a", "/b")


def test_the_file_that_sets_max_map_count_is_the_last_that_is_read() -> None:
    text = (
        "/etc/sysctl.d/10-a.conf:2:vm.max_map_count=1\n"
        "/etc/sysctl.d/20-b.conf:-vm/max_map_count = 2\n"
        "/etc/sysctl.d/30-c.conf:9:# vm.max_map_count=3\n"
    )
    assert host_parts.max_map_count_file(text) == "/etc/sysctl.d/20-b.conf"
    assert host_parts.max_map_count_file("") is None


def test_gpus_on_the_bus_whatever_the_driver_says() -> None:
    gpus, bridges = pci.parse_pci_gpus(
        "0000:3b:00.0 driver= numa_node=-1 current_link_width=0 max_link_width=16 "
        "path=/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0\n"
        "0000:18:00.0 driver=nouveau numa_node=1 path=/sys/devices/pci0000:17/0000:18:00.0\n"
    )
    assert [(gpu.address, gpu.kernel_driver, gpu.numa_node) for gpu in gpus] == [
        ("0000:18:00.0", "nouveau", 1), ("0000:3b:00.0", None, None),
    ]  # fmt: skip
    assert (gpus[1].link_width, gpus[1].link_width_max) == (None, 16)
    assert bridges == frozenset({"0000:3a:00.0"})
    assert pci.parse_pci_gpus("") == ((), None)
    assert pci.parse_pci_gpus("0000:18:00.0 driver=nvidia\n")[1] is None


def test_acs_of_lspci_and_of_setpci() -> None:
    lspci = (
        "15:01.0 PCI bridge: Intel Corporation Device 352a (rev 30)\n"
        "\tCapabilities: [220 v1] Access Control Services\n"
        "\t\tACSCap:\tSrcValid+ TransBlk+\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+\n"
        "26:01.0 PCI bridge: Intel Corporation Device 352a\n"
        "\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir-\n"
        "3b:00.0 3D controller: NVIDIA Corporation Device 26ba\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir-\n"
    )
    assert pci.parse_acs(lspci) == ("0000:15:01.0",)
    assert pci.parse_acs("0000:15:01.0 @226 = 001d\n0000:26:01.0 0000\n") == ("0000:15:01.0",)
    assert pci.parse_acs("") == ()


@pytest.mark.parametrize(
    ("groups", "cmdline", "expected"),
    [
        ("0\n1\n", "ro iommu=pt", (True, True)),
        ("0\n", "intel_iommu=on", (True, None)),
        ("0\n", "iommu.passthrough=0", (True, False)),
        ("", "iommu=pt", (False, False)),
        (None, "iommu=pt", (None, True)),
        (None, None, (None, None)),
    ],
)
def test_iommu(groups: str | None, cmdline: str | None, expected: tuple[Any, Any]) -> None:
    assert pci.iommu_state(groups, cmdline) == expected


def test_dpkg_in_both_shapes() -> None:
    table = (
        "Desired=Unknown/Install/Remove/Purge/Hold\n||/ Name Version Architecture Description\n"
        "hi  nvidia-driver-570      570.181-1 amd64  driver\n"
        "ii  libnvidia-ml1:amd64    570.181-1 amd64  library\n"
        "rc  nvidia-driver-550      550.1     amd64  removed\n"
        "ii  bash                   5.2       amd64  shell\n"
    )
    lines = (
        "nvidia-driver-570\t570.181-1\thi \nlibnvidia-ml1\t570.181-1\tii \n"
        "nvidia-driver-550\t550.1\trc \nbash\t5.2\tii \n"
    )
    for text in (table, lines):
        found = apt_packages.nvidia_packages(apt_packages.parse_dpkg(text))
        assert found == (
            Package("libnvidia-ml1", "570.181-1"),
            Package("nvidia-driver-570", "570.181-1", held=True),
        )


CONFIG = """\
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade::Origins-Pattern:: "origin=Debian,codename=${distro_codename},label=Debian";
Unattended-Upgrade::Package-Blacklist:: "libnvidia-";
"""
DEBIAN = {"o": "Debian", "n": "bookworm", "l": "Debian", "c": "non-free", "site": "deb.debian.org"}


@pytest.mark.parametrize(
    ("name", "origin", "changed", "exposed"),
    [
        ("nvidia-driver", DEBIAN, {}, True),
        ("nvidia-driver", DEBIAN | {"n": "trixie"}, {}, False),
        ("nvidia-driver", {"o": "NVIDIA", "site": "developer.download.nvidia.com"}, {}, False),
        ("libnvidia-ml1", DEBIAN, {}, False),
        ("nvidia-driver", DEBIAN, {"holds": frozenset({"nvidia-driver"})}, False),
        ("nvidia-driver", DEBIAN, {"installed": False}, False),
        ("nvidia-driver", DEBIAN, {"unattended": None}, None),
        ("nvidia-driver", DEBIAN, {"policy": None}, None),
        ("nvidia-driver", DEBIAN, {"policy": {}}, None),
    ],
)
def test_what_unattended_upgrades_would_take(
    name: str, origin: dict[str, str], changed: dict[str, Any], exposed: bool | None
) -> None:
    given: dict[str, Any] = {
        "holds": frozenset(),
        "unattended": apt_packages.parse_apt_config(CONFIG, "bookworm", "Debian"),
        "installed": True,
        "policy": {name: [origin]},
    } | changed
    (judged,) = apt_packages.judge((Package(name, "1"),), **given)
    assert judged.upgradable_unattended is exposed


def test_unattended_upgrades_that_is_switched_off() -> None:
    off = apt_packages.parse_apt_config(CONFIG.replace('"1"', '"0"'), "bookworm", "Debian")
    assert not off.enabled
    assert not apt_packages.parse_apt_config("", None).enabled


def test_cuda_compat_is_the_newest_by_number() -> None:
    packages = tuple(Package(f"cuda-compat-{v}", "1") for v in ("12-8", "12-10", "11-8"))
    assert apt_packages.compat_version(packages) == "12.10"
    assert apt_packages.compat_version((Package("nvidia-driver", "1"),)) is None


def test_units_of_processes() -> None:
    text = (
        "10\tpython3\t/system.slice/llm-engine@main.service\n"
        "11\tpython3\t/user.slice/user-0.slice/session-3.scope\n"
        "12\tpython3\t/\n"
        "13\tx\t/user.slice/user-1.slice/user@1.service/app.slice/run-a.scope\nbroken\n"
    )
    assert processes.parse_processes(text) == {
        10: "llm-engine@main.service", 11: "session-3.scope", 12: "", 13: "run-a.scope",
    }  # fmt: skip


@pytest.mark.parametrize(
    "parse",
    [
        host_parts.parse_lscpu,
        host_parts.parse_numa_nodes,
        host_parts.parse_meminfo,
        host_parts.parse_df,
        host_parts.parse_os_release,
        host_parts.parse_uname,
        host_parts.parse_dmi,
        host_parts.parse_max_map_count,
        pci.parse_pci_gpus,
        pci.parse_acs,
        apt_packages.parse_dpkg,
        apt_packages.parse_apt_config,
        apt_packages.parse_policy,
    ],
)
@pytest.mark.parametrize("text", ["what is this\n", '{"lscpu": [null]}', "x: command not found"])
def test_something_else_is_refused(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(UnreadableOutput):
        parse(text)


def test_mounts() -> None:
    text = (
        "/dev/sda1 / ext4 rw,relatime 0 0\n"
        "/dev/md0 /srv xfs rw,noatime 0 0\n"
        "nas:/a\\040b /srv/llm nfs4 rw,noexec,addr=192.0.2.9 0 0\n"
        "/dev/md1 /srv xfs rw 0 0\n"
    )
    mounts = host_parts.parse_mounts(text)
    found = host_parts.mount_of(mounts, "/srv/llm")
    assert found == Mount("/srv/llm", "nas:/a b", "nfs4", ("rw", "noexec", "addr=192.0.2.9"))
    of_root = host_parts.mount_of(mounts, "/srvother")
    assert of_root is not None
    assert of_root.device == "/dev/sda1"
    # The later one hides the earlier.
    above = host_parts.mount_of(mounts, "/srv/x")
    assert above is not None
    assert above.device == "/dev/md1"


@pytest.mark.parametrize("text", ["", "nonsense\n", "Filesystem 1-blocks Used\n"])
def test_what_lists_no_mounts_is_said(text: str) -> None:
    with pytest.raises(UnreadableOutput):
        host_parts.parse_mounts(text)
