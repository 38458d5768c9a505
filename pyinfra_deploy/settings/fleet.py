"""The hosts of an inventory with their checked settings: what everything else begins with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings import doubts
from pyinfra_deploy.settings.acceptance_doubts import acceptance_doubts
from pyinfra_deploy.settings.checkout import refuse_other_checkout
from pyinfra_deploy.settings.connection import Connection, map_connection
from pyinfra_deploy.settings.connection_doubts import (
    connection_doubts,
    shared_addresses,
    shared_storage_addresses,
)
from pyinfra_deploy.settings.contradictions import contradictions
from pyinfra_deploy.settings.inventory_file import Inventory, Located, read_inventory
from pyinfra_deploy.settings.mutual_tls import differing_ports
from pyinfra_deploy.settings.problems import Problem, SettingsError, gather
from pyinfra_deploy.settings.remote_engines import engines_without_gateway, gateway_problems
from pyinfra_deploy.settings.validation import OURS, Outcome, problem_at, validate
from pyinfra_deploy.settings.variables import Merged, VarsFiles, merge
from pyinfra_deploy.settings.vault import configuration
from pyinfra_deploy.settings.yaml_source import Reader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyinfra_deploy.settings.schema import Settings


@dataclass(frozen=True)
class FleetHost:
    """groups: as Ansible's group_names, without `all`. variables: merged, as they are written,
    vault values as Secret. connection: pyinfra host data, passwords possibly as Secret."""

    name: str
    groups: frozenset[str]
    variables: dict[str, Any]
    settings: Settings
    connection: dict[str, Any]
    is_local: bool = False
    ssh_config: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fleet:
    """directory: inventories/NAME, where the inventory's keys and CA lie. root: the repository.
    groups: every group, `all` too, to its hosts' names, in the order of the file.
    missing: what this machine lacks to connect; for planning without a connection it is not needed.
    """

    name: str
    directory: Path
    root: Path
    hosts: dict[str, FleetHost]
    groups: dict[str, list[str]]
    warnings: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)


def load_fleet(inventory: Path | str, root: Path | None = None) -> Fleet:
    """Read and check an inventory: `inventories/lab.py`, `inventories/lab/hosts.yml` or `lab`.

    Raises SettingsError with everything that is wrong with any file or host.
    """
    name, hosts_file, root = locate(inventory, root)
    refuse_other_checkout(root)
    reader = Reader(root)
    _refuse_merging(root)
    read = read_inventory(reader.read(hosts_file))
    files = VarsFiles(reader)
    merged = merge(read, files)
    if files.problems:
        raise SettingsError(files.problems)
    warnings = list(files.warnings)
    warnings += doubts.weak_inventory_group(read, name)
    warnings += doubts.roles(read)
    warnings += doubts.unused_files(read, files, _inventory_names(root))
    problems = [*_membership(read, name), *shared_storage_addresses(merged)]
    missing: list[Problem] = []
    hosts = _check_hosts(read, merged, root, problems, warnings, missing)
    problems += differing_ports(hosts)
    if problems:
        raise SettingsError(problems)
    groups = {group: read.members(group) for group in read.groups}
    fleet = Fleet(name, hosts_file.parent, root, hosts, groups, [], missing)
    if wrong := gather(gateway_problems(fleet)):
        raise SettingsError(wrong)
    return replace(fleet, warnings=list(gather([*warnings, *engines_without_gateway(fleet)])))


def refuse_missing(fleet: Fleet) -> None:
    """Before a connection. Raises SettingsError with what this machine lacks for one."""
    if fleet.missing:
        raise SettingsError(fleet.missing)


def locate(inventory: Path | str, root: Path | None = None) -> tuple[str, Path, Path]:
    """(inventory's name, its hosts file, the repository's root). Raises SettingsError."""
    given = Path(inventory)
    if given.suffix in (".yml", ".yaml", ".json"):
        hosts_file = given.absolute()
        name = hosts_file.parent.name
    elif given.suffix == ".py" or len(given.parts) > 1:
        hosts_file = given.absolute().with_suffix("") / "hosts.yml"
        name = given.stem
    else:
        name = str(inventory)
        base = root or Path.cwd()
        hosts_file = base.absolute() / "inventories" / name / "hosts.yml"
    base = root.absolute() if root else _root_of(hosts_file)
    if not hosts_file.exists():
        raise SettingsError([_no_hosts(name, hosts_file, base)])
    return name, hosts_file, base


def _root_of(hosts_file: Path) -> Path:
    if hosts_file.parent.parent.name == "inventories":
        return hosts_file.parent.parent.parent
    for directory in hosts_file.parents:
        if (directory / "ansible.cfg").exists():
            return directory
    return Path.cwd()


def _no_hosts(name: str, hosts_file: Path, root: Path) -> Problem:
    shown = Reader(root).shown(hosts_file)
    if name == "lab":
        message = "there is no lab yet: this file is written when it is made."
        return Problem(shown, None, "", None, None, message, "run `make lab`.")
    names = ", ".join(_inventory_names(root)) or "none"
    return Problem(
        shown,
        None,
        "",
        None,
        None,
        f'there is no inventory "{name}": this file does not exist.',
        f"inventories here: {names}. For a new one copy inventories/prod/hosts.yml and "
        f"inventories/prod.py.",
    )


def _inventory_names(root: Path) -> list[str]:
    directory = root / "inventories"
    if not directory.is_dir():
        return []
    return sorted(entry.stem for entry in directory.iterdir() if entry.suffix == ".py")


def _refuse_merging(root: Path) -> None:
    configured = configuration(root).get("defaults", "hash_behaviour", fallback="replace")
    if os.environ.get("ANSIBLE_HASH_BEHAVIOUR", configured) != "replace":
        raise SettingsError(
            [
                Problem(
                    "ansible.cfg",
                    None,
                    "hash_behaviour",
                    None,
                    None,
                    "Ansible would merge mappings, where these settings follow its default "
                    "(replace): the two would read different values from the same files.",
                    "remove hash_behaviour (or unset ANSIBLE_HASH_BEHAVIOUR).",
                )
            ]
        )


def _membership(inventory: Inventory, name: str) -> Iterator[Problem]:
    shown = inventory.document.shown
    if not inventory.hosts:
        yield Problem(shown, None, "", None, None, "has no hosts.", "add one under gpu: hosts:")
    own = set(inventory.members(name)) if name in inventory.groups else set()
    for host in inventory.hosts:
        if host not in own:
            yield Problem(
                shown,
                None,
                name,
                host,
                None,
                f'is not in the group "{name}", so group_vars/{name}.yml does not apply to it.',
                f"list it under {name}: hosts: too.",
            )


def _check_hosts(
    inventory: Inventory,
    merged: dict[str, Merged],
    root: Path,
    problems: list[Problem],
    warnings: list[Problem],
    missing: list[Problem],
) -> dict[str, FleetHost]:
    """Hosts that share their values' places (nearly all do) are validated once."""
    known: dict[Any, Outcome] = {}
    hosts = {}
    local: list[str] = []
    remote: list[tuple[str, dict[str, Any], tuple[str, ...], Merged]] = []
    for host, groups in inventory.groups_of_host().items():
        names = frozenset(group.name for group in groups)
        one = merged[host]
        ours = {name: one.variables[name] for name in OURS if name in one.variables}
        key = (
            tuple((n, tuple(map(id, one.history[n]))) for n in ours),
            frozenset(names & {"gpu", "gateway"}),
            tuple(problem.key_path for problem in doubts.nearly_ours(one)),
        )
        if key not in known:
            known[key] = _judge(ours, one, names, root, inventory.hosts)
        outcome = known[key]
        connection = map_connection(one.variables, root)
        problems += _named(host, [*outcome.problems, *connection.problems])
        warnings += _named(host, [*outcome.warnings, *connection.warnings])
        warnings += _named(host, doubts.nearly_ours(one))
        warnings += _named(host, connection_doubts(one))
        if connection.is_local:
            local.append(host)
        else:
            missing += _named(host, connection.missing)
            remote.append((host, connection.data, tuple(connection.ssh_config), one))
        if outcome.settings is not None:
            hosts[host] = _host(host, names, one, outcome.settings, connection)
    warnings += shared_addresses(remote)
    if len(local) > 1:
        problems.append(_two_locals(inventory, local))
    return hosts


