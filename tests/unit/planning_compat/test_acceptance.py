"""accept_findings: who, why, until when; and what is said of those that accept nothing."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pyinfra_deploy.planning.acceptance import accept
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.settings.schema import AcceptedFinding
from tests.unit.planning_compat.hosts import ids

TODAY = datetime.date(2027, 1, 15)


def finding(identifier: str = "gpu.pcie-width", severity: Any = "refuse") -> Finding:
    return Finding(identifier, severity, "gpu01", "GPU 2", "its link has 4 lanes", "reseat it")


def accepted(**changes: Any) -> AcceptedFinding:
    values = {
        "id": "gpu.pcie-width",
        "reason": "slot 3 is repaired in January",
        "until": datetime.date(2027, 1, 31),
        "by": "Ada Lovelace",
    }
    return AcceptedFinding(**{**values, **changes})


def test_an_accepted_refusal_is_a_warning_that_tells_why() -> None:
    (changed,) = accept("gpu01", [finding()], [accepted()], TODAY)
    assert changed.severity == "warn"
    assert changed.id == "gpu.pcie-width"
    assert "its link has 4 lanes" in changed.message
    for said in ("Ada Lovelace", "2027-01-31", "slot 3 is repaired in January"):
        assert said in changed.message


@pytest.mark.parametrize(
    ("hosts", "applies"),
    [((), True), (("gpu01",), True), (("gpu0?",), True), (("gpu*",), True), (("gpu02",), False)],
)
def test_hosts(hosts: tuple[str, ...], applies: bool) -> None:
    (first, *rest) = accept("gpu01", [finding()], [accepted(hosts=hosts)], TODAY)
    assert first.severity == ("warn" if applies else "refuse")
    assert rest == []


@pytest.mark.parametrize(
    ("until", "refused"),
    [("2027-01-16", False), ("2027-01-15", False), ("2027-01-14", True), ("2020-01-01", True)],
)
def test_until_its_last_day(until: str, refused: bool) -> None:
    day = datetime.date.fromisoformat(until)
    found = accept("gpu01", [finding()], [accepted(until=day)], TODAY)
    assert ids(found, "refuse") == (["gpu.pcie-width"] if refused else [])
    assert ("acceptance.expired" in ids(found, "warn")) == refused
    if refused:
        assert "refuses again" in found[1].message
        assert until in found[1].evidence


def test_expired_and_not_there_is_only_untidy() -> None:
    (expired,) = accept("gpu01", [], [accepted(until=datetime.date(2026, 1, 1))], TODAY)
    assert expired.id == "acceptance.expired"
    assert "remove it" in expired.fix


def test_an_unknown_id_accepts_nothing_and_is_told_the_near_one() -> None:
    found = accept("gpu01", [finding()], [accepted(id="gpu.pcie-widht")], TODAY)
    assert ids(found) == ["gpu.pcie-width", "acceptance.unknown"]
    assert found[0].severity == "refuse"
    assert "gpu.pcie-width" in found[1].fix


def test_what_cannot_be_accepted() -> None:
    found = accept("gpu01", [finding("gpu.hang")], [accepted(id="gpu.hang")], TODAY)
    assert ids(found, "refuse") == ["gpu.hang"]
    assert ids(found, "warn") == ["acceptance.not-possible"]


def test_an_acceptance_that_is_not_needed_is_a_note() -> None:
    found = accept("gpu01", [finding(severity="warn")], [accepted()], TODAY)
    assert ids(found, "note") == ["acceptance.unused"]
    assert found[0] == finding(severity="warn")


def test_warnings_and_notes_stay_as_they_are() -> None:
    others = [finding("gpu.power-cap", "note"), finding("gpu.persistence-off", "warn")]
    assert accept("gpu01", others, [], TODAY) == tuple(others)


def test_two_acceptances_of_one_id() -> None:
    """An old one that ran out does not undo a new one."""
    old = accepted(until=datetime.date(2026, 12, 31))
    found = accept("gpu01", [finding()], [accepted(), old], TODAY)
    assert ids(found, "refuse") == []
    assert "acceptance.expired" in ids(found, "warn")
    assert ids(accept("gpu01", [finding()], [old, accepted()], TODAY), "refuse") == []
