"""An Ansible inventory file in YAML: its groups, hosts and the variables written in it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings.host_patterns import expand
from pyinfra_deploy.settings.problems import Problem, SettingsError, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.settings.yaml_source import Document

_SECTIONS = ("hosts", "vars", "children")


@dataclass(frozen=True, eq=False, slots=True)
class Located:
    """A variable's value, and where it is written."""

    value: Any
    document: Document
    keys: tuple[object, ...]

    def line(self, *below: object) -> int | None:
        return self.document.line((*self.keys, *below))

    def place(self) -> str:
        line = self.line()
        return self.document.shown if line is None else f"{self.document.shown}:{line}"


Variables = dict[str, Located]


@dataclass(eq=False)
class Group:
    name: str
    priority: int = 1
    depth: int = 0
    variables: Variables = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Inventory:
    """groups always has `all` and `ungrouped`; hosts are in the order of the file."""

    document: Document
    groups: dict[str, Group] = field(default_factory=dict)
    hosts: dict[str, Variables] = field(default_factory=dict)

    def members(self, group: str) -> list[str]:
        """All hosts of a group and its descendants, level by level, as Ansible lists them."""
        names: dict[str, None] = {}
        level, seen = [group], {group}
        while level:
            following = []
            for name in level:
                names.update(dict.fromkeys(self.groups[name].hosts))
                following += [c for c in self.groups[name].children if c not in seen]
                seen.update(self.groups[name].children)
            level = list(dict.fromkeys(following))
        return list(names)

    def groups_of_host(self) -> dict[str, list[Group]]:
        """Each host's groups but `all`, from the least to the most specific.

        Order of ansible-core, inventory/helpers.py sort_groups: depth, priority, name.
        """
        result: dict[str, list[Group]] = {host: [] for host in self.hosts}
        ordered = sorted(self.groups.values(), key=lambda g: (g.depth, g.priority, g.name))
        for group in ordered:
            if group.name != "all":
                for host in self.members(group.name):
                    result[host].append(group)
        return result


def read_inventory(document: Document) -> Inventory:
    """Raises SettingsError with everything that is wrong with the file."""
    inventory = Inventory(document)
    for name in ("all", "ungrouped"):
        inventory.groups[name] = Group(name)
    problems: list[Problem] = []
    if not isinstance(document.value, dict) or not document.value:
        found = describe(document.value)
        raise SettingsError(
            [_problem(document, (), found, "an inventory is a mapping of groups.", _EXAMPLE)]
        )
    if "plugin" in document.value and not isinstance(document.value["plugin"], dict):
        raise SettingsError(
            [
                _problem(
                    document,
                    ("plugin",),
                    None,
                    "is the configuration of an inventory plugin; hosts are read from YAML files "
                    "only.",
                    "write what it finds: ansible-inventory -i FILE --list --yaml --export",
                )
            ]
        )
    for name, body in document.value.items():
        problems += _read_group(inventory, name, body, (name,))
    _reconcile(inventory)
    problems += _measure_depths(inventory)
    if problems:
        raise SettingsError(problems)
    return inventory


_EXAMPLE = (
    "begin it with\n    all:\n      children:\n        gpu:\n          hosts:\n            gpu01:"
)


def _read_group(
    inventory: Inventory, name: object, body: object, keys: tuple[object, ...]
) -> Iterator[Problem]:
    document = inventory.document
    if not isinstance(name, str) or not name:
        yield _problem(
            document, keys, describe(name), "a group's name is text.", "put it in quotes."
        )
        return
    group = inventory.groups.setdefault(name, Group(name))
    if body is None:
        return
    if not isinstance(body, dict):
        yield _problem(
            document,
            keys,
            describe(body),
            "a group is a mapping with hosts, vars and children.",
            f"write\n    {name}:\n      hosts:\n        gpu01:",
        )
        return
    for section, content in body.items():
        here = (*keys, section)
        if section not in _SECTIONS:
            close = difflib.get_close_matches(str(section), _SECTIONS, 1)
            yield _problem(
                document,
                here,
                None,
                f'a group has only hosts, vars and children; Ansible would skip "{section}".',
                f'did you mean "{close[0]}"?' if close else _move(section),
            )
            continue
        # Ansible allows "hosts: gpu01" for a single one.
        entries = {content: None} if isinstance(content, str) else content
        if entries is None:
            continue
        if not isinstance(entries, dict):
            yield _problem(
                document,
                here,
                describe(content),
                f"{section} is a mapping: each name with a colon behind it, no dash before it.",
                f"write\n    {section}:\n      NAME:",
            )
        elif section == "vars":
            yield from _read_group_variables(document, group, entries, here)
        elif section == "children":
            for child, child_body in entries.items():
                yield from _read_group(inventory, child, child_body, (*here, child))
                if isinstance(child, str) and child and child not in group.children:
                    group.children.append(child)
                    inventory.groups[child].parents.append(group.name)
        else:
            for pattern, variables in entries.items():
                yield from _read_hosts(inventory, group, pattern, variables, (*here, pattern))


