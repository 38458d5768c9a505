"""Calling the host program: what a dead connection is told apart from."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from pyinfra_deploy.operations import program


class FakeHost:
    """A host whose command ends so; `active` is paramiko's word on the connection, None: no SSH."""

    connected = True

    def __init__(self, ok: bool, stdout: list[str], active: bool | None) -> None:
        self.output = SimpleNamespace(stdout_lines=stdout, stderr_lines=list[str]())
        self.ok = ok
        transport = SimpleNamespace(is_active=lambda: active)
        client = SimpleNamespace(get_transport=lambda: transport)
        self.connector = SimpleNamespace(client=client) if active is not None else object()

    def run_shell_command(self, *_arguments: Any, **_options: Any) -> tuple[bool, Any]:
        return self.ok, self.output


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "connector_arguments", lambda state, host: {})


def call(host: FakeHost) -> dict[str, Any]:
    state: Any = None
    fake: Any = host
    return program.call(state, fake, "job status", {}, llm_root="/srv/llm")


@pytest.mark.parametrize("stdout", [[], ['{"state": "run']])
def test_a_connection_that_was_reset_is_lost(stdout: list[str]) -> None:
    with pytest.raises(program.ConnectionLost, match="closed before"):
        call(FakeHost(ok=False, stdout=stdout, active=False))


def test_a_connection_that_is_closed_already_is_lost() -> None:
    """As soon as a host that lost its power is back it resets what it knows nothing of."""
    host = FakeHost(ok=True, stdout=['{"a": 1}'], active=False)
    closed = socket.socket()
    closed.close()
    transport: Any = host.connector.client.get_transport()  # type: ignore[attr-defined]
    transport.sock = closed
    with pytest.raises(program.ConnectionLost, match="Bad file descriptor"):
        call(host)


@pytest.mark.parametrize("active", [True, None])
def test_a_program_without_an_answer_is_a_failure(active: bool | None) -> None:
    with pytest.raises(program.HostRefused, match="failed on the host"):
        call(FakeHost(ok=False, stdout=["Killed"], active=active))


def test_an_answer_counts_even_when_the_connection_has_closed() -> None:
    refusal = '{"error": {"what": "no", "why": "because", "fix": "do", "detail": []}}'
    with pytest.raises(program.HostRefused, match="no"):
        call(FakeHost(ok=False, stdout=[refusal], active=False))
    assert call(FakeHost(ok=True, stdout=['{"a": 1}'], active=False)) == {"a": 1}


@pytest.mark.parametrize(("active", "expected"), [(True, "sudo asks"), (False, "EOFError")])
def test_a_prompt_for_sudos_password_is_no_lost_connection(active: bool, expected: str) -> None:
    """Both are an EOFError: getpass without a terminal, and paramiko."""
    host = FakeHost(ok=False, stdout=[], active=active)

    def end_of_file(*_arguments: Any, **_options: Any) -> Any:
        raise EOFError

    host.run_shell_command = end_of_file  # type: ignore[method-assign]
    with pytest.raises((program.HostRefused, program.ConnectionLost), match=expected):
        call(host)


@pytest.mark.parametrize(
    ("stderr", "what", "fix"),
    [
        ("sh: 1: /srv/llm/bin/fleet-host: not found", "not there", "deploy this host first"),
        ("sudo: /srv/llm/bin/fleet-host: command not found", "not there", "deploy this host"),
        ("bash: /srv/llm/bin/fleet-host: No such file or directory", "not there", "deploy this"),
        ("sudo: 1 incorrect password attempt", "sudo password is wrong", "become_password"),
        ("Sorry, try again.", "sudo password is wrong", "become_password"),
        ("/srv/llm/keys.json: No such file or directory", "failed on the host", "by hand"),
    ],
)
def test_what_stopped_it_before_it_ran(stderr: str, what: str, fix: str) -> None:
    host = FakeHost(ok=False, stdout=[], active=True)
    host.output.stderr_lines.append(stderr)
    with pytest.raises(program.HostRefused) as caught:
        call(host)
    assert what in caught.value.what
    assert fix in caught.value.fix
