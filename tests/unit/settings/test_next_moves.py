"""What is said after pyinfra's own message for a host that it could not connect to."""

from __future__ import annotations

import logging

import pytest

from pyinfra_deploy.settings.unreachable import NextMove, next_move, without_exclude


@pytest.mark.parametrize(
    ("message", "move"),
    [
        ("Authentication error (username=ops, key=~/.ssh/id): failed", "try `ssh USER@ADDRESS`"),
        ("SSH host key error (Host key for gpu01 does not match.)", "ssh-keygen -R ADDRESS"),
        (
            "SSH error (StrictPolicy: No host key for 10.0.0.9 found in known_hosts)",
            "compare its fingerprint",
        ),
        ("Could not resolve hostname ([Errno -2] Name or service not known)", "mend ansible_host"),
        (
            "Could not connect ([Errno None] Unable to connect to port 22 on 10.0.0.9)",
            "does sshd run",
        ),
        ("SSH error (No authentication methods available)", "ansible_ssh_private_key_file"),
        (
            "Authentication error (username=ops): No authentication methods available",
            "ssh-agent",
        ),
        (
            "Could not connect ([Errno 2] No such file or directory: '~/.ssh/known_hosts')",
            "mkdir -m 700 ~/.ssh",
        ),
        ("Could not connect (timed out)", "is it switched on"),
        ("SSH error (Error reading SSH protocol banner)", "--exclude gpu01"),
    ],
)
def test_next_move(message: str, move: str) -> None:
    assert move in next_move("gpu01", message)


def test_a_command_for_all_hosts_does_not_tell_to_leave_one_out() -> None:
    move = next_move("gpu01", "Could not connect (timed out)")
    assert without_exclude(f"{move} more") == f"{move.split(' Without')[0]} more"
    assert without_exclude("--exclude stays elsewhere") == "--exclude stays elsewhere"


def _logged(message: str) -> str:
    record = logging.LogRecord("pyinfra", logging.ERROR, "", 0, message, (), None)
    assert NextMove().filter(record)
    return str(record.msg)


def test_a_wrong_sudo_password_is_called_so() -> None:
    said = _logged("[gpu01] \x1b[31msudo: 3 incorrect password attempts\x1b[0m")
    assert "the sudo password is wrong" in said
    assert "ansible_become_password" in said
    assert "password is wrong" in _logged("[gpu01] Sorry, try again.")
    assert "wrong" not in _logged("[gpu01] sudo: /x: command not found")


def test_a_wrong_sudo_password_is_told_once_for_a_host() -> None:
    tell = NextMove()
    records = [
        logging.LogRecord("pyinfra", logging.ERROR, "", 0, f"[{host}] {line}", (), None)
        for host in ("gpu01", "gpu02")
        for line in (
            "Sorry, try again.",
            "Sorry, try again.",
            "sudo: 3 incorrect password attempts",
        )
    ]
    assert all(tell.filter(record) for record in records)
    assert ["is wrong" in str(record.msg) for record in records] == [True, False, False] * 2


def test_the_request_of_a_fact_is_left_out() -> None:
    error = "[gpu01] \x1b[31mError: \x1b[0mcould not load fact: deploys.HostSnapshot"
    said = _logged(f"{error} request={'x' * 2000}")
    assert said == f"{error} (...)"
    short = "[gpu01] Error: could not load fact: server.Which command=a"
    assert _logged(short) == short
