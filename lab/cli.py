"""The `lab` command: real systemd hosts on this machine, made in seconds."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from lab import hosts
from lab.commands import SYSTEM_PATH
from lab.demo import run_demo
from lab.errors import LabError
from lab.hub import daemon
from lab.hub.places import hub_directory
from lab.plan import DEFAULT_SUITE, ROLE_GROUPS, SUITES
from lab.report import say

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab",
        description="Real systemd hosts on this machine, for trying and testing the deploy.",
        epilog="State and logs: /var/lib/fleet-lab, or FLEET_LAB_DIR.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="make and start hosts; what exists is kept")
    up.add_argument("count", nargs="?", type=int, default=1, metavar="N", help="gpu1..gpuN (1)")
    up.add_argument("--suite", choices=sorted(SUITES), default=DEFAULT_SUITE)
    up.add_argument(
        "--debian13", type=int, default=0, metavar="K", help="also K Debian 13 hosts, t1..tK"
    )
    up.add_argument(
        "--debian13-role",
        default=",".join(ROLE_GROUPS),
        metavar="GROUPS",
        help="groups of t1..tK besides lab and debian13 (%(default)s)",
    )
    up.add_argument(
        "--install",
        action="store_true",
        default=os.environ.get("FLEET_LAB_INSTALL") == "1",
        help="apt-get install what the lab needs (or FLEET_LAB_INSTALL=1)",
    )

    demo = commands.add_parser(
        "demo", help="hosts, hub, deploy and a streamed answer over HTTPS; again: only what lacks"
    )
    demo.add_argument("count", nargs="?", type=int, default=1, metavar="N", help="gpu1..gpuN (1)")
    down = commands.add_parser("down", help="remove all hosts and what they needed")
    down.add_argument("--purge", action="store_true", help="the cached base, logs and keys too")
    status = commands.add_parser("status", help="which hosts there are, and how they are")
    status.add_argument("--json", action="store_true")
    ssh = commands.add_parser("ssh", help="log in, or run a command")
    ssh.add_argument("host")
    ssh.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD...")
    for name, text in (
        ("kill", "power loss"),
        ("boot", "start a host that is off"),
        ("cut", "pull the network cable"),
        ("heal", "plug it in again"),
    ):
        commands.add_parser(name, help=text).add_argument("host")
    reset = commands.add_parser("reset", help="fresh disks, same names, addresses and keys")
    reset.add_argument("hosts", nargs="*", metavar="HOST")
    gpu = commands.add_parser("gpu", help="put a host's simulated GPUs into a state")
    gpu.add_argument("host")
    gpu.add_argument("state", nargs="?", help="without it: show the state, and all there are")
    return parser


def print_status(as_json: bool) -> None:
    if as_json:
        print(json.dumps(hosts.status_document(), indent=2))
        return
    entries = hosts.status()
    if not entries:
        print("the lab is down; `lab up` starts it")
        return
    print(f"{'HOST':<8}{'SUITE':<10}{'ADDRESS':<16}{'POWER':<7}{'LINK':<6}{'GPUS':<15}GROUPS")
    for entry in entries:
        power, link = "on" if entry.running else "off", "up" if entry.link_up else "cut"
        print(
            f"{entry.name:<8}{entry.suite:<10}{entry.address:<16}{power:<7}{link:<6}"
            f"{entry.gpu_state:<15}{','.join(entry.groups)}"
        )


def log_in(host: str, argv: Sequence[str]) -> None:
    """Become ssh. A single word is handed over as it is, so that shell syntax works as with ssh."""
    hosts.refuse_unknown(host)
    words = list(argv[1:] if argv[:1] == ["--"] else argv)
    command = hosts.ssh_command(host)
    command += ["--", words[0]] if len(words) == 1 else hosts.ssh_command(host, words)[4:]
    program = shutil.which("ssh") or shutil.which("ssh", path=SYSTEM_PATH)
    if program is None:
        raise LabError("there is no ssh", "it is not installed", "apt-get install openssh-client")
    os.execv(program, command)  # noqa: S606 - no shell is wanted


def show_gpu(host: str) -> None:
    hosts.refuse_unknown(host)
    print(f"{host}: {hosts.gpu_state(host)}\nstates:\n{hosts.describe_gpu_states()}")


def dispatch(arguments: argparse.Namespace) -> None:
    command = arguments.command
    if command == "up":
        roles = [role for role in arguments.debian13_role.split(",") if role]
        started = hosts.up(
            arguments.count,
            suite=arguments.suite,
            debian13=arguments.debian13,
            debian13_roles=roles,
            install=arguments.install,
        )
        hosts.say_ready(started)
    elif command == "demo":
        run_demo(arguments.count)
    elif command == "down":
        daemon.stop(hub_directory())
        hosts.down(purge=arguments.purge)
        say("the lab is down")
    elif command == "status":
        print_status(arguments.json)
    elif command == "ssh":
        log_in(arguments.host, arguments.argv)
    elif command == "reset":
        hosts.reset(*arguments.hosts)
    elif command == "gpu" and arguments.state is None:
        show_gpu(arguments.host)
    elif command == "gpu":
        hosts.gpu(arguments.host, arguments.state)
    else:
        {"kill": hosts.kill, "boot": hosts.boot, "cut": hosts.cut, "heal": hosts.heal}[command](
            arguments.host
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0; 1 for a refusal or failure, said on stderr; 2 for bad usage (argparse)."""
    try:
        dispatch(build_parser().parse_args(argv))
    except LabError as error:
        print(f"lab: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; run the same command again, or `lab down`", file=sys.stderr)
        return 130
    return 0
