"""Asking a host from outside of a deploy: its own program, or this checkout's, lent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import outside_call, packing
from tests.fakes.pyinfra_host import ROOT, refusal

if TYPE_CHECKING:
    from tests.fakes.pyinfra_host import PyinfraWorld


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "host_program", lambda: b"PK")


def ask(world: PyinfraWorld) -> dict[str, Any]:
    return outside_call.asked(world.state, world.host(), "rollout status", {"engine": "main"}, ROOT)


def test_its_own_program_answers(world: PyinfraWorld) -> None:
    world.script.says("rollout status", {"live": False})
    assert ask(world) == {"answer": {"live": False}}
    assert len(world.script.sent) == 1


@pytest.mark.parametrize(
    "first",
    [
        refusal("fleet-host: bad usage", "'rollout status' is not a command."),
        BrokenPipeError(32, "Broken pipe"),
    ],
)
def test_an_older_one_or_none_is_lent_this_checkouts_which_does_not_stay(
    world: PyinfraWorld, first: Any
) -> None:
    world.script.says("rollout status", first)
    assert ask(world) == {"answer": {}}
    _, lent = world.script.sent
    assert "head -c" in lent.command
    assert "mv -f" not in lent.command
    assert lent.stdin is not None
    assert lent.stdin.endswith('{"engine": "main"}')


def test_a_refusal_is_what_the_host_said(world: PyinfraWorld) -> None:
    world.script.says("rollout status", refusal("no", "because", "do", "line"))
    assert ask(world) == {
        "refused": {"what": "no", "why": "because", "fix": "do", "detail": ["line"]}
    }
    assert len(world.script.sent) == 1


def test_a_lost_host_is_told_so(world: PyinfraWorld) -> None:
    world.host().connected = False
    world.script.says("rollout status", EOFError())
    assert "lost" in ask(world)
