"""Given settings and a snapshot, exactly these reasons: each case is a document in cases/*.yml.

    name of the case:
      start: converged           # or untouched
      groups: [gpu]              # both, where left out
      settings: {...}            # merged into the settings of worlds.py
      snapshot: {...}            # merged into the start's snapshot; {"=": x} replaces
      artefacts: {...}           # what the control machine brings along
      reasons: [...]             # what will change, in words and in order
      refused: {id: part of its text}     # instead of reasons
      warned: {id: part of its text}      # all warnings; not compared where left out

$release, $runtime, $client, $gateway, $uv stand for the names that the start's settings yield,
$new_release, $new_runtime, ... for those of the case's settings.
"""

from __future__ import annotations

import json
from functools import cache
from string import Template
from typing import Any

import pytest
import yaml

from pyinfra_deploy.planning import host_plan
from tests.unit.planning import worlds


def cases() -> list[Any]:
    found = []
    for path in worlds.CASES:
        documents = yaml.safe_load(path.read_text())
        found += [pytest.param(case, id=f"{path.stem}: {name}") for name, case in documents.items()]
    return found


@cache
def starts() -> tuple[dict[str, Any], dict[str, str]]:
    """The snapshots that cases begin with, and the names that the start's settings yield."""
    settings = worlds.settings_with()
    artefacts = worlds.artefacts_with(settings)
    found = {"converged": worlds.converged(settings, artefacts), "untouched": worlds.untouched()}
    return found, names(settings, artefacts)


def names(settings: Any, artefacts: Any, prefix: str = "") -> dict[str, str]:
    made = worlds.environments(settings, artefacts)
    known = {f"{prefix}{what}": environment.name for what, environment in made.items()}
    return known | {f"{prefix}release": worlds.release_of(settings, artefacts)}


@pytest.mark.parametrize("case", cases())
def test_case(case: dict[str, Any]) -> None:
    assert set(case) <= {"start", "groups", "settings", "snapshot", "artefacts", "reasons",
                         "refused", "warned", "changes", "serving", "leaves_full",
                         "verified_at_go_live"}  # fmt: skip
    snapshots, before = starts()
    settings = worlds.settings_with(case.get("settings"))
    artefacts = worlds.artefacts_with(settings, **case.get("artefacts", {}))
    known = before
    if {"settings", "artefacts"} & set(case):
        known = before | names(settings, artefacts, "new_")
    text = Template(json.dumps(case.get("snapshot", {}))).substitute(known)
    snapshot = worlds.merged(snapshots[case["start"]], json.loads(text))
    groups = frozenset({*case.get("groups", ("gpu", "gateway")), "prod"})
    plan = host_plan.plan_host(worlds.HOST, groups, settings, snapshot, artefacts)

    refused = {finding.id: str(finding) for finding in plan.refused}
    assert list(refused) == list(case.get("refused", {}))
    for identity, said in case.get("refused", {}).items():
        assert said in refused[identity]
    if "warned" in case:
        warned = {found.id: str(found) for found in plan.findings if found.severity == "warn"}
        assert list(warned) == list(case["warned"])
        for identity, said in case["warned"].items():
            assert said in warned[identity]
    expected = [Template(reason).substitute(known) for reason in case.get("reasons", [])]
    assert plan.reasons() == expected
    assert plan.changes is bool(expected)
    said = {
        "serving": plan.serving,
        "verified_at_go_live": plan.verified_at_go_live,
        "leaves_full": plan.gateway_leaves_full,
    }
    for name, value in said.items():
        if name in case:
            assert value is case[name]


def test_the_same_input_gives_the_same_plan() -> None:
    settings = worlds.settings_with()
    artefacts = worlds.artefacts_with(settings)
    first, second = (
        host_plan.plan_host(worlds.HOST, worlds.ALL, settings, worlds.untouched(), artefacts)
        for _ in range(2)
    )
    assert first == second