def _judge(
    ours: dict[str, Located],
    merged: Merged,
    groups: frozenset[str],
    root: Path,
    hosts: Collection[str],
) -> Outcome:
    outcome = validate(ours)
    # An explicit null is not a section either.
    present = {name for name, located in ours.items() if located.value is not None}
    for keys, message, fix in contradictions(outcome.sound, present, groups, root):
        hint = "" if keys[0] in present else doubts.nearly_this(merged, keys[0])
        outcome.problems.append(problem_at(ours, keys, message, hint + fix))
    if outcome.problems or outcome.settings is None:
        outcome.settings = None
        return outcome
    outcome.warnings += doubts.about_settings(ours, outcome.settings)
    outcome.warnings += doubts.dropped_keys(merged, outcome.settings)
    outcome.warnings += acceptance_doubts(ours, outcome.settings, hosts)
    return outcome


def _host(
    name: str, groups: frozenset[str], merged: Merged, settings: Settings, connection: Connection
) -> FleetHost:
    return FleetHost(
        name=name,
        groups=groups,
        variables={key: located.value for key, located in merged.variables.items()},
        settings=settings,
        connection=connection.data,
        is_local=connection.is_local,
        ssh_config=tuple(connection.ssh_config),
    )


def _named(host: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    for problem in problems:
        yield replace(problem, host=host)


def _two_locals(inventory: Inventory, hosts: list[str]) -> Problem:
    return Problem(
        inventory.document.shown,
        None,
        "ansible_connection",
        None,
        None,
        f"{', '.join(hosts)} all have ansible_connection: local, and pyinfra knows one local host.",
        "keep one of them.",
    )


def hosts_sharing(fleet: Fleet, host: FleetHost) -> int:
    """How many gpu hosts, with this one, have its model's lock and get the model from each
    other; 0 where it does not."""
    lock = _shared_lock(host)
    if lock is None:
        return 0
    return sum(1 for other in fleet.hosts.values() if _shared_lock(other) == lock)


def _shared_lock(host: FleetHost) -> str | None:
    model = host.settings.model
    return model.lock if model and model.fan_out.enabled and "gpu" in host.groups else None
