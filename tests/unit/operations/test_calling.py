"""What is sent to the host program and how its answers, refusals and silences come back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from paramiko import SSHException

from pyinfra_deploy.operations import calling, program
from tests.fakes.pyinfra_host import PROGRAM, ROOT, refusal

if TYPE_CHECKING:
    from tests.fakes.pyinfra_host import PyinfraWorld

SPEC = {"name": "hub-token", "secret": "hunter2"}


def call(world: PyinfraWorld, spec: Any = None, root: str = ROOT, **more: Any) -> dict[str, Any]:
    return program.call(
        world.state, world.host(), "credential write", spec or {}, llm_root=root, **more
    )


def through_outages(world: PyinfraWorld, patience_seconds: float = 60.0) -> dict[str, Any]:
    return program.call_through_outages(
        world.state, world.host(), "job status", SPEC, llm_root=ROOT,
        patience_seconds=patience_seconds,
    )  # fmt: skip


def answer_of(world: PyinfraWorld, command: str = "host facts") -> dict[str, Any] | None:
    return calling.answer_of(world.state, world.host(), "a step", command, SPEC, ROOT)


def test_the_spec_goes_through_stdin_and_nothing_of_it_elsewhere(world: PyinfraWorld) -> None:
    world.script.says("credential write", {"changed": True})
    assert call(world, SPEC) == {"changed": True}
    (sent,) = world.script.sent
    assert sent.command == f"{PROGRAM} credential write"
    assert sent.spec == SPEC
    assert sent.printed is False
    others = {key: value for key, value in sent.arguments.items() if key != "_stdin"}
    assert "hunter2" not in repr(others)
    assert others["_timeout"] == program.CALL_TIMEOUT_SECONDS


def test_a_root_with_a_blank_is_one_word(world: PyinfraWorld) -> None:
    call(world, root="/srv/l m")
    assert world.script.sent[0].command == "'/srv/l m/bin/fleet-host' credential write"


@pytest.mark.parametrize(
    "lines",
    [
        ['{"a": 1}'],
        ["Welcome to gpu01", "", "{not json", '{"a":', " 1}"],
    ],
)
def test_a_greeting_may_come_before_the_answer(lines: list[str]) -> None:
    assert program._document(lines) == {"a": 1}


@pytest.mark.parametrize("lines", [[], ["nothing"], ['{"a": '], ["[1]"]])
def test_what_is_no_document_is_none(lines: list[str]) -> None:
    assert program._document(lines) is None


def test_a_refusal_is_told_with_cause_fix_and_lines(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.script.says("host facts", refusal("it is full", "0 bytes free", "free some", "df: 100%"))
    with caplog.at_level(logging.INFO, logger="pyinfra"):
        assert answer_of(world) is None
    text = caplog.text
    for part in ("gpu01", "a step: it is full", "why: 0 bytes free", "fix: free some", "df: 100%"):
        assert part in text
    assert "hunter2" not in text


def test_an_answer_that_cannot_be_read_says_how_to_run_it_by_hand(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.script.says("host facts", ["bash: fleet-host: Permission denied"])
    with caplog.at_level(logging.INFO, logger="pyinfra"):
        assert answer_of(world) is None
    assert f"sudo {PROGRAM} host facts < spec.json" in caplog.text
    assert "Permission denied" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "broken", [SSHException("gone"), OSError("reset"), TimeoutError("no answer in 120 s")]
)
def test_a_lost_connection_fails_the_step_and_says_to_run_again(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture, broken: Exception
) -> None:
    world.script.says("host facts", broken)
    with caplog.at_level(logging.INFO, logger="pyinfra"):
        assert answer_of(world) is None
    assert "the connection to the host was lost" in caplog.text
    assert "Run the same command again" in caplog.text


def test_a_defect_of_ours_is_not_taken_for_an_outage(world: PyinfraWorld) -> None:
    world.script.says("host facts", KeyError("x"))
    with pytest.raises(KeyError):
        answer_of(world)


def test_an_outage_is_waited_for_and_the_host_connected_again(world: PyinfraWorld) -> None:
    world.script.says("job status", SSHException("gone"), OSError("gone"), {"state": "done"})
    assert through_outages(world) == {"state": "done"}
    assert world.connects == ["gpu01", "gpu01"]
    assert [sent.spec for sent in world.script.sent] == [SPEC] * 3


def test_an_outage_beyond_the_patience_is_lost(world: PyinfraWorld) -> None:
    world.script.says("job status", SSHException("gone"))
    with pytest.raises(program.ConnectionLost, match="gone"):
        through_outages(world, patience_seconds=23.0)
    # At 0, 5, 10, 15, 20 and 25 seconds.
    assert len(world.script.sent) == 6


def test_a_host_that_stays_away_while_reconnecting_is_an_outage_too(
    world: PyinfraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyinfra's connect() tells of a failure by host.connected alone."""
    world.script.says("job status", SSHException("gone"), {"state": "done"})
    host = world.host()
    tries: list[int] = []

    def comes_back_at_the_third(*_arguments: Any, **_more: Any) -> None:
        tries.append(1)
        host.connected = len(tries) == 3

    monkeypatch.setattr(host, "connect", comes_back_at_the_third)
    assert through_outages(world) == {"state": "done"}
    assert len(world.script.sent) == 2


def test_no_connection_is_left_open_by_reconnecting(
    world: PyinfraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten that are let in by nobody, and sshd turns everybody away."""
    closed: list[int] = []

    class Client:
        def __init__(self, number: int) -> None:
            self.number = number

        def close(self) -> None:
            closed.append(self.number)

        def get_transport(self) -> None:
            return None

    host = world.host()
    connector: Any = host.connector
    connector.client = Client(0)

    def login_fails_twice(*_arguments: Any, **_more: Any) -> None:
        connector.client = Client(connector.client.number + 1)
        host.connected = connector.client.number == 3

    monkeypatch.setattr(host, "connect", login_fails_twice)
    world.script.says("job status", SSHException("gone"), {"state": "done"})
    assert through_outages(world) == {"state": "done"}
    assert closed == [0, 1, 2]


def test_a_refusal_is_no_outage(world: PyinfraWorld) -> None:
    world.script.says("job status", refusal("no"))
    with pytest.raises(program.HostRefused, match="no"):
        through_outages(world)
    assert len(world.script.sent) == 1
    assert world.connects == []


@pytest.mark.parametrize("ok", [True, False])
def test_a_function_fails_its_host_by_its_answer(world: PyinfraWorld, ok: bool) -> None:
    command = calling.on_host(lambda state, host: ok)
    assert command.execute(world.state, world.host(), {}) is ok
