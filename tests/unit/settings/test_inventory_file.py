"""Inventory files: what is refused, and names that stand for many."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.settings.host_patterns import expand
from pyinfra_deploy.settings.inventory_file import read_inventory
from pyinfra_deploy.settings.problems import SettingsError
from pyinfra_deploy.settings.yaml_source import Reader

if TYPE_CHECKING:
    from tests.fakes.repository import Repository


@pytest.mark.parametrize(
    ("pattern", "names", "port"),
    [
        ("gpu01", ["gpu01"], None),
        ("gpu[01:03]", ["gpu01", "gpu02", "gpu03"], None),
        ("gpu[9:11]", ["gpu9", "gpu10", "gpu11"], None),
        ("gpu[1:7:3]", ["gpu1", "gpu4", "gpu7"], None),
        ("gpu[:2]", ["gpu0", "gpu1", "gpu2"], None),
        ("r[a:c:2]-[1:2].x", ["ra-1.x", "ra-2.x", "rc-1.x", "rc-2.x"], None),
        ("gpu01:2222", ["gpu01"], 2222),
        ("10.0.0.[1:2]:22", ["10.0.0.1", "10.0.0.2"], 22),
        ("2001:db8::1", ["2001:db8::1"], None),
        ("[2001:db8::1]:22", ["2001:db8::1"], 22),
    ],
)
def test_patterns(pattern: str, names: list[str], port: int | None) -> None:
    assert expand(pattern) == (names, port)


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("gpu 01", "not a host name"),
        ("gpu01/24", "not a host name"),
        ("gpu[1]", "not [begin:end]"),
        ("gpu[1:]", "without an end"),
        ("gpu[01:100]", "differ in length"),
        ("gpu[3:1]", "begin is after its end"),
        ("gpu[a:9]", "not numbers"),
        ("gpu[1:9:0]", "not numbers"),
        ("gpu[1:99999999]", "more than"),
        ("gpu[1:999]x[1:999]", "more than"),
        ("gpu[01:03", "not a host name"),
        ("-gpu01", "begins with a dash"),
        ("grün[01:02]", "write it as DNS has it: xn--grn01-lva"),
        ("gpu" + "x" * 61, "longer than 63"),
        ("gpu..x", "between dots that is empty"),
        (".".join(["x" * 60] * 5), "253 characters"),
        ("gpu01:" + "9" * 5_000, "not a host name"),
    ],
)
def test_wrong_patterns(pattern: str, what: str) -> None:
    with pytest.raises(ValueError, match=re.escape(what)):
        expand(pattern)


@pytest.mark.parametrize(
    ("text", "line", "what", "fix"),
    [
        ("", None, "mapping of groups", "all:"),
        ("- gpu01\n", None, "mapping of groups", "all:"),
        ("plugin: aws_ec2\n", 1, "inventory plugin", "ansible-inventory"),
        ("all:\n  host:\n    a:\n", 2, "only hosts, vars and children", 'did you mean "hosts"'),
        ("all:\n  hosts:\n    - a\n    - b\n", 2, "no dash", "NAME:"),
        ("all:\n  children: [gpu]\n", 2, "children is a mapping", "NAME:"),
        ("all:\n  vars: [1]\n", 2, "vars is a mapping", "NAME:"),
        ("gpu: gpu01\n", 1, "a group is a mapping", "hosts:"),
        ("all:\n  hosts:\n    a: 10.0.0.1\n", 3, "variables are a mapping", "ansible_host"),
        ("all:\n  hosts:\n    7:\n", 3, "a host's name is text", "quotes"),
        ("7: {}\n", 1, "a group's name is text", "quotes"),
        ("all:\n  hosts:\n    'gpu[1': \n", 3, "not a host name", "gpu01"),
        ("a: {children: {b: }}\nb: {children: {a: }}\n", None, "circle: a, b", "remove one"),
        ("g: {vars: {ansible_group_priority: high}}\n", 1, "whole number", "10"),
    ],
)
def test_mistakes(empty: Repository, text: str, line: int | None, what: str, fix: str) -> None:
    path = empty.write("inventories/x/hosts.yml", text)
    with pytest.raises(SettingsError) as caught:
        read_inventory(Reader(empty.root).read(path))
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("inventories/x/hosts.yml", line)
    assert what in problem.message
    assert fix in problem.fix


def test_all_mistakes_at_once(empty: Repository) -> None:
    path = empty.write("h.yml", "all:\n  hots:\n  children: [a]\ngpu: x\n")
    with pytest.raises(SettingsError) as caught:
        read_inventory(Reader(empty.root).read(path))
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4]


def test_members_of_nested_groups(empty: Repository) -> None:
    text = "top: {children: {mid: {children: {low: {hosts: {c: }}}, hosts: b}}}\n"
    read = read_inventory(Reader(empty.root).read(empty.write("h.yml", text)))
    assert read.members("top") == ["b", "c"]
    assert {name: group.depth for name, group in read.groups.items()} == {
        "all": 0,
        "ungrouped": 1,
        "top": 1,
        "mid": 2,
        "low": 3,
    }
