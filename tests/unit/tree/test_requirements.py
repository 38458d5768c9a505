"""The requirements files agree: one is installed in place of another."""

from __future__ import annotations

import re

import pytest

from tests.unit.tree.sources import ROOT

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    return dict(_PIN.findall((ROOT / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["requirements-signing.txt", "requirements-dev.txt"])
def test_they_have_what_the_control_side_has(name: str) -> None:
    base, found = pins("requirements.txt"), pins(name)
    assert len(base) > 20
    assert {key: found.get(key) for key in base} == base


def test_signing_is_tested_as_it_is_installed() -> None:
    signing, dev = pins("requirements-signing.txt"), pins("requirements-dev.txt")
    assert {key: dev.get(key) for key in signing} == signing
    assert "model-signing" not in pins("requirements.txt")
