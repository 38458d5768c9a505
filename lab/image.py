"""What hosts are cloned from: a cached Debian base for each suite, and a thin layer over it.

The base depends on the suite alone and takes half a minute; the layer holds the lab's user and
stand-ins and this machine's package configuration, takes seconds, and is made anew when any of
these changes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.apt_config import auth_files, for_suite, machine_sources, render_deb822
from lab.commands import command_environment, last_lines
from lab.errors import LabError
from lab.machine import APT_SETTINGS
from lab.passed_on import FileCopy, PassedOn
from lab.plan import ADMIN_USER, SUITES
from lab.report import say, timed
from lab.standins.install import standin_files

if TYPE_CHECKING:
    from lab.layout import Layout

PACKAGES = (
    "ca-certificates",
    "curl",
    "dbus",
    # Compilers are on hosts with a GPU anyway: the driver builds its modules there.
    "g++",
    "gcc",
    "iproute2",
    "libc6-dev",
    "libpam-systemd",
    "netbase",
    "openssh-server",
    "procps",
    "python3-minimal",
    "sudo",
    "systemd",
    "systemd-sysv",
    "tzdata",
)
NO_DOCS = (
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
)
# In a mount and PID namespace, killed with the lab command: an interrupted build leaves neither
# processes nor mounts, only a directory that the next one clears away.
CONTAINED = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "--",
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--",
)
SSHD = """\
# Keys only, and the lab's own host key only.
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthenticationMethods publickey
PermitRootLogin no
X11Forwarding no
UseDNS no
"""
PREPARE = f"""\
set -eu
useradd --create-home --shell /bin/bash {ADMIN_USER}
install -d -m 700 -o {ADMIN_USER} -g {ADMIN_USER} /home/{ADMIN_USER}/.ssh
install -m 600 -o {ADMIN_USER} -g {ADMIN_USER} \
    /usr/lib/fleet-lab/admin.pub /home/{ADMIN_USER}/.ssh/authorized_keys
rm -f /etc/ssh/ssh_host_* /var/lib/dbus/machine-id /etc/apt/apt.conf.d/99mmdebstrap
: > /etc/machine-id
mkdir -p /var/log/journal
update-ca-certificates >/dev/null 2>&1
for unit in apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service \
    e2scrub_all.timer e2scrub_reap.service getty@.service console-getty.service \
    container-getty@.service systemd-networkd-wait-online.service; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done
