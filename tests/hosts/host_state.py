"""What a host is like, for comparing before and after: files from outside, units from inside."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from tests.hosts.lab_session import shell, upper_of

if TYPE_CHECKING:
    from collections.abc import Mapping

# Written by every login, boot or timer, whatever we do.
ALIVE = (
    *("proc", "sys", "dev", "run", "tmp", "root", "home", "var/tmp", "var/log", "var/lib/systemd"),
    *("var/lib/private/systemd", "var/lib/dbus", "var/lib/sudo"),
)
UNITS = ("llm-engine@main.service", "llm-gateway.service", "nginx.service")


def tree(host: str) -> dict[str, str]:
    """path -> mode, owner, size and time of what the host has written, beside its daily life.

    By find(1): a runtime has tens of thousands of files.
    """
    names: list[str] = []
    for path in ALIVE:
        names += ["-path", f"./{path}", "-o"]
    argv = [
        "find",
        ".",
        "(",
        *names[:-1],
        ")",
        "-prune",
        "-o",
        "-printf",
        "%P\\t%m %U %G %s %T@\\n",
    ]
    output = subprocess.run(
        argv, cwd=upper_of(host), capture_output=True, text=True, check=True
    ).stdout
    # A directory's time and size change with every temporary file in it.
    return {
        path: rest if not (upper_of(host) / path).is_dir() else rest.split()[0]
        for path, rest in (line.split("\t") for line in output.splitlines())
        if path
    }


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(
        f"{'-' if path not in after else '+' if path not in before else '~'} {path}"
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    )


def invocations(host: str) -> dict[str, str]:
    """unit -> its InvocationID, which changes with every start."""
    output = shell(host, f"systemctl show --value -p InvocationID {' '.join(UNITS)}")
    return dict(zip(UNITS, output.split(), strict=True))


def listeners(host: str) -> list[str]:
    """`address:port program` of every TCP and UDP socket that is not on a loopback address."""
    output = shell(host, "ss -Hltnup")
    found = []
    for line in output.splitlines():
        fields = line.split()
        address = fields[4]
        program = re.search(r'\(\("([^"]+)"', line)
        if re.match(r"(127\.|\[::1\]|\[::ffff:127\.)", address):
            continue
        found.append(f"{address} {program.group(1) if program else '?'}")
    return sorted(found)


def exposures(host: str) -> dict[str, float]:
    """unit -> `systemd-analyze security`'s figure, for every unit file of ours, instances too."""
    names = shell(host, "ls /etc/systemd/system").split()
    figures = {}
    for name in sorted(names):
        if not name.startswith("llm-") or not name.endswith(".service"):
            continue
        instance = name.replace("@.", "@main.")
        output = shell(host, f"systemd-analyze security --no-pager {instance}", check=False)
        match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", output)
        assert match, f"{host}: {instance}: {output[-400:]}"
        figures[instance] = float(match[1])
    return figures
