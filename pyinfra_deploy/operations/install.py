"""Putting the host program on a host: only a run that holds the host's lease replaces it."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex

from pyinfra.api import StringCommand

# Reads the program in base64 and then the command's input, from one stdin. The program is called
# under a name of its own and gets its final one when the command has succeeded: what a refused run
# brought never replaces what another run, or a unit of a host that reboots, is about to start.
# The digest is compared because stdin just ends when the connection breaks.
# Tools that every Debian has (coreutils, findutils); head -c reads no byte more than it is told.
SCRIPT = """\
set -e; umask 022; mkdir -p {directory}; new={target}.new.$$; trap 'rm -f "$new"' EXIT
said=$( {{ head -c {size} | base64 -d > "$new"; }} 2>&1 | tr -d '"\\\\' | tr '\\n\\t' '  ')
echo "{digest}  $new" | sha256sum --check --status || {{
  printf '{{"error": {{"what": "the host program could not be written to %s", "why": "%s", '\
'"fix": "see that there is room (df -h) and that the connection holds, then run again"}}}}\\n' \
{directory} "${{said:-it arrived cut}}"; exit 1; }}
chmod 0755 "$new"
answer=$("$new" {command}) || {{ code=$?; printf '%s\\n' "$answer"; exit "$code"; }}
{keep}
find {directory} -maxdepth 1 -name 'fleet-host.new.*' -mmin +60 -delete
printf '%s\\n' "$answer"
"""


KEEP = 'sync "$new"; mv -f "$new" {target}; sync {directory}'


def command(llm_root: str, program: bytes, words: str, *, keep: bool = True) -> StringCommand:
    """A shell's line that runs `words` of a program that comes on stdin, and then installs it.

    Exit code and output are those of the command; after a refusal nothing is left on the host.
    keep: False leaves the host's own program as it is in any case.
    """
    directory, target = shlex.quote(f"{llm_root}/bin"), shlex.quote(f"{llm_root}/bin/fleet-host")
    return StringCommand(
        SCRIPT.format(
            directory=directory,
            target=target,
            keep=KEEP.format(directory=directory, target=target) if keep else ":",
            size=len(_encoded(program)) + 1,
            digest=hashlib.sha256(program).hexdigest(),
            command=words,
        )
    )


def standard_input(program: bytes, spec: dict[str, object]) -> str:
    """What `command` reads: the program, a line, then the command's JSON."""
    return f"{_encoded(program)}\n{json.dumps(spec)}"


def _encoded(program: bytes) -> str:
    return base64.b64encode(program).decode()
