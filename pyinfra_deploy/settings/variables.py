"""Every host's variables, merged from the inventory, group_vars and host_vars as Ansible does.

The order is ansible-core's VARIABLE_PRECEDENCE (docs.ansible.com, "Understanding variable
precedence", 3 to 10), from weak to strong; a stronger level replaces a whole variable:

  1. the inventory file's variables of `all`, then of the host's other groups
  2. group_vars/all: beside the inventory, then at the repository's root
  3. group_vars of the other groups: beside the inventory, then at the root
  4. the host: the inventory file, host_vars beside it, host_vars at the root

Groups go from shallow to deep; at one depth by ansible_group_priority, then by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyinfra_deploy.settings.inventory_file import Inventory, Located, Variables
from pyinfra_deploy.settings.problems import Problem, SettingsError, describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyinfra_deploy.settings.yaml_source import Reader

EXTENSIONS = ("", ".yml", ".yaml", ".json")


@dataclass(eq=False)
class Merged:
    """variables: what counts; history: every level that set a name, weakest first."""

    variables: Variables
    history: dict[str, list[Located]]


@dataclass(eq=False)
class VarsFiles:
    """Reads and remembers the files for a name under the group_vars or host_vars directories."""

    reader: Reader
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    _listings: dict[Path, frozenset[str]] = field(default_factory=dict)
    _read: dict[tuple[Path, str], Variables] = field(default_factory=dict)

    def variables(self, directory: Path, name: str) -> Variables:
        key = (directory, name)
        if key not in self._read:
            self._read[key] = self._load(directory, name)
        return self._read[key]

    def names(self, directory: Path) -> frozenset[str]:
        """What lies in a directory; empty where there is none."""
        if directory not in self._listings:
            try:
                self._listings[directory] = frozenset(entry.name for entry in directory.iterdir())
            except FileNotFoundError:
                self._listings[directory] = frozenset()
            except OSError as error:
                self._listings[directory] = frozenset()
                self.problems.append(
                    _file_problem(
                        self.reader.shown(directory),
                        f"cannot be listed: {error.strerror}.",
                        "it has to be a readable directory.",
                    )
                )
        return self._listings[directory]

    def _load(self, directory: Path, name: str) -> Variables:
        # A host named like a path (Ansible's chroot connection) has no files.
        if name.startswith("/"):
            return {}
        present = [name + ext for ext in EXTENSIONS if name + ext in self.names(directory)]
        if not present:
            return {}
        chosen, *ignored = present
        for other in ignored:
            self.warnings.append(
                _file_problem(
                    self.reader.shown(directory / other),
                    f"is not read, by Ansible neither, because {chosen} is beside it.",
                    f"move what is in it into {chosen} and remove it.",
                )
            )
        merged: Variables = {}
        for path in _files(directory / chosen):
            merged.update(self._load_file(path))
        return merged

    def _load_file(self, path: Path) -> Variables:
        try:
            document = self.reader.read(path)
        except SettingsError as error:
            self.problems.extend(error.problems)
            return {}
        if not document.value:
            return {}
        if not isinstance(document.value, dict):
            self.problems.append(
                Problem(
                    document.shown,
                    1,
                    "",
                    None,
                    describe(document.value),
                    "a file of variables is a mapping.",
                    'write lines of the form "name: value".',
                )
            )
            return {}
        return {str(key): Located(v, document, (key,)) for key, v in document.value.items()}


def merge(inventory: Inventory, files: VarsFiles) -> dict[str, Merged]:
    """Every host's variables. Problems with files are left in `files.problems`."""
    beside = inventory.document.path.absolute().parent
    roots = list(dict.fromkeys([beside, files.reader.root]))
    everyone = inventory.groups["all"]

    def of_groups(names: Iterable[str]) -> Iterator[Variables]:
        listed = list(names)
        for root in roots:
            for name in listed:
                yield files.variables(root / "group_vars", name)

    result = {}
    for host, groups in inventory.groups_of_host().items():
        names = [group.name for group in groups]
        layers: list[Variables] = [everyone.variables]
        layers += [group.variables for group in groups]
        layers += of_groups(["all"])
        layers += of_groups(names)
        layers.append(inventory.hosts[host])
        layers += [files.variables(root / "host_vars", host) for root in roots]
        result[host] = _combine(layers)
    return result


def _combine(layers: list[Variables]) -> Merged:
    variables: Variables = {}
    history: dict[str, list[Located]] = {}
    for layer in layers:
        variables.update(layer)
        for name, located in layer.items():
            history.setdefault(name, []).append(located)
    return Merged(variables, history)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = []
    for child in sorted(path.iterdir()):
        name, extension = child.name, child.suffix
        if name.startswith(".") or name.endswith("~"):
            continue
        if child.is_dir():
            found += _files(child) if not extension else []
        elif extension in EXTENSIONS:
            found.append(child)
    return found


def _file_problem(shown: str, message: str, fix: str) -> Problem:
    return Problem(shown, None, "", None, None, message, fix)
