"""sudo's password on the host: in a file of the SSH session's own, never in a command line.

pyinfra (3.10, connectors/util.py) sends `env PYINFRA_SUDO_PASSWORD=... sudo -A ...` with each
command, beside an askpass program that prints that variable. For a moment it is in the arguments of
a process, which everybody on the host may read and auditd writes down. Here the askpass program
holds the password itself, and the variable is empty words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra.api import StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.connectors import util

if TYPE_CHECKING:
    from pyinfra.api import Host

IN_ITS_PLACE = "in the askpass program"
# /run/user/UID and /dev/shm are in memory, the former goes with the session; either may be mounted
# noexec, so the program is tried. pyinfra removes it when it disconnects, by what is printed here.
SCRIPT = """\
umask 077
IFS= read -r word
for place in "${XDG_RUNTIME_DIR:-/dev/shm}" /dev/shm "${TMPDIR:-/tmp}"; do
  program=$(mktemp "$place/pyinfra-sudo-askpass-XXXXXXXXXXXX" 2>/dev/null) || continue
  { echo '#!/bin/sh'; echo "cat <<'__EOF__'"; printf '%s\\n' "$word"; echo __EOF__; } >"$program"
  chmod 700 "$program"
  "$program" >/dev/null 2>&1 && echo "$program" && exit 0
  rm -f "$program"
done
echo 'no directory here takes a program that only this user may read' >&2
exit 1
"""
_CACHE_KEY = "sudo_askpass_path"
_original_askpass, _original_command = (
    util._ensure_sudo_askpass_set_for_host,
    util.make_unix_command,
)
_ours: set[str] = set()


def keep_sudo_password_out_of_argv() -> None:
    """From here on in this process."""
    util._ensure_sudo_askpass_set_for_host = askpass_of
    setattr(util, "make_unix_command", command_without_password)  # noqa: B010 - typed otherwise


def password_for(host: Host) -> str | None:
    """What the inventory gives, or what was typed in this run."""
    given = host.data.get("_sudo_password") or host.connector_data.get("prompted_sudo_password")
    return str(given) if given else None


def askpass_of(host: Host, temp_dir: str | None = None) -> str:
    """In place of pyinfra's: the path of the host's askpass program, made once a connection."""
    password = password_for(host)
    if password is None:  # an operation's own; none of ours gives one
        path: str = _original_askpass(host, temp_dir=temp_dir)
        return path
    known = host.connector_data.get(_CACHE_KEY)
    if known:
        return str(known)
    ok, output = host.run_shell_command(StringCommand(SCRIPT), _stdin=password)
    if not ok or not output.stdout_lines:
        raise PyinfraError(f"sudo's password cannot be given to the host: {output.output}")
    program = str(output.stdout_lines[-1])
    _ours.add(program)
    host.connector_data[_CACHE_KEY] = program
    return program


def command_without_password(command: StringCommand, **arguments: Any) -> StringCommand:
    """In place of pyinfra's make_unix_command."""
    if arguments.get("_sudo_askpass_path") in _ours:
        arguments["_sudo_password"] = IN_ITS_PLACE
    return _original_command(command, **arguments)