systemctl enable fleet-lab-sysctls.service >/dev/null 2>&1
"""


def run_contained(argv: list[str], log: Path, what: str, fix: str, *, echo: bool = False) -> None:
    """Run in namespaces of its own, output to `log`; LabError with its last lines if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            [*CONTAINED, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=command_environment(),
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if echo and line.startswith("I: "):
                say(f"  {line[3:].strip()}")
        status = process.wait()
    if status != 0:
        raise LabError(
            what=f"{what} failed with exit status {status}",
            why=last_lines(log.read_text()),
            fix=f"{fix}; the whole log is {log}",
        )


def base_name(suite: str) -> str:
    recipe = "\n".join((suite, *PACKAGES, *NO_DOCS))
    return f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def mmdebstrap_command(
    suite: str, target: Path, sources: Path, apt_settings: Path | None, auth: list[str]
) -> list[str]:
    """mmdebstrap(1) for a base. Docs are excluded in a hook: the first packages need theirs."""
    excludes = "\\n".join(NO_DOCS)
    return [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        "--dpkgopt=force-unsafe-io",
        *([f"--aptopt={apt_settings}"] if apt_settings else []),
        *([f"--setup-hook=copy-in {' '.join(auth)} /etc/apt/auth.conf.d"] if auth else []),
        f'--essential-hook=printf "{excludes}\\n" > "$1/etc/dpkg/dpkg.cfg.d/01-lab-nodocs"',
        f"--include={','.join(PACKAGES)}",
        suite,
        str(target),
        str(sources),
    ]


def ensure_base(layout: Layout, suite: str, passed_on: PassedOn, root: Path = Path("/")) -> str:
    """Path of the suite's base, relative to the state directory; bootstrapped unless cached."""
    name = base_name(suite)
    base = layout.bases / name
    relative = f"bases/{name}"
    if base.is_dir():
        return relative
    partial = layout.bases / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    sources = partial / "debian.sources"
    sources.write_text(render_deb822(for_suite(machine_sources(root), suite)))
    settings = passed_on.files.get(APT_SETTINGS)
    apt_settings = partial / "apt.conf"
    if settings:
        apt_settings.write_bytes(settings.data)
    command = mmdebstrap_command(
        suite,
        partial / "root",
        sources,
        apt_settings if settings else None,
        auth_files(root),
    )
    with timed(f"bootstrapping the {SUITES[suite]} base (once; later hosts take seconds)"):
        run_contained(
            command,
            layout.logs / f"base-{suite}.log",
            f"bootstrapping {SUITES[suite]}",
            f"check that this machine reaches the archive named in {sources}",
            echo=True,
        )
    (partial / "root").rename(base)
    shutil.rmtree(partial, ignore_errors=True)
    return relative


def layer_files(suite: str, passed_on: PassedOn, admin_public_key: str) -> dict[str, FileCopy]:
    """Everything the layer writes, by absolute path in the host."""
    sources = render_deb822(for_suite(machine_sources(Path("/")), suite))
    return {
        **passed_on.files,
        **standin_files(),
        "/etc/apt/sources.list": FileCopy(b"# See sources.list.d/debian.sources.\n"),
        "/etc/apt/sources.list.d/debian.sources": FileCopy(sources.encode()),
        "/etc/ssh/sshd_config.d/10-fleet-lab.conf": FileCopy(SSHD.encode()),
        f"/etc/sudoers.d/{ADMIN_USER}": FileCopy(
            f"{ADMIN_USER} ALL=(ALL:ALL) NOPASSWD: ALL\n".encode(), 0o440
        ),
        "/usr/lib/fleet-lab/admin.pub": FileCopy(admin_public_key.encode()),
        "/usr/lib/fleet-lab/prepare": FileCopy(PREPARE.encode()),
    }


def layer_name(suite: str, base: str, files: dict[str, FileCopy]) -> str:
    return f"{suite}-{PassedOn(files={**files, base: FileCopy(b'')}).digest()}"


def stage_files(stage: Path, files: dict[str, FileCopy]) -> None:
    for path, copy in files.items():
        target = stage / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(copy.data)
        target.chmod(copy.mode)


def layer_script(base: Path, upper: Path, work: Path, stage: Path, merged: Path) -> str:
    """Shell: overlay the base, drop the staged files in, prepare inside. Mounts end with it."""
    return f"""\
set -eu
mount -t overlay -o lowerdir={base},upperdir={upper},workdir={work} fleet-lab {merged}
rm -f {merged}/etc/apt/sources.list.d/*
cd {stage}
find . ! -type d -print0 | tar --null -T - -cf - | tar -C {merged} --no-same-owner -xpf -
chroot {merged} /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    DEBIAN_FRONTEND=noninteractive sh /usr/lib/fleet-lab/prepare
"""


def ensure_layer(
    layout: Layout, suite: str, base: str, passed_on: PassedOn, admin_public_key: str
) -> str:
    """Path of the layer over `base`, relative to the state directory; made unless it is current."""
    files = layer_files(suite, passed_on, admin_public_key)
    name = layer_name(suite, base, files)
    layer = layout.layers / name
    relative = f"layers/{name}"
    if layer.is_dir():
        return relative
    partial = layout.layers / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    parts = {part: partial / part for part in ("upper", "work", "stage", "merged")}
    for directory in parts.values():
        directory.mkdir(parents=True)
    stage_files(parts["stage"], files)
    script = layer_script(
        layout.directory / base, parts["upper"], parts["work"], parts["stage"], parts["merged"]
    )
    with timed(f"preparing {SUITES[suite]} for this machine"):
        run_contained(
            ["sh", "-c", script],
            layout.logs / f"layer-{suite}.log",
            f"preparing {SUITES[suite]}",
            "run `lab down --purge` and `lab up` to start from nothing",
        )
    parts["upper"].rename(layer)
    shutil.rmtree(partial, ignore_errors=True)
    return relative


def drop_unused(layout: Layout, used: set[str]) -> None:
    """Remove layers that no host uses, and remains of interrupted builds older than an hour."""
    for directory in (layout.layers, layout.bases):
        for path in directory.iterdir() if directory.is_dir() else ():
            is_partial = path.name.startswith(".")
            stale = is_partial and time.time() - path.stat().st_mtime > 3600
            unused = (
                not is_partial and directory == layout.layers and f"layers/{path.name}" not in used
            )
            if stale or unused:
                shutil.rmtree(path, ignore_errors=True)
