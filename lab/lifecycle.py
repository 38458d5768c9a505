"""Making, starting, stopping and removing hosts. The caller holds the lab's lock."""

from __future__ import annotations

import os
import resource
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lab import cgroups as cg
from lab import network
from lab.commands import command_environment, run_checked
from lab.durable import read_if_there, write_atomic
from lab.errors import LabError
from lab.image import drop_unused, ensure_base, ensure_layer
from lab.inventory import write_inventory
from lab.layout import Layout, hand_to_operator
from lab.machine import (
    gather_passed_on,
    lend_sysctls,
    restore_sysctls,
    write_sysctls,
)
from lab.passed_on import PassedOn, resolv_conf
from lab.plan import BRIDGE_ADDRESS, Host, machine_id_of
from lab.report import say, timed
from lab.standins.gpu_states import HEALTHY
from lab.standins.install import shown_files
from lab.state import State, load_state, save_state
from lab.supervisor import NSPAWN_RUN, Boot, start_command, supervise_script

if TYPE_CHECKING:
    from lab.cgroups import Cgroups

# `ip netns add` makes /run/netns a mount point and leaves it so.
NETNS_MOUNT = "mount on /run/netns"
SMALL_LIMIT = 524288


@dataclass
class Lab:
    """One lab command's view: where things are, what is remembered, what hosts inherit."""

    layout: Layout
    state: State
    cgroups: Cgroups
    passed_on: PassedOn

    def save(self) -> None:
        save_state(self.layout.state_file, self.state)


def open_lab(layout: Layout) -> Lab:
    return Lab(layout, load_state(layout.state_file), cg.machine_cgroups(), gather_passed_on())


def known_host(lab: Lab, name: str) -> Host:
    """LabError with the names there are, if there is no such host."""
    host = lab.state.hosts.get(name)
    if host is None:
        raise_unknown(name, lab.state.sorted_hosts())
    return host


def raise_unknown(name: str, hosts: list[Host]) -> NoReturn:
    names = ", ".join(host.name for host in hosts)
    raise LabError(
        what=f"there is no lab host {name!r}",
        why=f"the lab has {names}" if names else "the lab is down",
        fix="see `lab status`; make hosts with `lab up N`",
    )


def ensure_keys(layout: Layout) -> str:
    """The admin's key pair; returns the public key."""
    layout.directory.mkdir(parents=True, exist_ok=True)
    layout.directory.chmod(0o755)
    make_key(layout.admin_key, "fleet-lab admin")
    hand_to_operator(layout.admin_key)
    return layout.admin_key.with_suffix(".pub").read_text()


def make_key(path: Path, comment: str) -> None:
    """ssh-keygen unless complete: the public half is written last."""
    if path.with_suffix(".pub").is_file() and path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    run_checked(argv, what=f"making the key {path}")


def ensure_machine(lab: Lab) -> None:
    """Sysctls, bridge, masquerading. What is changed is noted durably before it is changed."""
    network.refuse_foreign_bridge(lab.layout.directory)
    changed = lend_sysctls(lab.state)
    mounts = Path("/proc/self/mountinfo").read_text()
    for mark, there in (
        (NSPAWN_RUN, NSPAWN_RUN.is_dir()),
        (network.NETNS_DIRECTORY, network.NETNS_DIRECTORY.is_dir()),
        (NETNS_MOUNT, is_mount_point(network.NETNS_DIRECTORY, mounts)),
    ):
        if not there and str(mark) not in lab.state.made:
            lab.state.made.append(str(mark))
            changed = True
    if changed:
        lab.save()
    write_sysctls(lab.state)
    network.ensure_bridge(lab.layout.directory)


def current_lower(lab: Lab, suite: str) -> tuple[str, ...]:
    """The layers that a new clone of that suite stands on, made if need be."""
    admin = ensure_keys(lab.layout)
    base = ensure_base(lab.layout, suite, lab.passed_on)
    return (ensure_layer(lab.layout, suite, base, lab.passed_on, admin), base)


