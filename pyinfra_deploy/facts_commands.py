"""`fleet facts collect`: the raw outputs of all hosts, to plan from without touching them again."""

from __future__ import annotations

import fnmatch
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import reading
from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.settings.fleet import load_fleet
from pyinfra_deploy.settings.problems import Problem, SettingsError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.settings.fleet import Fleet

DEPLOY = Path(__file__).resolve().parent / "deploys" / "collect_facts.py"
# A hundred hosts take half a minute; a connection that hangs (pyinfra #1224) must not hang this.
TIMEOUT_SECONDS = 600.0
INCOMPLETE = 2
_SHOWN_LINES = 40
_INVENTORY = "prod, inventories/prod.py or inventories/prod/hosts.yml"
_SUFFIXES = ("", ".exit", ".stderr")


def register(commands: Any) -> None:
    """Add `facts`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("facts", help="read what hosts are, without changing them")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    collect = actions.add_parser(
        "collect", help="write each host's raw outputs into DIR/HOST, secrets and serials masked"
    )
    collect.add_argument(
        "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
    )
    collect.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    add_choice(collect)
    collect.add_argument(
        "--mask-uuids", action="store_true", help="also mask UUIDs; plans cannot name GPUs then"
    )
    collect.set_defaults(run=_collect)


def _collect(arguments: argparse.Namespace) -> int:
    """Exit code: 0 every host was read, 2 some were not."""
    fleet = load_fleet(arguments.inventory)
    hosts = chosen(fleet, arguments.limit, arguments.exclude)
    output = arguments.output.absolute()
    missed, printed = collect(fleet, hosts, output, mask_uuids=arguments.mask_uuids)
    for host in hosts:
        if host not in missed:
            print(report(assemble(host, raw.read_directory(output / host)), output / host))
    if missed:
        for line in printed.splitlines()[-_SHOWN_LINES:]:
            print(f"  | {line}", file=sys.stderr)
        print(f"NOT read: {', '.join(missed)}", file=sys.stderr)
        stale = [host for host in missed if (output / host).exists()]
        if stale:
            print(f"What {output} has of them is older: {', '.join(stale)}", file=sys.stderr)
        return INCOMPLETE
    return 0


def collect(
    fleet: Fleet, hosts: Sequence[str], output: Path, *, mask_uuids: bool = False
) -> tuple[list[str], str]:
    """Write DIR/HOST of each host. Returns the hosts that were not read, and what pyinfra said."""
    prepare(output, hosts)
    incoming = Path(tempfile.mkdtemp(prefix=".collecting-", dir=output))
    try:
        printed = _run(command(fleet, hosts, incoming, mask_uuids), fleet.root)
        missed = [host for host in hosts if not take(incoming / host, output / host)]
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return missed, printed


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The options that pyinfra has, too, for `chosen`."""
    for option, what in (("--limit", "only these"), ("--exclude", "all but these")):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="HOSTS",
            help=f"{what}: hosts or groups, with commas",
        )


def chosen(fleet: Fleet, limits: Sequence[str], excludes: Sequence[str] = ()) -> list[str]:
    """The hosts that `limits` name, all without one, but for those that `excludes` name. Raises
    SettingsError for a pattern that names none, and where no host is left."""
    limited = _named(fleet, "--limit", limits) or set(fleet.hosts)
    excluded = _named(fleet, "--exclude", excludes)
    hosts = [host for host in fleet.hosts if host in limited - excluded]
    if not hosts:
        raise _problem(
            f"--exclude {','.join(excludes)}", "leaves no host.", "exclude fewer, or limit to more."
        )
    return hosts


def _named(fleet: Fleet, option: str, given: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for pattern in (part for one in given for part in one.split(",") if part):
        names = fleet.groups.get(pattern) or fnmatch.filter(fleet.hosts, pattern)
        if not names:
            raise _problem(
                f"{option} {pattern}",
                f"matches no group and no host of {fleet.name}.",
                f"groups: {', '.join(fleet.groups)}; hosts: {', '.join(list(fleet.hosts)[:10])}",
            )
        found.update(names)
    return found


def prepare(output: Path, hosts: Iterable[str]) -> None:
    """Make DIR for its owner alone; refuse one whose content is not of this command."""
    ours = {
        f"{name}{suffix}"
        for name in (*raw.NAMES, *raw.INSTEAD_OF_XML, raw.SNAPSHOT)
        for suffix in _SUFFIXES
    }
    try:
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
        for host in hosts:
            if "/" in host or host.startswith("."):
                raise _problem(f"host {host}", "its name is no name of a directory.", "rename it.")
            directory = output / host
            strange = sorted({entry.name for entry in directory.iterdir()} - ours
                             if directory.exists() else ())  # fmt: skip
            if strange:
                raise _problem(
                    f"-o {output}",
                    f"{directory} has a file that is not of `fleet facts collect`: {strange[0]}.",
                    "give another directory, or move the file; the others would be replaced.",
                )
    except OSError as error:
        raise _problem(
            f"-o {output}", f"cannot be used: {error}", "give a directory that you may write to."
        ) from error


def _problem(file: str, message: str, fix: str) -> SettingsError:
    return SettingsError([Problem(file, None, "", None, None, message, fix)])


def command(fleet: Fleet, hosts: Sequence[str], incoming: Path, mask_uuids: bool) -> list[str]:
    """The command line, run in the repository's root."""
    data = {"facts_directory": str(incoming)} | ({"facts_mask_uuids": "yes"} if mask_uuids else {})
    return reading.command_line(fleet, hosts, DEPLOY, data)


def _run(arguments: list[str], root: Path) -> str:
    return reading.run(arguments, root, TIMEOUT_SECONDS)


def take(new: Path, place: Path) -> bool:
    """Put a host's new directory in the place of an older one; False when there is no new one."""
    if not new.is_dir():
        return False
    if place.exists():
        place.rename(new.with_name(f".old-{new.name}"))
    new.rename(place)
    return True


def report(hardware: Hardware, directory: Path) -> str:
    """One host for the operator: what it is, then what could not be read."""
    lines = [f"{hardware.host}: {_gpus(hardware)}; in {directory}"]
    lines += [f"    not read: {name}: {why}" for name, why in hardware.unread]
    return "\n".join(lines)


def _gpus(hardware: Hardware) -> str:
    counts: dict[str, int] = {}
    for gpu in hardware.gpus:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    parts = [f"{count}x {name}" for name, count in counts.items()] or ["no GPU"]
    if hardware.driver_version:
        parts.append(f"driver {hardware.driver_version}")
    if hardware.failure:
        parts.append(f"nvidia-smi failed ({hardware.failure.kind}): {hardware.failure.text}")
    return ", ".join(parts)
