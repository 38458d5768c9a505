"""What is different between two locks of a model, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.planning.model_files import CONFIG, INDEX, code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra_deploy.planning.model_lock import LockedFile, ModelLock

_NAMED = 20
_FIELDS = (
    ("model", "model"),
    ("hub", "hub"),
    ("endpoint", "endpoint"),
    ("revision", "revision"),
    ("commit", "commit"),
    ("license", "licence"),
)


def changes(old: ModelLock, new: ModelLock) -> list[str]:
    """One line a change, what decides first; empty when nothing differs."""
    lines = [
        f"{word}: {_shown(before)} -> {_shown(after)}"
        for field, word in _FIELDS
        if (before := getattr(old, field)) != (after := getattr(new, field))
    ]
    for word, before, after in (
        ("accepted", old.accepts, new.accepts),
        ("left out", old.left_out, new.left_out),
    ):
        if set(before) != set(after):
            lines.append(f"{word}: {_listed(before)} -> {_listed(after)}")
    return lines + _of_files(old, new)


def _of_files(old: ModelLock, new: ModelLock) -> list[str]:
    if old.digest == new.digest:
        return []
    before = {file.path: file for file in old.files}
    after = {file.path: file for file in new.files}
    added = sorted(set(after) - set(before))
    gone = sorted(set(before) - set(after))
    other = sorted(path for path in set(before) & set(after) if before[path] != after[path])
    moved = {path: twin for path in added if (twin := _twin(after[path], before, gone))}
    lines = [f"{new_name} was {old_name}, unchanged" for new_name, old_name in moved.items()]
    lines += [
        f"{path} changed, {_size_change(before[path], after[path])}{_what_it_is(path)}"
        for path in other
    ]
    lines += [
        f"{path} is new, {size_words(after[path].size_bytes)}{_what_it_is(path)}"
        for path in added
        if path not in moved
    ]
    lines += [f"{path} is gone" for path in gone if path not in moved.values()]
    hidden = len(lines) - _NAMED
    if hidden > 0:
        lines = [*lines[:_NAMED], f"and {hidden} files more"]
    to_pull = sum(after[path].size_bytes for path in (*added, *other) if path not in moved)
    difference = new.total_bytes - old.total_bytes
    change = f"{size_words(abs(difference))} {'more' if difference > 0 else 'less'}"
    lines.append(
        f"in all {len(new.files)} files, {size_words(new.total_bytes)}"
        f"{f' ({change})' if difference else ''}; {size_words(to_pull)} are other than before"
    )
    return lines


def _twin(file: LockedFile, before: dict[str, LockedFile], gone: Sequence[str]) -> str | None:
    """The same content under a name that is gone: renamed."""
    return next((path for path in gone if before[path].sha256 == file.sha256), None)


def _what_it_is(path: str) -> str:
    if path == CONFIG:
        return ": what the model is; plan again"
    if path == INDEX:
        return ": which tensor is in which shard"
    if path.startswith("tokenizer") or path in ("vocab.json", "merges.txt"):
        return ": how text becomes tokens"
    if path.startswith("chat_template"):
        return ": how a chat becomes a prompt"
    return ": code that the engine would run" if code([path]) else ""


def _size_change(before: LockedFile, after: LockedFile) -> str:
    if before.size_bytes == after.size_bytes:
        return f"of the same size ({size_words(after.size_bytes)})"
    return f"{size_words(before.size_bytes)} -> {size_words(after.size_bytes)}"


def size_words(size_bytes: int) -> str:
    for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.2f} {name}"
    return f"{size_bytes} bytes"


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) or "nothing"