def ensure_clone(lab: Lab, host: Host) -> None:
    """A fresh writable layer with the host's identity, renamed into place when complete."""
    paths = lab.layout.host(host.name)
    if paths.directory.is_dir():
        return
    partial = replace(paths, directory=lab.layout.hosts / f".{host.name}.partial")
    shutil.rmtree(partial.directory, ignore_errors=True)
    for directory in (partial.upper, partial.work, partial.root, partial.shown):
        directory.mkdir(parents=True, mode=0o755)
    key = lab.layout.host_key(host.name)
    make_key(key, host.name)
    etc = partial.upper / "etc"
    (etc / "ssh").mkdir(parents=True, mode=0o755)
    files = {
        etc / "hostname": f"{host.name}\n",
        etc / "hosts": f"127.0.0.1 localhost\n::1 localhost\n{host.address} {host.name}\n"
        f"{BRIDGE_ADDRESS} lab-machine\n",
        etc / "machine-id": f"{machine_id_of(host.name, salt(lab))}\n",
    }
    for path, text in files.items():
        path.write_text(text)
    show_gpu_state(partial.shown, HEALTHY)
    for source in (key, key.with_suffix(".pub")):
        target = etc / "ssh" / source.name
        shutil.copyfile(source, target)
        target.chmod(0o600 if source == key else 0o644)
    partial.directory.rename(paths.directory)


def show_gpu_state(shown: Path, state: str) -> None:
    """Put the GPUs of the host that sees this directory into a state of gpu_states.py."""
    for name, text in shown_files(state).items():
        path = shown / name
        path.parent.mkdir(mode=0o755, exist_ok=True)
        if text:
            write_atomic(path, text)
        else:
            path.unlink(missing_ok=True)


def salt(lab: Lab) -> str:
    return lab.layout.admin_key.with_suffix(".pub").read_text()


def refresh_resolv_conf(lab: Lab, host: Host) -> None:
    """The machine's name servers may have changed since the last boot; a host's symlink stays."""
    text, warnings = resolv_conf(Path("/"))
    for warning in warnings:
        say(f"warning: {warning}")
    target = lab.layout.host(host.name).upper / "etc" / "resolv.conf"
    if not target.is_symlink() and read_if_there(target) != text.encode():
        write_atomic(target, text)


def boot_plan(lab: Lab, host: Host) -> Boot:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    return Boot(
        host=host,
        paths=lab.layout.host(host.name),
        lower=tuple(lab.layout.directory / layer for layer in host.lower),
        binds=tuple(lab.passed_on.binds),
        machine_id_salt=salt(lab),
        open_files=SMALL_LIMIT if unlimited else hard,
    )


