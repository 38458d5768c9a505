"""`fleet runtime flags`: the arguments of the vLLMs that are installed on hosts, their whole help
text, and what differs between two of them."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import reading
from pyinfra_deploy.facts_commands import add_choice, chosen
from pyinfra_deploy.planning.flag_difference import difference, form, in_full
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from pyinfra_deploy.settings.fleet import Fleet

    Answers = Mapping[str, Mapping[str, Any]]

DEPLOY = Path(__file__).resolve().parents[1] / "deploys" / "list_flags.py"
TIMEOUT_SECONDS = 600.0
REFUSED = 1
INCOMPLETE = 2


def register(actions: Any) -> None:
    """Add `flags`; `actions` is argparse's object for subcommands, which has no public type."""
    command = actions.add_parser(
        "flags",
        help="arguments of the installed vLLMs, and what differs between two",
        epilog="exit code: 0 done, 1 nothing of that name, 2 some hosts could not be read",
    )
    command.add_argument(
        "inventory", help="prod, inventories/prod.py or inventories/prod/hosts.yml"
    )
    add_choice(command)
    command.add_argument(
        "--of", metavar="VERSION", help="only this vLLM version, or runtime by its name"
    )
    command.add_argument(
        "--diff", nargs=2, metavar=("A", "B"), help="what differs from version or runtime A to B"
    )
    command.add_argument(
        "--into", type=Path, metavar="DIR",
        help="write DIR/RUNTIME.help.txt and DIR/RUNTIME.flags.json: the help as vLLM prints it",
    )  # fmt: skip
    command.set_defaults(run=_flags)


def _flags(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    named = chosen(fleet, arguments.limit, arguments.exclude)
    hosts = [host for host in named if "gpu" in fleet.hosts[host].groups]
    answers, printed = ask(fleet, hosts, with_help=arguments.into is not None)
    missed = [host for host in hosts if "runtimes" not in answers.get(host, {})]
    for host in missed:
        for line in answers.get(host, {}).get("refused") or ["not reached"]:
            print(f"NOT read: {host}: {line}", file=sys.stderr)
    if any(host not in answers for host in missed):
        for line in printed.splitlines()[-20:]:
            print(f"  | {line}", file=sys.stderr)
    runtimes = merged(answers)
    if arguments.diff:
        keys = [key for host in hosts for key in fleet.hosts[host].settings.engine.args]
        first, second = arguments.diff
        code = _show_difference(runtimes, first, second, dict.fromkeys(keys))
    else:
        code = _show(runtimes, arguments.of, arguments.into)
    return INCOMPLETE if missed and not code else code


def ask(
    fleet: Fleet, hosts: Sequence[str], *, with_help: bool
) -> tuple[dict[str, dict[str, Any]], str]:
    """{host: its answer} of the hosts that were reached, and what pyinfra said."""
    if not hosts:
        return {}, ""
    with tempfile.TemporaryDirectory(prefix="fleet-flags-") as name:
        data = {"flags_directory": name} | ({"flags_help": "yes"} if with_help else {})
        command = reading.command_line(fleet, hosts, DEPLOY, data)
        printed = reading.run(command, fleet.root, TIMEOUT_SECONDS)
        found = sorted(Path(name).glob("*.json"))
        return {path.stem: json.loads(path.read_text()) for path in found}, printed


def merged(answers: Answers) -> dict[str, dict[str, Any]]:
    """Runtime -> {version, flags, help, hosts, problem}: a runtime of one name is the same on every
    host, since its name holds the digest of its lock."""
    found: dict[str, dict[str, Any]] = {}
    for host, answer in answers.items():
        for entry in answer.get("runtimes", []):
            known = found.setdefault(entry["name"], {**entry, "hosts": []})
            known["hosts"].append(host)
            known["help"] = known["help"] or entry["help"]
            if not known["flags"] and entry["flags"]:
                known |= {"flags": entry["flags"], "version": entry["version"], "problem": ""}
    return found


def named(runtimes: Mapping[str, dict[str, Any]], word: str) -> str | None:
    """The runtime that is meant by a name or a version (0.32.0 is 0.32.0+cpu too)."""
    if word in runtimes:
        return word
    for name, entry in runtimes.items():
        version = str(entry["version"] or "")
        if word in (version, version.split("+", 1)[0]) and entry["flags"]:
            return name
    return None


def _show_difference(
    runtimes: Mapping[str, dict[str, Any]], first: str, second: str, keys: Iterable[str]
) -> int:
    names = [named(runtimes, word) for word in (first, second)]
    for word, name in zip((first, second), names, strict=True):
        if name is None:
            return _nothing(runtimes, word)
    before, after = (runtimes[name]["flags"] for name in names if name is not None)
    found = difference(before, after, keys)
    for line in in_full(found, after):
        print(line)
    if found.is_empty:
        print(f"{names[0]} and {names[1]} take the same arguments with the same defaults")
    return 0


def _show(runtimes: Mapping[str, dict[str, Any]], word: str | None, into: Path | None) -> int:
    wanted = list(runtimes)
    if word is not None:
        name = named(runtimes, word)
        if name is None:
            return _nothing(runtimes, word)
        wanted = [name]
    for name in wanted:
        entry = runtimes[name]
        print(f"{name}: vLLM {entry['version'] or 'unknown'} on {', '.join(entry['hosts'])}")
        if entry["problem"]:
            print(f"  {entry['problem']}")
        if into is not None:
            _write(into, name, entry)
        elif word is not None:
            for flag, found in entry["flags"].items():
                late = " (on its way out)" if found["deprecated"] else ""
                print(f"  {flag}: {form(found)}, default {found['default']}{late}")
        else:
            print(f"  {len(entry['flags'])} arguments; all of them: --of {name}")
    return 0


def _write(into: Path, name: str, entry: Mapping[str, Any]) -> None:
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"{name}.flags.json"
    path.write_text(json.dumps(entry["flags"], indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"  {path}: {len(entry['flags'])} arguments")
    if entry["help"]:
        path = into / f"{name}.help.txt"
        path.write_text(entry["help"], encoding="utf-8")
        print(f"  {path}: {entry['help'].count(chr(10))} lines")
    else:
        print("  no help text yet: it is kept with the first release that goes live with it")


def _nothing(runtimes: Mapping[str, dict[str, Any]], word: str) -> int:
    have = ", ".join(f"{name} ({entry['version']})" for name, entry in runtimes.items())
    print(f"{word} is no runtime of these hosts; they have {have or 'none'}", file=sys.stderr)
    return REFUSED
