"""pyinfra's own State and Host without a host: a connector that keeps what it is sent and answers
as a test says. Modelled on pyinfra's @fake connector, which keeps neither stdin nor secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.api import (
    Config,
    FunctionCommand,
    Inventory,
    State,
    StringCommand,
    connectors,
    inventory,
)
from pyinfra.api import host as host_module
from pyinfra.connectors.fake import FakeConnector
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_host, ctx_state

from pyinfra_deploy.operations import gateway_steps, jobs, lease, program

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyinfra.api import Host

ROOT = "/srv/llm"
PROGRAM = f"{ROOT}/bin/fleet-host"


@dataclass(frozen=True)
class Sent:
    """One command as a connector got it, nothing masked."""

    host: str
    command: str
    stdin: str | None
    arguments: dict[str, Any]
    printed: bool

    @property
    def spec(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdin or "{}")
        return document


class Refusal(dict[str, Any]):
    """A document that the host program exits with 1 for."""


def refusal(what: str, why: str = "", fix: str = "", *detail: str) -> Refusal:
    return Refusal(error={"what": what, "why": why, "fix": fix, "detail": list(detail)})


@dataclass
class Script:
    """What hosts answer: (host, command of the host program) -> answers, the last one for ever.

    An answer is a document, an exception to raise, or a list of raw lines of a command that failed.
    """

    answers: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)

    def says(self, command: str, *answers: Any, host: str = "gpu01") -> None:
        self.answers[host, command] = list(answers)

    def answer(self, sent: Sent) -> Any:
        self.sent.append(sent)
        word = sent.command.removeprefix(f"{PROGRAM} ")
        waiting = self.answers.get((sent.host, word), [{}])
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def commands(self, host: str | None = None) -> list[str]:
        return [
            sent.command.removeprefix(f"{PROGRAM} ")
            for sent in self.sent
            if host in (None, sent.host)
        ]


class ScriptedConnector(FakeConnector):
    script: Script

    def run_shell_command(
        self,
        command: str | StringCommand,
        print_output: bool = False,
        print_input: bool = False,
        **arguments: Any,
    ) -> tuple[bool, CommandOutput]:
        raw = command if isinstance(command, str) else command.get_raw_value()
        stdin = arguments.get("_stdin")
        name = self.host.name.removeprefix("@fake/")
        sent = Sent(name, raw, stdin, dict(arguments), print_output or print_input)
        answer = self.script.answer(sent)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, list):
            return False, CommandOutput([OutputLine("stdout", line) for line in answer])
        lines = json.dumps(answer, indent=1).splitlines()
        ok = not isinstance(answer, Refusal)
        return ok, CommandOutput([OutputLine("stdout", line) for line in lines])


@dataclass
class PyinfraWorld:
    """A run of pyinfra over hosts that are not there."""

    state: State
    script: Script
    connects: list[str] = field(default_factory=list)

    def host(self, name: str = "gpu01") -> Host:
        found: Host = self.state.inventory.get_host(f"@fake/{name}")
        return found

    def run(self, operation: Callable[..., Any], host: str = "gpu01", **arguments: Any) -> bool:
        """An operation's commands, as pyinfra executes them: False as soon as one fails."""
        target = self.host(host)
        with ctx_state.use(self.state), ctx_host.use(target):
            for command in operation._inner(**arguments):  # type: ignore[attr-defined]
                if isinstance(command, FunctionCommand):
                    ok = command.execute(self.state, target, {})
                    assert isinstance(ok, bool)
                else:
                    ok, _ = command.execute(self.state, target, command.connector_arguments)
                if not ok:
                    return False
        return True


# pyinfra reads the metadata of every installed package for each host that it makes.
all_connectors = cache(connectors.get_all_connectors)
execution_connectors = cache(connectors.get_execution_connectors)


def make_world(monkeypatch: pytest.MonkeyPatch, *names: str) -> PyinfraWorld:
    """Time does not pass in it: what sleeps moves a clock of its own."""
    monkeypatch.setattr(inventory, "get_all_connectors", all_connectors)
    monkeypatch.setattr(inventory, "get_execution_connectors", execution_connectors)
    monkeypatch.setattr(host_module, "get_execution_connector", execution_connectors().get)
    state = State(Inventory(([f"@fake/{name}" for name in names], {})), Config())
    world = PyinfraWorld(state, Script())
    for host in state.inventory:
        connector = ScriptedConnector(state, host)
        connector.script = world.script
        host.connector = connector
        host.connected = True
        state.activate_host(host)

        def connect(*_arguments: Any, host: Host = host, **_more: Any) -> None:
            world.connects.append(host.name.removeprefix("@fake/"))
            host.connected = True

        monkeypatch.setattr(host, "connect", connect)
    clock = [1000.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    for module in (program, jobs):
        monkeypatch.setattr(module.gevent, "sleep", sleep)
        monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(lease, "_held", {})
    monkeypatch.setattr(gateway_steps, "_former", {})
    return world


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> PyinfraWorld:
    return make_world(monkeypatch, "gpu01", "gpu02", "gpu03")
