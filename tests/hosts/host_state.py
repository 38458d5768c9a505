"""What a host is like, for comparing before and after: files from outside, units from inside."""

from __future__ import annotations

import json
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
    "var/cache/apt",  # its index of packages, written by whoever asks for a version
)
# Unit files that every host has which is in both groups, by their instance `main`.
HARDENED = {
    "llm-arguments@main.service",
    "llm-engine@main.service",
    "llm-environment@main.service",
    "llm-gateway.service",
    "llm-golive@main.service",
    "llm-log@main.service",
    "llm-proof@main.service",
    "llm-pull@main.service",
    "llm-verify@main.service",
    "llm-watch@main.service",
}
UNITS = (
    "llm-engine@main.service", "llm-gateway.service", "llm-gateway.socket", "nginx.service",
)  # fmt: skip


def tree(host: str) -> dict[str, str]:
    """path -> mode, owner, size and time of what the host has written, beside its daily life.

    By find(1): a runtime has tens of thousands of files.
    """
    names: list[str] = []
    for path in ALIVE:
        names += ["-path", f"./{path}", "-o"]
    # Of a directory not its time: every temporary file in it changes that.
    shown = ["-type", "d", "-printf", r"%P\t%m %U %G\n", "-o", "-printf", r"%P\t%m %U %G %s %T@\n"]
    argv = ["find", ".", "(", *names[:-1], ")", "-prune", "-o", *shown]
    output = subprocess.run(
        argv, cwd=upper_of(host), capture_output=True, text=True, check=True
    ).stdout
    found = dict(line.split("\t") for line in output.splitlines())
    found.pop("var/cache", None)  # in the writable layer once anything below it is
    return found


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


def offline_exposures(host: str, units: Mapping[str, str]) -> dict[str, float]:
    """unit -> its figure, as the host's systemd rates these very texts; nothing is installed."""
    script = """
        set -e
        directory=$(mktemp -d /run/rated.XXXXXX)
        cd "$directory"
        python3 -c 'import json, sys, pathlib
for name, text in json.load(sys.stdin).items():
    pathlib.Path(name).write_text(text)'
        systemd-analyze security --offline=true --no-pager "$directory"/*.service 2>said || true
        sed 's/^/said: /' said
        rm -r "$directory"
    """
    named = {name.replace("@.", "@main."): text for name, text in units.items()}
    output = shell(host, script, input_text=json.dumps(named))
    doubts = [line for line in output.splitlines() if re.match(r"said: .*(Unknown|Invalid)", line)]
    assert not doubts, doubts
    found = re.findall(r"Overall exposure level for (\S+): ([\d.]+)", output)
    return {name: float(figure) for name, figure in found}


def places_of(host: str, secret: str) -> list[str]:
    """Where a secret can be read on a host by who must not: the journal, the arguments of
    processes, files that everybody may read. `here` names every file that holds it at all."""
    script = """
        umask 077
        cat > /run/sought
        journalctl --no-pager -o cat | grep -qF -f /run/sought && echo journal
        cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -qF -f /run/sought && echo arguments
        find /etc /srv /var /run /tmp /home /opt /dev/shm -type f -size -4000k \
            -not -path '*/site-packages/*' -not -path /run/sought \\
            -exec grep -lF -f /run/sought {} + |
        while read -r file; do
            find "$file" -perm -004 -printf 'readable %p\\n'
            echo "here $file"
        done
        rm /run/sought
    """
    return shell(host, script, input_text=f"{secret}\n").splitlines()
