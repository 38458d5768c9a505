"""Calling the host program from the control machine: JSON in on stdin, JSON out."""

from __future__ import annotations

import json
import re
import shlex
import time
from typing import TYPE_CHECKING, Any, cast

import gevent
from paramiko import SSHException
from pyinfra import logger
from pyinfra.api import StringCommand
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments

from pyinfra_deploy.operations import dead_connection, install

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

# What a dropped SSH connection raises, depending on where it is noticed.
LOST_CONNECTION = (EOFError, OSError, SSHException)
RECONNECT_PAUSE_SECONDS = 5.0
# Every call is a short one: what takes long is a job of the host's systemd.
CALL_TIMEOUT_SECONDS = 120
# sudo's own words (sudo 1.9, plugins/sudoers); the second is its default `badpass_message`.
SUDO_PASSWORD_WRONG = re.compile(r"incorrect password attempt|Sorry, try again")


class HostRefused(Exception):
    """The host program said no: what happened, why, and what to do next."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.what = str(error.get("what", "the host program failed"))
        self.why = str(error.get("why", ""))
        self.fix = str(error.get("fix", ""))
        self.detail = [str(line) for line in error.get("detail", [])]
        # Of a job that did its work and found something wrong: what it found.
        self.result: Any = None
        super().__init__(self.what)

    def lines(self) -> list[str]:
        """The finished text, a line each."""
        text = [self.what]
        if self.why:
            text.append(f"  why: {self.why}")
        if self.fix:
            text.append(f"  fix: {self.fix}")
        return text + [f"  | {line}" for line in self.detail]


def sudo_password_wrong() -> HostRefused:
    """Why sudo did not take the password that the inventory gives, or that was typed."""
    return HostRefused(
        {
            "what": "the sudo password is wrong",
            "why": "sudo did not take it",
            "fix": "set ansible_become_password to this user's password on the host "
            "(ansible-vault encrypt_string), or allow sudo without one in its sudoers "
            "(NOPASSWD: ALL)",
        }
    )


def sudo_refused() -> HostRefused:
    """Why a host whose sudo wants a password cannot be worked on where nobody can be asked."""
    return HostRefused(
        {
            "what": "sudo asks for a password",
            "why": "the user may not run sudo without one, or not at all, and there is no terminal "
            "to ask at",
            "fix": "allow it in the host's sudoers (NOPASSWD: ALL), or give "
            "ansible_become_password in a Vault file of the inventory",
        }
    )


class ConnectionLost(Exception):
    """SSH to the host broke while a command ran; the host's own jobs go on without it."""


def connector_arguments(state: State, host: Host) -> dict[str, Any]:
    """The sudo, shell and environment arguments that apply to this host's commands."""
    arguments, _ = pop_global_arguments(state, host, {})
    return {
        key: value
        for key, value in cast("dict[str, Any]", arguments).items()
        if key in CONNECTOR_ARGUMENT_KEYS and key not in ("_stdin", "_success_exit_codes")
    }


def call(
    state: State,
    host: Host,
    command: str,
    spec: Mapping[str, Any],
    *,
    llm_root: str,
    timeout_seconds: int = CALL_TIMEOUT_SECONDS,
    installing: bytes | None = None,
    borrowing: bytes | None = None,
) -> dict[str, Any]:
    """Run `fleet-host COMMAND` with `spec` on stdin; returns its JSON document.

    installing: a program to run instead of the host's, and to put in its place if that succeeds.
    borrowing: one to run instead, which leaves the host's as it is.
    Nothing of the spec is in argv or in a log. Raises HostRefused when the program refuses and
    ConnectionLost when SSH breaks or no answer came in `timeout_seconds` (a cut network gives no
    error by itself).
    """
    program = f"{llm_root}/bin/fleet-host"
    line, stdin = StringCommand(shlex.quote(program), command), json.dumps(dict(spec))
    brought = installing or borrowing
    if brought is not None:
        line = install.command(llm_root, brought, command, keep=installing is not None)
        stdin = install.standard_input(brought, dict(spec))
    if not host.connected:
        # After a reconnect that failed; pyinfra's connector would break with an AttributeError.
        raise ConnectionLost("the host does not answer")
    try:
        dead_connection.be_noticed(host)
        ok, output = host.run_shell_command(
            line,
            print_output=False,
            print_input=False,
            **(connector_arguments(state, host) | {"_stdin": stdin, "_timeout": timeout_seconds}),
        )
    except LOST_CONNECTION as error:
        if isinstance(error, EOFError) and not connection_is_dead(host):
            raise sudo_refused() from error  # pyinfra's prompt for sudo's password, unanswered
        raise ConnectionLost(f"{type(error).__name__}: {error}") from error
    document = _document(output.stdout_lines)
    if ok and document is not None:
        return document
    if document is not None and isinstance(document.get("error"), dict):
        raise HostRefused(document["error"])
    if document is None and connection_is_dead(host):
        # A host that lost its power and came back resets the connection: paramiko then reports no
        # error, only a command that ended without a status and without a word.
        raise ConnectionLost("it closed before the command had answered")
    if refusal := _refused_before_it_ran(program, output.stderr_lines):
        raise refusal
    raise HostRefused(
        {
            "what": f"`fleet-host {command}` failed on the host",
            "why": "it printed no answer that can be read",
            "fix": f"run it by hand there: sudo {program} {command} < spec.json",
            "detail": [*output.stdout_lines[-10:], *output.stderr_lines[-20:]],
        }
    )


