"""YAML files as Ansible reads them, with the line of every key kept for error messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from pyinfra_deploy.settings.problems import Problem, SettingsError
from pyinfra_deploy.settings.vault import HEADER, decrypt, vault_secret
from pyinfra_deploy.settings.yaml_aliases import (
    MOST_LEVELS,
    TOO_DEEP,
    has_aliases,
    wrong_aliases,
)
from pyinfra_deploy.settings.yaml_errors import NO_SUCH_VALUE, explain

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

# libyaml parses ten times faster than the pure Python parser; both give the same nodes.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, eq=False)
class Document:
    """One file: its value, and where in it each key stands."""

    path: Path
    shown: str
    value: Any
    encrypted: bool
    root_node: yaml.Node | None

    def line(self, keys: Sequence[object]) -> int | None:
        """The 1-based line of the key (or list item) at `keys`, else of its nearest parent."""
        node, line = self.root_node, None
        for key in keys:
            node, found = _step(node, key)
            if found is None:
                break
            line = found
        return line


@dataclass(frozen=True)
class Reader:
    """Reads files of one repository; `root` is what shown paths and ansible.cfg are relative to."""

    root: Path

    def shown(self, path: Path) -> str:
        absolute = path.absolute()
        if absolute.is_relative_to(self.root):
            return str(absolute.relative_to(self.root))
        return str(absolute)

    def read(self, path: Path) -> Document:
        """Parse one file. Raises SettingsError with file, line, what and the fix."""
        shown = self.shown(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise _error(
                shown, None, f"is not UTF-8 text (byte {error.start}).", "save it as UTF-8."
            ) from error
        except OSError as error:
            raise _error(
                shown, None, f"cannot be read: {error.strerror}.", "check that it is readable."
            ) from error
        encrypted = text.startswith(HEADER)
        if encrypted:
            text = decrypt(text, self.root, shown)
        return self._parse(path, shown, text, encrypted)

    def _parse(self, path: Path, shown: str, text: str, encrypted: bool) -> Document:
        is_json, value = _as_json(text)
        # In JSON a tab can only be space between tokens, where YAML does not allow it.
        loader = _Loader(text.expandtabs(1) if is_json else text, self.root, shown)
        try:
            if has_aliases(text) and not is_json and (wrong := wrong_aliases(text, _Base)):
                raise _error(shown, *wrong)
            node = loader.get_single_node()
            if node is not None:
                _refuse_bad_keys(node, shown, set())
                if not is_json:
                    value = loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            line, message, fix = explain(error, text)
            raise _error(shown, line, message, fix) from error
        except yaml.YAMLError as error:
            raise _error(
                shown, None, f"is not YAML: {error}", "remove the characters it complains about."
            ) from error
        except RecursionError as error:
            # Of PyYAML's own parser; libyaml has a limit, and names the line.
            raise _error(shown, None, *TOO_DEEP) from error
        finally:
            loader.dispose()
        return Document(path, shown, value, encrypted, node)


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader plus Ansible's two tags."""

    def __init__(self, text: str, root: Path, shown: str) -> None:
        super().__init__(text)
        self.repository = root
        self.shown = shown

    def vault(self, node: yaml.Node) -> Any:
        return vault_secret(
            str(self.construct_scalar(node)),
            self.repository,
            self.shown,
            node.start_mark.line + 1,
        )

    def unsafe(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return self.construct_sequence(node, deep=True)
        return self.construct_scalar(node)

    def checked(self, node: yaml.ScalarNode) -> Any:
        """What looks like a date or number by its tag and is none: PyYAML raises without a line."""
        kind = node.tag.rsplit(":", 1)[-1]
        try:
            return getattr(yaml.SafeLoader, f"construct_yaml_{kind}")(self, node)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"{NO_SUCH_VALUE[kind]} ({error})", node.start_mark
            ) from error


for _kind in NO_SUCH_VALUE:
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.checked)
_Loader.add_constructor("!vault", _Loader.vault)
_Loader.add_constructor("!vault-encrypted", _Loader.vault)
_Loader.add_constructor("!unsafe", _Loader.unsafe)


def _as_json(text: str) -> tuple[bool, Any]:
    # Ansible tries JSON first, whatever the file's name: 1e5 is a number there, text in YAML.
    if not text.lstrip().startswith(("{", "[")):
        return False, None
    try:
        return True, json.loads(text)
    except (ValueError, RecursionError):
        return False, None


def _refuse_bad_keys(node: yaml.Node, shown: str, seen: set[int], level: int = 0) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if level > MOST_LEVELS:
        raise _error(shown, node.start_mark.line + 1, *TOO_DEEP)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_bad_keys(item, shown, seen, level + 1)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[Hashable, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise _error(
                shown,
                line,
                "a mapping or list stands where a key or plain text is expected.",
                "text that begins with { or {{ has to be quoted: \"{{ lookup('env', 'NAME') }}\".",
            )
        name = (key.tag, key.value)
        if name in lines and key.tag != "tag:yaml.org,2002:merge":
            raise _error(
                shown,
                line,
                f"the key {key.value} is here a second time (first on line {lines[name]}): "
                "the later one would silently win.",
                "remove one of the two, or merge them.",
            )
        lines[name] = line
        _refuse_bad_keys(value, shown, seen, level + 1)


def _step(node: yaml.Node | None, key: object) -> tuple[yaml.Node | None, int | None]:
    if isinstance(node, yaml.MappingNode):
        # The last wins: merged pairs (<<) come before the mapping's own.
        for key_node, value_node in reversed(node.value):
            if key_node.value == str(key):
                return value_node, key_node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        item = node.value[key]
        return item, item.start_mark.line + 1
    return None, None


def _error(shown: str, line: int | None, message: str, fix: str) -> SettingsError:
    return SettingsError([Problem(shown, line, "", None, None, message, fix)])
