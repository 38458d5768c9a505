"""Warnings: what is allowed, and probably not meant."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings.engine_environment import doubtful_environment
from pyinfra_deploy.settings.problems import Problem
from pyinfra_deploy.settings.validation import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyinfra_deploy.settings.inventory_file import Inventory, Located
    from pyinfra_deploy.settings.schema import Settings
    from pyinfra_deploy.settings.variables import Merged, VarsFiles

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)


def nearly_ours(merged: Merged) -> Iterator[Problem]:
    """Variables outside our namespace pass untouched; one named almost like ours is doubtful."""
    for name, located in merged.variables.items():
        close = _nearest(name)
        if close:
            yield Problem(
                located.document.shown,
                located.line(),
                name,
                None,
                None,
                f'is not a setting and has no effect here; is "{close}" meant?',
                f"rename it to {close}, or leave it if it belongs to a role of yours.",
            )


def nearly_this(merged: Merged, section: str) -> str:
    """Where something is named almost like `section`, which is missing; "" where nothing is."""
    for name, located in merged.variables.items():
        if name not in OURS and difflib.get_close_matches(name, [section], 1, 0.75):
            return f'{located.place()} has "{name}": is "{section}" meant? If not: '
    return ""


def _nearest(name: str) -> str | None:
    if name in OURS or name.startswith("ansible_"):
        return None
    close = difflib.get_close_matches(name.replace("-", "_"), OURS, 1, 0.85)
    return close[0] if close else None


def dropped_keys(merged: Merged, settings: Settings) -> Iterator[Problem]:
    """A mapping of ours replaced by a more specific level that leaves out keys of the broader.

    Ansible replaces a variable as a whole (hash_behaviour = replace). A key whose loss changes
    nothing, since the default is the same, is not worth a word.
    """
    for name in OURS:
        levels = merged.history.get(name, [])
        for broad in levels[:-1]:
            final = levels[-1]
            if final.document is broad.document and final.keys == broad.keys:
                continue
            lost = [
                ".".join(map(str, (name, *keys)))
                for keys, value in _lost(broad.value, final.value)
                if not _unchanged(settings, (name, *keys), value)
            ]
            if lost:
                yield Problem(
                    final.document.shown,
                    final.line(),
                    name,
                    None,
                    None,
                    f"replaces {name} of {broad.place()} as a whole, so these keys set there no "
                    f"longer apply: {', '.join(lost)}.",
                    "repeat here those that should apply (null where a default is meant); "
                    "a more specific level does not add to a broader one.",
                )


def _lost(broad: Any, final: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if not isinstance(broad, dict) or not isinstance(final, dict):
        return
    for key, value in broad.items():
        if key not in final:
            yield (key,), value
        else:
            for keys, inner in _lost(value, final[key]):
                yield (key, *keys), inner


def _unchanged(settings: Settings, keys: Sequence[Any], value: Any) -> bool:
    current: Any = settings.to_json()
    for key in keys:
        if not isinstance(current, dict) or key not in current:
            return False
        current = current[key]
    return bool(current == value)


def about_settings(ours: dict[str, Located], settings: Settings) -> Iterator[Problem]:
    """Doubts about values, with the place they stand at."""
    for name in settings.engine.env:
        if _SECRET_NAME.search(name):
            located = ours["engine"]
            yield Problem(
                located.document.shown,
                located.line("env", name),
                f"engine.env.{name}",
                None,
                None,
                "looks like a secret; engine.env is readable on the host and part of the release.",
                "remove it if it is one.",
            )
    for name, (message, fix) in doubtful_environment(settings.engine.env).items():
        located = ours["engine"]
        line = located.line("env", name)
        path = f"engine.env.{name}"
        yield Problem(located.document.shown, line, path, None, None, message, fix)


def weak_inventory_group(inventory: Inventory, name: str) -> Iterator[Problem]:
    """The group named after the inventory holds its pins, so it has to win over gpu and gateway."""
    own = inventory.groups.get(name)
    if own is None:
        return
    for role in ("gpu", "gateway"):
        group = inventory.groups.get(role)
        if group is None or (group.depth, group.priority, role) < (own.depth, own.priority, name):
            continue
        yield Problem(
            inventory.document.shown,
            None,
            name,
            None,
            None,
            f"group_vars/{name}.yml is weaker than group_vars/{role}.yml here, since {role} "
            + (
                f"lies below {name}."
                if group.depth > own.depth
                else "is as deep, with a higher ansible_group_priority or a later name."
            ),
            f"list the hosts under {name} itself, beside {role}, and give it "
            "vars: {ansible_group_priority: 10}.",
        )


def roles(inventory: Inventory) -> Iterator[Problem]:
    """No gpu group, or one that is nearly called so: its hosts would get nothing at all."""
    names = [n for n in inventory.groups if n not in ("all", "ungrouped")]
    for role in ("gpu", "gateway"):
        if role in inventory.groups:
            continue
        close = difflib.get_close_matches(role, names, 1, 0.75)
        if close or role == "gpu":
            yield Problem(
                inventory.document.shown,
                None,
                "",
                None,
                None,
                f'has no group "{role}", so '
                + ("no host runs an engine." if role == "gpu" else "no host has Nginx."),
                f'did you mean it by the group "{close[0]}"?' if close else "add gpu: hosts: ...",
            )


def unused_files(
    inventory: Inventory, files: VarsFiles, others: Iterable[str]
) -> Iterator[Problem]:
    """group_vars for a group that is not there but nearly: Ansible would never read it."""
    known = set(inventory.groups)
    elsewhere = set(others)
    for root in dict.fromkeys([inventory.document.path.absolute().parent, files.reader.root]):
        directory: Path = root / "group_vars"
        for entry in sorted(files.names(directory)):
            name = re.sub(r"\.(yml|yaml|json)$", "", entry)
            if name in known or name in elsewhere or name.startswith("."):
                continue
            close = difflib.get_close_matches(name, known - {"all", "ungrouped"}, 1, 0.8)
            if close:
                yield Problem(
                    files.reader.shown(directory / entry),
                    None,
                    "",
                    None,
                    None,
                    f'is never read: there is no group "{name}" in {inventory.document.shown}.',
                    f'did you mean the group "{close[0]}"?',
                )
