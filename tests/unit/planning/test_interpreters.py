"""Which Python an environment gets, and the refusal where there is none for it."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning import host_plan
from pyinfra_deploy.planning.interpreter import interpreter_findings, with_python
from tests.unit.planning import worlds

HEADER = "# Resolved from vllm==0.33.0 with --python-version 3.12\n"


def system(version: str, *pythons: str) -> dict[str, Any]:
    paths = [f"/usr/bin/python{one}" for one in pythons]
    return {"os": {"id": "debian", "version_id": version, "pythons": paths}}


def chosen(lock: str, snapshot: dict[str, Any], **runtime: Any) -> str | None:
    settings = worlds.settings_with({"runtime": {"python": None, **runtime}})
    found = with_python(settings, lock, "", snapshot).runtime
    assert found is not None
    return found.python


@pytest.mark.parametrize(
    ("lock", "snapshot", "runtime", "python"),
    [
        # The lock's own, whatever the host has: its wheels are built for that one.
        (HEADER + worlds.LOCK, system("12", "3.11"), {}, "3.12"),
        # What is written.
        (worlds.LOCK, system("12", "3.11"), {"python": "3.10"}, "3.10"),
        # Of a lock that does not say: the distribution's own, where vLLM supports it.
        (worlds.LOCK, system("12"), {}, "3.11"),
        (worlds.LOCK, system("12", "3.11", "3.13"), {}, "3.11"),
        (worlds.LOCK, system("13", "3.13"), {}, "3.13"),
        # vLLM 0.8.5 needs Python below 3.13, Debian 13 has 3.13: another one that is there.
        (worlds.LOCK, system("13", "3.13", "3.9", "3.12"), {"vllm": "0.8.5"}, "3.12"),
        (worlds.LOCK, system("13", "3.13"), {"vllm": "0.8.5"}, None),
    ],
)
def test_choice(
    lock: str, snapshot: dict[str, Any], runtime: dict[str, Any], python: str | None
) -> None:
    assert chosen(lock, snapshot, **runtime) == python


def test_a_host_with_none_that_vllm_supports_is_refused_with_the_reason() -> None:
    settings = worlds.settings_with({"runtime": {"python": None, "vllm": "0.8.5"}})
    found = interpreter_findings("gpu01", settings, system("13", "3.13"))
    assert [finding.id for finding in found] == ["runtime.no-interpreter"]
    assert "vLLM 0.8.5 needs Python" in found[0].message
    assert "debian 13 has 3.13" in found[0].evidence
    assert "runtime.kind: conda" in found[0].fix


def test_a_host_without_the_locks_python_is_refused_with_the_lock() -> None:
    settings = worlds.settings_with({"runtime": {"python": None}})
    artefacts = worlds.artefacts_with(settings, runtime_lock=HEADER + worlds.LOCK)
    plan = host_plan.plan_host("gpu01", worlds.ALL, settings, worlds.untouched(), artefacts)
    (finding,) = plan.refused
    assert finding.id == "runtime.no-interpreter"
    assert str(settings.runtime and settings.runtime.lock) in finding.message
    assert 'runtime.python: "3.11"' in finding.fix


def test_the_chosen_python_makes_the_runtime() -> None:
    settings = worlds.settings_with({"runtime": {"python": None}})
    artefacts = worlds.artefacts_with(settings)
    plan = host_plan.plan_host("gpu01", worlds.ALL, settings, worlds.untouched(), artefacts)
    assert plan.runtime is not None
    assert plan.runtime.job["python"] == "/usr/bin/python3.11"
    # The same as if it had been written.
    written = worlds.settings_with({"runtime": {"python": "3.11"}})
    same = host_plan.plan_host("gpu01", worlds.ALL, written, worlds.untouched(), artefacts)
    assert same.runtime == plan.runtime
