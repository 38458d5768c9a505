import shlex
import subprocess
from pathlib import Path

import pytest

from lab.cgroups import Cgroups, choose_cgroups, is_populated, remove_tree
from lab.errors import LabError
from lab.layout import HostPaths
from lab.plan import Host
from lab.supervisor import Boot, nspawn_command, start_command, supervise_script

UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
HYBRID = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
LEGACY = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
BOOT = Boot(
    host=Host("gpu1", "bookworm", ("lab",)),
    paths=HostPaths(Path("/lab dir/hosts/gpu1")),
    lower=(Path("/lab dir/layers/l"), Path("/lab dir/bases/b")),
    binds=("/srv/wheels",),
    machine_id_salt="salt",
)


def test_systemd_with_v2_uses_a_delegated_scope() -> None:
    cgroups = choose_cgroups(UNIFIED, systemd_is_pid1=True)
    assert cgroups.systemd
    assert cgroups.joined("gpu1") == []
    assert cgroups.trees() == []
    assert str(cgroups.host("gpu1")) == "/sys/fs/cgroup/fleetlab.slice/fleetlab-gpu1.scope"
    command = start_command(BOOT, cgroups)
    assert command[:3] == ["setsid", "--fork", "systemd-run"]
    assert "--scope" in command
    assert "--property=Delegate=yes" in command
    assert "--unit=fleetlab-gpu1" in command
    assert command[-2:] == ["sh", "/lab dir/hosts/gpu1/supervise"]
    script = supervise_script(BOOT, cgroups)
    assert "cgroup.procs" not in script
    assert "mount -t cgroup2" not in script


def test_v2_without_systemd_joins_a_cgroup_of_its_own() -> None:
    cgroups = choose_cgroups(UNIFIED, systemd_is_pid1=False)
    assert [str(path) for path in cgroups.joined("gpu1")] == ["/sys/fs/cgroup/fleet-lab/gpu1"]
    assert "systemd-run" not in start_command(BOOT, cgroups)
    assert "mount -t cgroup2" not in supervise_script(BOOT, cgroups)


def test_hybrid_without_systemd_joins_both_and_shows_nspawn_v2_only() -> None:
    cgroups = choose_cgroups(HYBRID, systemd_is_pid1=False)
    assert [str(path) for path in cgroups.joined("gpu1")] == [
        "/sys/fs/cgroup/systemd/fleet-lab/gpu1",
        "/sys/fs/cgroup/unified/fleet-lab/gpu1",
    ]
    assert str(cgroups.host("gpu1")) == "/sys/fs/cgroup/unified/fleet-lab/gpu1"
    script = supervise_script(BOOT, cgroups)
    joined = script.index("unified/fleet-lab/gpu1/cgroup.procs")
    assert joined < script.index("mount -t cgroup2") < script.index("systemd-nspawn")
    assert "/memory/" not in script


@pytest.mark.parametrize(("mounts", "systemd"), [(LEGACY, False), (HYBRID, True), ("", False)])
def test_other_layouts_are_refused_with_the_way_out(mounts: str, systemd: bool) -> None:
    with pytest.raises(LabError, match="cgroups do not suit") as caught:
        choose_cgroups(mounts, systemd_is_pid1=systemd)
    assert "systemd.unified_cgroup_hierarchy=1" in caught.value.fix


def test_nspawn_keeps_the_clock_and_the_modules_of_the_machine_safe() -> None:
    command = nspawn_command(BOOT)
    assert "--capability=CAP_NET_ADMIN,CAP_SYSLOG" in command
    assert "--register=no" in command
    assert "--keep-unit" in command
    assert "--network-namespace-path=/run/netns/fleetlab-gpu1" in command
    assert "--bind-ro=/srv/wheels" in command
    assert "--bind-ro=/lab dir/hosts/gpu1/etc-fleet-lab:/etc/fleet-lab" in command


@pytest.mark.parametrize("statuses", [[0], [133, 133, 0], [133, 1]])
def test_the_script_loops_on_reboots_and_ends_with_nspawns_status(
    tmp_path: Path, statuses: list[int]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    rest = tmp_path / "statuses"
    rest.write_text("".join(f"{status}\n" for status in statuses))
    log = tmp_path / "log"
    nspawn = f"""#!/bin/sh
echo "$@" >> {log}
status=$(head -n 1 {rest}); sed -i 1d {rest}
exit "$status"
"""
    for name, text in (
        ("systemd-nspawn", nspawn),
        ("mount", "#!/bin/sh\n"),
        ("mkdir", "#!/bin/sh\n"),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    script = supervise_script(
        BOOT, Cgroups(systemd=True, unified=Path("/sys/fs/cgroup"), named=None)
    )
    script = script.replace("export PATH=", f"export PATH={programs}:", 1)
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == statuses[-1], result.stderr
    assert len(log.read_text().splitlines()) == len(statuses)


def test_the_script_quotes_paths() -> None:
    script = supervise_script(BOOT, choose_cgroups(UNIFIED, systemd_is_pid1=True))
    mount = next(line for line in script.splitlines() if "overlay" in line)
    assert shlex.split(mount) == [
        *("mount", "-t", "overlay", "-o"),
        "lowerdir=/lab dir/layers/l:/lab dir/bases/b,"
        "upperdir=/lab dir/hosts/gpu1/upper,workdir=/lab dir/hosts/gpu1/work",
        *("fleet-lab", "/lab dir/hosts/gpu1/root"),
    ]


def test_populated() -> None:
    assert is_populated("populated 1\nfrozen 0\n")
    assert not is_populated("populated 0\nfrozen 0\n")


def test_remove_tree_goes_bottom_up(tmp_path: Path) -> None:
    (tmp_path / "fleet-lab" / "gpu1" / "payload" / "init.scope").mkdir(parents=True)
    remove_tree(tmp_path / "fleet-lab")
    assert list(tmp_path.iterdir()) == []
    remove_tree(tmp_path / "fleet-lab")