def _move(section: object) -> str:
    return f'put it under vars if it is a variable, under children if "{section}" is a group.'


def _read_group_variables(
    document: Document, group: Group, entries: dict[Any, Any], here: tuple[object, ...]
) -> Iterator[Problem]:
    for key, value in entries.items():
        if key != "ansible_group_priority":
            group.variables[str(key)] = Located(value, document, (*here, key))
            continue
        try:
            group.priority = int(value)
        except (TypeError, ValueError):
            yield _problem(
                document, (*here, key), describe(value), "is a whole number.", "write 10."
            )


def _read_hosts(
    inventory: Inventory, group: Group, pattern: object, variables: Any, here: tuple[object, ...]
) -> Iterator[Problem]:
    document = inventory.document
    if not isinstance(pattern, str):
        yield _problem(
            document, here, describe(pattern), "a host's name is text.", "put it in quotes."
        )
        return
    if variables is not None and not isinstance(variables, dict):
        yield _problem(
            document,
            here,
            describe(variables),
            "a host's variables are a mapping.",
            f"write\n    {pattern}:\n      ansible_host: 10.0.0.11",
        )
        return
    try:
        names, port = expand(pattern)
    except ValueError as error:
        yield _problem(document, here, None, f"{error}.", "write a name such as gpu01.")
        return
    for name in names:
        target = inventory.hosts.setdefault(name, {})
        if name not in group.hosts:
            group.hosts.append(name)
        if port is not None:
            target["ansible_port"] = Located(port, document, here)
        for key, value in (variables or {}).items():
            target[str(key)] = Located(value, document, (*here, key))


def _reconcile(inventory: Inventory) -> None:
    """What ansible-core does when a file is read: roots under `all`, lone hosts ungrouped."""
    groups = inventory.groups
    everyone, lone = groups["all"], groups["ungrouped"]
    for group in groups.values():
        if group is not everyone and not group.parents:
            group.parents.append("all")
            everyone.children.append(group.name)
    grouped = {
        host
        for group in groups.values()
        if group.name not in ("all", "ungrouped")
        for host in group.hosts
    }
    lone.hosts = [host for host in lone.hosts if host not in grouped]
    lone.hosts += [h for h in inventory.hosts if h not in grouped and h not in lone.hosts]


def _measure_depths(inventory: Inventory) -> Iterator[Problem]:
    """A group's depth is its longest way down from `all`."""
    groups = inventory.groups
    waiting = {group.name: len(group.parents) for group in groups.values()}
    ready = [name for name, count in waiting.items() if count == 0]
    while ready:
        parent = groups[ready.pop()]
        for name in parent.children:
            groups[name].depth = max(groups[name].depth, parent.depth + 1)
            waiting[name] -= 1
            if waiting[name] == 0:
                ready.append(name)
    looping = [name for name, count in waiting.items() if count > 0]
    if looping:
        yield _problem(
            inventory.document,
            (),
            None,
            f"groups contain each other in a circle: {', '.join(sorted(looping))}.",
            "remove one of them from the children of another.",
        )


def _problem(
    document: Document, keys: tuple[object, ...], found: str | None, message: str, fix: str
) -> Problem:
    path = ".".join(str(key) for key in keys)
    return Problem(document.shown, document.line(keys), path, None, found, message, fix)
