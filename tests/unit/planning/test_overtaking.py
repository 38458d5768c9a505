"""A host that served something else until now is taken, but not silently."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning import host_plan
from tests.unit.planning import worlds


def said(change: dict[str, Any], settings_change: dict[str, Any] | None = None) -> list[str]:
    settings = worlds.settings_with(settings_change)
    artefacts = worlds.artefacts_with(settings)
    snapshot = worlds.merged(worlds.converged(settings, artefacts), change)
    plan = host_plan.plan_host("gpu01", worlds.ALL, settings, snapshot, artefacts)
    assert not plan.refused
    return [str(found) for found in plan.findings if found.id == "host.overtaken"]


def test_another_ca_or_name_is_told_by_what_was_served() -> None:
    (ca,) = said({"gateway": {"certificate": {"issuer": "theirs LLM CA 9f"}}})
    assert "served llm.example.com with a certificate of CA theirs LLM CA 9f until now" in ca
    assert f"from now on llm.example.com with one of CA {worlds.CA_SUBJECT}" in ca
    (name,) = said({"gateway": {"certificate": {"sans": ["other.example.com"]}}})
    assert "served other.example.com with a certificate of CA" in name


def test_another_model_is_told() -> None:
    settings = worlds.settings_with()
    release = worlds.release_of(settings, worlds.artefacts_with(settings))
    theirs = {"engines": {"main": {"releases": {release: {"served_model_name": "org/theirs"}}}}}
    (model,) = said(theirs)
    assert "served the model org/theirs until now; from now on Qwen/Qwen3-32B" in model


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"gateway": {"certificate": {"=": None}}},
        {"gateway": {"certificate": {"=": {"error": "cannot be read"}}}},
        {"engines": {"main": {"releases": {"=": {}}}}},
    ],
)
def test_a_host_of_ours_or_of_nobody_is_not(change: dict[str, Any]) -> None:
    assert said(change) == []


def test_a_certificate_of_the_operators_own_is_theirs_to_change() -> None:
    files = {"source": "files", "certificate": "/c.pem", "key": "/k.pem"}
    change = {"gateway": {"certificate": {"issuer": "theirs"}}}
    assert said(change, {"gateway": {"tls": files}}) == []