def _refused_before_it_ran(program: str, stderr: list[str]) -> HostRefused | None:
    """What the shell or sudo said instead of the program; None where it was neither."""
    text = "\n".join(stderr)
    if SUDO_PASSWORD_WRONG.search(text):
        return sudo_password_wrong()
    # dash: "sh: 1: PROGRAM: not found"; bash: "PROGRAM: No such file or directory"; sudo's own.
    if re.search(rf"{re.escape(program)}'?: (command )?(not found|No such file)", text):
        return HostRefused(
            {
                "what": "the host program is not there",
                "why": f"{program} does not exist: this host was never deployed",
                "fix": "deploy this host first: pyinfra inventories/NAME.py deploy.py --limit HOST",
            }
        )
    return None


def connection_is_dead(host: Host) -> bool:
    """Whether SSH to the host is known to be closed; never for a host without SSH (@local)."""
    client = getattr(host.connector, "client", None)
    if client is None:
        return False
    transport = client.get_transport()
    return transport is None or not transport.is_active()


def _document(lines: list[str]) -> dict[str, Any] | None:
    """The program's one JSON document; a greeting of the login shell may stand before it."""
    for index, line in enumerate(lines):
        if line.startswith("{"):
            try:
                document = json.loads("\n".join(lines[index:]))
            except json.JSONDecodeError:
                continue
            return document if isinstance(document, dict) else None
    return None


def call_through_outages(
    state: State,
    host: Host,
    command: str,
    spec: Mapping[str, Any],
    *,
    llm_root: str,
    patience_seconds: float,
) -> dict[str, Any]:
    """`call`, reconnecting while SSH is down, for at most `patience_seconds`.

    Only for commands that may run twice: reading a job's state, or starting one that attaches.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return call(state, host, command, spec, llm_root=llm_root)
        except ConnectionLost as error:
            if time.monotonic() >= deadline:
                raise
            logger.warning(f"{host.print_prefix}connection lost ({error}); trying again")
        gevent.sleep(RECONNECT_PAUSE_SECONDS)
        _reconnect(host)


_reconnecting: set[str] = set()


def reconnecting(host: Host) -> bool:
    """Whether a disconnect is only the first half of connecting again."""
    return host.name in _reconnecting


def _reconnect(host: Host) -> None:
    _reconnecting.add(host.name)
    try:
        host.disconnect()
        # pyinfra leaves the connection itself open, also one that never got past the host's key or
        # the login: after ten of them sshd turns everybody away (MaxStartups, sshd_config(5)).
        client = getattr(host.connector, "client", None)
        if client is not None:
            client.close()
    except LOST_CONNECTION as error:
        logger.debug(f"{host.print_prefix}while closing the lost connection: {error}")
    finally:
        _reconnecting.discard(host.name)
    host.connected = False
    host.connect(reason="to reconnect", show_errors=False)


def report_refusal(host: Host, step: str, refusal: HostRefused) -> None:
    """Print a refusal for the person who reads: host, step, cause, next move, the log lines."""
    first, *rest = refusal.lines()
    host.log_styled(f"{step}: {first}", fg="red", log_func=logger.error)
    for line in rest:
        host.log(line, log_func=logger.error)
