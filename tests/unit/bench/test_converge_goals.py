"""What the bench beside Ansible takes for a run without a change, and for a goal that is missed."""

from __future__ import annotations

import json

import pytest

from tests.bench.converge import Timings, is_without_change, missed

RECAP = """
PLAY RECAP *********************
gpu111 : ok=23   changed={one}    unreachable=0    failed=0
gpu112 : ok=23   changed={two}    unreachable=0    failed=0
"""


def operation(**results: list[str]) -> dict[str, object]:
    return {"name": "Nothing to change", "success": [], "error": [], "no_change": [], **results}


@pytest.mark.parametrize(
    ("results", "unchanged"),
    [
        ([operation(no_change=["gpu111"])], True),
        ([operation(no_change=["gpu111"]), operation(success=["gpu112"])], False),
        ([operation(error=["gpu112"])], False),
        ([], False),  # nothing was compared
    ],
)
def test_pyinfras_results_tell_what_changed(results: list[object], unchanged: bool) -> None:
    stdout = json.dumps({"results": {"operations": results}})
    assert is_without_change("pyinfra", stdout) is unchanged


@pytest.mark.parametrize("stdout", ["", "changed=0", "Traceback"])
def test_without_results_nothing_is_known(stdout: str) -> None:
    assert not is_without_change("pyinfra", stdout)


@pytest.mark.parametrize(
    ("one", "two", "unchanged"), [(0, 0, True), (0, 3, False), (10, 0, False), (1, 1, False)]
)
def test_ansibles_recap_tells_what_changed_on_any_host(one: int, two: int, unchanged: bool) -> None:
    assert is_without_change("ansible", RECAP.format(one=one, two=two)) is unchanged


def test_ansible_without_a_recap_is_not_unchanged() -> None:
    assert not is_without_change("ansible", "ERROR! no hosts matched")


@pytest.mark.parametrize(
    ("one", "six", "ten", "ansible", "words"),
    [
        (2.0, 3.0, 4.0, 15.0, []),
        (2.0, 3.0, 4.0, 14.9, ["5 times faster than Ansible at 6 hosts: 5.0"]),
        (2.0, 3.0, 4.1, 15.0, ["10 hosts in 2 times the time of one: 2.05"]),
        (1.0, 3.0, 9.0, 3.0, ["5 times faster", "10 hosts in"]),
    ],
)
def test_goals(one: float, six: float, ten: float, ansible: float, words: list[str]) -> None:
    walls = {
        ("pyinfra", 1): one,
        ("pyinfra", 6): six,
        ("pyinfra", 10): ten,
        ("ansible", 6): ansible,
    }
    found = {key: Timings([wall, wall, 99.0], [1.0]) for key, wall in walls.items()}
    said = missed(found)
    assert [word in line for word, line in zip(words, said, strict=True)] == [True] * len(words)
