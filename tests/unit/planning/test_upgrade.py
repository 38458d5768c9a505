"""A plan for another vLLM than the one that serves says what differs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pyinfra_deploy.planning.upgrade import upgrade_findings

if TYPE_CHECKING:
    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.settings.schema import Settings


def found(present: Any, wanted: str, **args: Any) -> list[Finding]:
    settings = SimpleNamespace(
        engine=SimpleNamespace(name="main", args=args), runtime=SimpleNamespace(vllm=wanted)
    )
    release = {"vllm": present} if present is not None else None
    engines = {"main": {"current": "r1", "releases": {"r1": release}}}
    return list(upgrade_findings("gpu01", cast("Settings", settings), {"engines": engines}))


@pytest.mark.parametrize("present", [None, 5, "nonsense", "0.32.0", "0.32.0+cpu"])
def test_nothing_to_say_of_the_same_vllm_or_of_none(present: Any) -> None:
    assert found(present, "0.32.0") == []


def test_an_upgrade_between_versions_of_the_table() -> None:
    (note,) = found("0.28.0", "0.32.0", **{"max-model-len": 5, "disable-cascade-attn": True})
    assert (note.id, note.severity) == ("compat.vllm-changes", "note")
    assert note.message.startswith("upgrade: vLLM 0.28.0 to 0.32.0: 33 new arguments, 1 gone")
    assert note.evidence == "in engine.args: disable-cascade-attn is on its way out: deprecated"
    (note,) = found("0.32.0", "0.28.0")
    assert note.message.startswith("downgrade: vLLM 0.32.0 to 0.28.0: 1 new argument, 33 gone")
    assert note.evidence == "in engine.args: nothing of it"


def test_versions_that_were_not_read_are_said_to_be_so() -> None:
    (note,) = found("0.29.0", "0.34.0")
    assert "the arguments of 0.29.0 and 0.34.0 were not read" in note.message


def test_a_host_that_was_never_deployed() -> None:
    settings = SimpleNamespace(
        engine=SimpleNamespace(name="main", args={}), runtime=SimpleNamespace(vllm="0.32.0")
    )
    bare: list[Any] = [None, {}, {"engines": {}}, {"engines": {"main": {"current": None}}}]
    for snapshot in bare:
        assert list(upgrade_findings("gpu01", cast("Settings", settings), snapshot)) == []
