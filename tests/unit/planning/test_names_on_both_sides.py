"""The host program stands alone, so it judges the names in a listing by a copy of the rules."""

from __future__ import annotations

import pytest
from fleet_host import listing

from pyinfra_deploy.planning import model_files

NAMES = [
    None, "", "a", "a/b", "a//b", "/a", "a/", "./a", "a/./b", "a/../b", "..", ".", "a\\b", "a\nb",
    "a\x7fb", "a\ud800", "é" * 120, "é" * 121, "x/" * 511 + "xx", "x/" * 512 + "x", ".a", "a b",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_both_sides_say_the_same(name: str | None) -> None:
    assert listing.name_problem(name) == model_files.name_problem(name)


def test_some_pass_and_some_do_not() -> None:
    assert model_files.name_problem("a/b") is None
    assert model_files.name_problem("a/../b") is not None