def start_host(lab: Lab, host: Host) -> None:
    """Boot a host that does not run; plug its cable in either case. Does not wait for ssh."""
    network.ensure_host_network(host)
    network.set_link(host.name, up=True)
    if cg.is_running(lab.cgroups, host.name):
        return
    if not all((lab.layout.directory / layer).is_dir() for layer in host.lower) or not host.lower:
        renew_host(lab, host)
        host = lab.state.hosts[host.name]
    cg.clear_host(lab.cgroups, host.name)
    ensure_clone(lab, host)
    refresh_resolv_conf(lab, host)
    boot = boot_plan(lab, host)
    write_atomic(boot.paths.supervise, supervise_script(boot, lab.cgroups), 0o755)
    log = lab.layout.console_log(host.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    spawn_detached(start_command(boot, lab.cgroups), log)


def spawn_detached(argv: list[str], log: Path) -> None:
    """Start a program that outlives us, its output appended to `log`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        path = shutil.which(argv[0], path=command_environment()["PATH"])
        if path is None:
            raise LabError(
                what=f"cannot start {argv[0]}",
                why="it is not installed",
                fix="apt-get install util-linux",
            )
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, descriptor, 1),
            (os.POSIX_SPAWN_DUP2, descriptor, 2),
        ]
        environment = {"PATH": command_environment()["PATH"], "LC_ALL": "C.UTF-8"}
        process = os.posix_spawn(path, argv, environment, file_actions=actions)
        os.waitpid(process, 0)  # setsid --fork returns at once
    finally:
        os.close(descriptor)


def stop_host(lab: Lab, name: str) -> None:
    """Power loss. The cable first: a dead host's network namespace would still answer ping."""
    network.set_link(name, up=False)
    cg.kill_host(lab.cgroups, name)


def discard_clone(lab: Lab, name: str) -> None:
    """Move a host's files aside at once; removing them takes longer and is done by tidy."""
    directory = lab.layout.host(name).directory
    if directory.is_dir():
        lab.layout.trash.mkdir(parents=True, exist_ok=True)
        directory.rename(lab.layout.trash / f"{name}-{time.time_ns()}")


def tidy(lab: Lab) -> None:
    """Remove discarded clones, and layers that no host stands on any more."""
    if lab.layout.trash.is_dir():
        shutil.rmtree(lab.layout.trash)
    drop_unused(lab.layout, {layer for host in lab.state.hosts.values() for layer in host.lower})


def renew_host(lab: Lab, host: Host) -> None:
    """Put the host on the newest layers of its suite, with nothing written yet."""
    discard_clone(lab, host.name)
    lab.state.hosts[host.name] = replace(host, lower=current_lower(lab, host.suite))
    lab.save()


def bring_up(lab: Lab, wanted: list[Host]) -> list[Host]:
    """Make and start the wanted hosts; those that exist keep their suite and their files."""
    for warning in lab.passed_on.warnings:
        say(f"warning: {warning}")
    ensure_keys(lab.layout)
    ensure_machine(lab)
    network.warn_of_firewall()
    for host in wanted:
        known = lab.state.hosts.get(host.name)
        if known and known.suite != host.suite:
            say(f"{host.name} exists with {known.suite}: kept (to change it: lab down, lab up)")
            continue
        lower = known.lower if known and known.lower else current_lower(lab, host.suite)
        lab.state.hosts[host.name] = replace(host, lower=lower)
    lab.save()
    started = [lab.state.hosts[host.name] for host in wanted]
    for host in started:
        start_host(lab, host)
    for name in lab.state.hosts:
        make_key(lab.layout.host_key(name), name)
    write_inventory(lab.layout, lab.state)
    return started


def take_down(lab: Lab, *, purge: bool) -> None:
    """Remove all that `up` made, also what an interrupted command left; the cached base stays."""
    names = sorted(
        {
            *lab.state.hosts,
            *cg.host_names(lab.cgroups),
            *network.host_names_with_network(),
        }
    )
    network.refuse_foreign_bridge(lab.layout.directory)
    if names:
        with timed(f"stopping {' '.join(names)}"):
            for name in names:
                stop_host(lab, name)
    for tree in lab.cgroups.trees():
        cg.remove_tree(tree)
    for name in names:
        network.remove_host_network(name)
    network.remove_network(lab.layout.directory)
    remove_made(lab)
    restore_sysctls(lab.state)
    remove_files(lab, purge=purge)


def is_mount_point(path: Path, mountinfo: str) -> bool:
    """From /proc/self/mountinfo; os.path.ismount does not see a directory bound onto itself."""
    return any(line.split()[4] == str(path) for line in mountinfo.splitlines())


def remove_made(lab: Lab) -> None:
    """The directories and the mount that `ip netns` and nspawn left, if nobody else uses them."""
    directory = network.NETNS_DIRECTORY
    mounts = Path("/proc/self/mountinfo").read_text()
    in_use = directory.is_dir() and any(directory.iterdir())
    if NETNS_MOUNT in lab.state.made and is_mount_point(directory, mounts) and not in_use:
        run_checked(["umount", str(directory)], what="unmounting /run/netns")
    for made in lab.state.made:
        path = Path(made)
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def remove_files(lab: Lab, *, purge: bool) -> None:
    layout = lab.layout
    for directory in (layout.hosts, layout.trash, layout.directory / "keys" / "hosts"):
        if directory.is_dir():
            shutil.rmtree(directory)
    for file in (layout.inventory, layout.known_hosts, layout.ssh_config):
        file.unlink(missing_ok=True)
    if purge:
        for directory in (layout.bases, layout.layers, layout.logs, layout.admin_key.parent):
            if directory.is_dir():
                shutil.rmtree(directory)
    layout.state_file.unlink(missing_ok=True)  # last: until here `down` can be repeated
    if purge and layout.directory.is_dir() and not any(layout.directory.iterdir()):
        layout.directory.rmdir()
