"""What to do about a host that pyinfra could not connect to: its own message names host and cause.

pyinfra connects before deploy.py runs, and ends there when no host is left; its callbacks can be
given only to a state that has its inventory. So this hangs on its log.
"""

from __future__ import annotations

import logging
import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# As Host.connect() logs what connectors/ssh.py raises (pyinfra 3.10).
_CONNECT_ERROR = re.compile(
    r"^\s*\[(?P<host>[^\]]+)\]\s+(?P<why>(Authentication error|SSH error|SSH host key error"
    r"|Could not resolve hostname|Could not connect|EOF error) \(.*)",
    re.DOTALL,
)
_WITHOUT = " Without it for now: --exclude {host}"
# How the messages of pyinfra's ssh connector begin (pyinfra 3, connectors/ssh.py), or what paramiko
# has put in them, and the next move; the first that is found counts.
NEXT_MOVES = (
    (
        "no host key for",
        "its host key is not known here: compare its fingerprint with the host's own "
        "(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then connect once with ssh and accept",
    ),
    (
        "host key",
        "its host key is another than the one known here: only if the host was installed anew, "
        "ssh-keygen -R ADDRESS, then connect once with ssh and compare the fingerprint",
    ),
    (
        # paramiko's SSHException: neither an agent nor a file gave it a key to try.
        "no authentication methods available",
        "this machine has no key to offer: load one (ssh-add -l lists those of the ssh-agent), or "
        "set ansible_ssh_private_key_file to its file",
    ),
    (
        "authentication error",
        "the host lets this user and key not in: try `ssh USER@ADDRESS` by hand; set ansible_user "
        "and ansible_ssh_private_key_file, or put the public key into its authorized_keys",
    ),
    (
        "known_hosts",
        "the file of known host keys cannot be used here: it and its directory have to exist and "
        "be writable for you (mkdir -m 700 ~/.ssh)",
    ),
    (
        "could not resolve",
        "the name is not known to this machine's resolver: mend ansible_host in hosts.yml, or give "
        "the address",
    ),
    (
        # paramiko's NoValidConnectionsError: refused, or no route to the host.
        "unable to connect to port",
        "nothing answers there: is the host up (ping it, ask its BMC), does sshd run, and are "
        "ansible_host and ansible_port right?" + _WITHOUT,
    ),
    (
        "",
        "is it switched on and on the network (ping it, ask its BMC), and are ansible_host and "
        "ansible_port right?" + _WITHOUT,
    ),
)


def next_move(host: str, message: str) -> str:
    """One line for the operator, after pyinfra's own `message` on why `host` was not reached."""
    lowered = message.lower()
    move = next(move for sign, move in NEXT_MOVES if sign in lowered)
    return f"nothing was changed on it. Next: {move.format(host=host)}"


def without_exclude(text: str) -> str:
    """The same, for a command that has no --exclude since it is for all hosts."""
    return re.sub(re.escape(_WITHOUT).replace(r"\{host\}", r"\S+"), "", text)


# What pyinfra logs of a fact that could not be read (api/facts.py): its arguments, which are a
# whole request, and before it what the command printed, sudo's own words among that.
_FACT_ERROR = re.compile(r"(could not (?:load|process) fact: \S+)(.{200,})", re.DOTALL)
_PASSWORD_REFUSED = re.compile(
    r"^\s*\[(?P<host>[^\]]+)\]\s+(sudo: \d+ incorrect password attempts?|Sorry, try again\.)\s*$"
)
_SUDO_MOVE = (
    "the sudo password is wrong: nothing was changed. Next: set ansible_become_password to this "
    "user's password on the host (ansible-vault encrypt_string), or allow sudo without one in its "
    "sudoers (NOPASSWD: ALL)"
)


class NextMove(logging.Filter):
    """Adds the next move to what pyinfra logs of a host that it could not connect to or become
    root on, and leaves a fact's request out."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        plain = _COLOURS.sub("", str(record.msg))
        found = _CONNECT_ERROR.search(plain)
        if found and record.levelno == logging.ERROR:
            record.msg = f"{record.msg}\n    {next_move(found['host'], found['why'])}"
        elif refused := _PASSWORD_REFUSED.search(plain):
            # sudo says it for each of three tries.
            if refused["host"] not in self.refused:
                record.msg = f"{record.msg}\n    {_SUDO_MOVE}"
            self.refused.add(refused["host"])
        elif _FACT_ERROR.search(plain):
            record.msg = _FACT_ERROR.sub(r"\1 (...)", str(record.msg))
        return True


def tell_next_moves() -> None:
    """Have pyinfra print them, from here on in this process."""
    # What paramiko logs of it besides would go to the terminal as a traceback.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    logger = logging.getLogger("pyinfra")
    if not any(isinstance(known, NextMove) for known in logger.filters):
        logger.addFilter(NextMove())
