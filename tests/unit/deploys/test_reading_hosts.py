"""What a host is asked before it is planned: conda only where the settings name one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyinfra_deploy.deploys import session
from pyinfra_deploy.operations import host_steps
from tests.unit.planning import worlds

HOST = cast("Any", object())
CONDA = {"runtime": {"kind": "conda", "conda": {"prefix": "/opt/conda", "lock": "locks/conda.txt"}}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = []

    def terms(host: Any, request: dict[str, Any]) -> dict[str, Any]:
        requests.append(request)
        return {"terms": {}}

    monkeypatch.setattr(session, "read_snapshot", lambda host, request: {"os": {}})
    monkeypatch.setattr(session, "read_conda_terms", terms)
    return requests


def read(change: dict[str, Any], groups: frozenset[str] = worlds.ALL) -> dict[str, Any]:
    settings = worlds.settings_with(change)
    return session.read_host(HOST, settings, groups, worlds.artefacts_with(settings))


def test_a_host_with_conda_is_asked_for_its_terms(asked: list[dict[str, Any]]) -> None:
    assert read(CONDA) == {"os": {}, "conda": {"terms": {}}}
    assert [request["user"] for request in asked] == ["llm-build"]


def test_others_are_not(asked: list[dict[str, Any]]) -> None:
    assert read({}) == {"os": {}}
    assert read(CONDA, frozenset({"gateway", "prod"})) == {"os": {}}
    assert asked == []


def test_a_host_that_could_not_be_read_is_not_asked_more(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "read_snapshot", lambda host, request: {})
    assert read(CONDA) == {}
    assert asked == []


def test_a_prompt_that_nobody_answers_is_told_and_costs_that_host_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    dropped: list[Any] = []
    monkeypatch.setattr(session, "report_refusal", lambda host, step, no: told.append(no.what))
    monkeypatch.setattr(host_steps, "drop", dropped.append)

    def prompt() -> dict[str, Any]:
        raise EOFError

    assert session.unless_sudo_asks(HOST, prompt) == {}
    assert told == ["sudo asks for a password"]
    assert dropped == [HOST]
    assert session.unless_sudo_asks(HOST, lambda: {"os": 1}) == {"os": 1}
