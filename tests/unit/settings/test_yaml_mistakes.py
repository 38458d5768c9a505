"""A slip in YAML: file, line, what it is and what to write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from pyinfra_deploy.settings import yaml_source
from pyinfra_deploy.settings.problems import SettingsError
from pyinfra_deploy.settings.yaml_source import Reader

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)

# text, line, what, fix
MISTAKES = {
    "tab": ("engine:\n\tname: main\n", 2, "a tab", "spaces"),
    "tab after spaces": ("engine:\n  args:\n  \t  a: 1\n", 3, "a tab", "spaces"),
    "tab in list": ("a:\n  - 1\n\t- 2\n", 3, "a tab", "spaces"),
    "duplicate": ("a: 1\nb: 2\na: 3\n", 3, "second time (first on line 1)", "remove one"),
    "duplicate below": ("a:\n  b: 1\n  c: 1\n  b: 2\n", 4, "key b is here a second", "remove"),
    "no colon": ("engine:\n  name main\n  args: {}\n", 2, "no colon after the key", "write"),
    "no colon before children": ("all\n  hosts:\n    a:\n", 1, "no colon after", '"all: ..."'),
    "no space": ("engine:\n  name:main\n  args: {}\n", 2, "no space after the colon", "space"),
    "bad indent less": ("a:\n    b: 1\n  c: 2\n", 3, "indentation of this line", "align"),
    "bad indent more": ("a:\n  b: 1\n    c: 2\n", 3, "child of line 2", "align"),
    "two colons": ("a: b: c\n", 1, 'a second ": "', "quotes"),
    "open quote": ('a: "b\nc: 1\n', None, "is not valid YAML", ""),
    "open bracket": ("a: [1, 2\nb: 3\n", 2, "", ""),
    "template": ("a: {{ b }}\n", 1, "where a key or plain text", "quoted"),
    "percent": ("a: %b\n", 1, "cannot begin like this", "quotes"),
    "at": ("a: @b\n", 1, "cannot begin like this", "quotes"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "second document", "one document"),
    "unknown tag": ("a: !secret x\n", 1, "!secret", "!vault"),
    "no such month": ("a:\n  - id: x\n    until: 2027-13-31\n", 3, "no such day", "2027-02-28"),
    "no such day": ("until: 2027-02-29\n", 1, "no such day", "calendar"),
    "no such time": ("a: 1\nb: 2027-02-28 25:00:00\n", 2, "no such day or time", "quotes"),
    "no number": ("a: 0x_\n", 1, "no number", "quotes"),
    "deep": ("a:\n  " + "[" * 120 + "]" * 120 + "\n", 2, "more than 100 levels", "flatter"),
    "deeper": ("a:\n  " + "[" * 1200 + "]" * 1200 + "\n", None, "more than 100 levels", "flatter"),
    "deep JSON": ("[" * 1200 + "]" * 1200, None, "more than 100 levels", "flatter"),
    "alias in itself": ("engine: &e\n  args:\n    x: *e\n", 3, "*e stands inside", "value itself"),
    "list in itself": ("a: &l\n  - 1\n  - [*l]\n", 3, "*l stands inside", "value itself"),
    "merged into itself": ("a: &a\n  <<: *a\n", 2, "*a stands inside", "value itself"),
    # Ten values, a hundred, ... : it is the fifth line that goes beyond.
    "aliases of aliases": (_BOMB, 5, "more than 100,000 values", "aliases of aliases"),
    "deep by aliases": (
        "a: &a " + "[" * 60 + "]" * 60 + "\nb: &b " + "[" * 60 + "*a" + "]" * 60 + "\n",
        2,
        "more than 100 levels",
        "flatter",
    ),
    "unknown anchor": ("a: *b\n", 1, "is not valid YAML", ""),
}


@pytest.mark.parametrize("base", [yaml_source._Base, yaml.SafeLoader], ids=["libyaml", "python"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(
    empty: Repository, monkeypatch: pytest.MonkeyPatch, name: str, base: type
) -> None:
    text, line, what, fix = MISTAKES[name]
    if base is yaml.SafeLoader:
        body = {k: v for k, v in vars(yaml_source._Loader).items() if k != "__dict__"}
        monkeypatch.setattr(yaml_source, "_Loader", type("_Loader", (base,), body))
        monkeypatch.setattr(yaml_source._Loader, "__init__", _python_init)
    path = empty.write("group_vars/all.yml", text)
    with pytest.raises(SettingsError) as caught:
        Reader(empty.root).read(path)
    (problem,) = caught.value.problems
    assert problem.file == "group_vars/all.yml"
    assert line is None or problem.line == line, problem
    assert what in problem.message, problem
    assert fix in problem.fix, problem


def _python_init(self: yaml_source._Loader, text: str, root: object, shown: str) -> None:
    yaml.SafeLoader.__init__(self, text)
    self.shown = shown


def test_the_value_is_not_repeated(empty: Repository) -> None:
    path = empty.write("x.yml", "a: 1\n  password: hunter2\n")
    with pytest.raises(SettingsError) as caught:
        Reader(empty.root).read(path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"a: \xff\n", "is not UTF-8"), (b"a: \x00\n", "is not YAML")],
)
def test_not_text(empty: Repository, content: bytes, what: str) -> None:
    path = empty.root / "x.yml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=what):
        Reader(empty.root).read(path)


def test_a_directory_is_not_a_file(empty: Repository) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        Reader(empty.root).read(empty.root)


def test_lines_of_keys_items_and_merged_keys(empty: Repository) -> None:
    text = "base: &b\n  x: 1\na:\n  <<: *b\n  list:\n    - 1\n    - k: v\n  'quoted': 2\n5: five\n"
    document = Reader(empty.root).read(empty.write("x.yml", text))
    assert document.line(("a", "list", 1, "k")) == 7
    assert document.line(("a", "x")) == 2
    assert document.line(("a", "quoted")) == 8
    assert document.line((5,)) == 9
    assert document.line(("a", "missing", "deeper")) == 3
    assert document.line(()) is None
    assert document.line(("none",)) is None


def test_json_has_lines_too(empty: Repository) -> None:
    text = json.dumps({"a": {"b": [1, 2]}, "c": "1e5"}, indent="\t")
    document = Reader(empty.root).read(empty.write("x.json", text))
    assert document.value == {"a": {"b": [1, 2]}, "c": "1e5"}
    assert document.line(("a", "b", 1)) == 5


def test_byte_order_mark_and_empty(empty: Repository) -> None:
    reader = Reader(empty.root)
    assert reader.read(empty.write("x.yml", "\ufeffa: 1\n")).value == {"a": 1}
    assert reader.read(empty.write("y.yml", "# nothing\n")).value is None


def test_aliases_within_reason_are_read(empty: Repository) -> None:
    text = "base: &b {x: [1, 2], again: &c y}\nhosts:\n" + "".join(
        f"  h{n}: {{<<: *b, z: *c}}\n" for n in range(1_000)
    )
    value = Reader(empty.root).read(empty.write("x.yml", text)).value
    assert value["hosts"]["h999"] == {"x": [1, 2], "again": "y", "z": "y"}
