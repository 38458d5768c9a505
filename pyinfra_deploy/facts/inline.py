"""A program of files/fleet_host run on a host as text in its command, and the answer it prints.

Nothing has to be on the host before it can be read, and nothing is left there after. The kernel
takes 128 KiB in one argument (execve(2)), so the text is compressed.
"""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from pyinfra.api import FactProcessError, QuoteString, StringCommand

PROGRAMS = Path(__file__).resolve().parents[2] / "files" / "fleet_host"

# binascii and zlib are in Debian's python3-minimal.
_BOOTSTRAP = (
    "import binascii as b,sys,zlib;"
    "n,t=sys.argv[1:3];del sys.argv[1:3];"
    "exec(compile(zlib.decompress(b.a2b_base64(t)),n,'exec'),{'__name__':'__main__'})"
)


@cache
def _packed(source: Path) -> str:
    return base64.b64encode(zlib.compress(source.read_bytes(), 9)).decode()


def python_command(source: Path, *arguments: str, otherwise: str) -> StringCommand:
    """Run `source` with these arguments; without python3 there, the shell command `otherwise`."""
    return StringCommand(
        "if command -v python3 >/dev/null 2>&1; then python3 -I -S -c",
        *(QuoteString(word) for word in (_BOOTSTRAP, source.name, _packed(source), *arguments)),
        f"; else {otherwise}; fi",
    )


def last_object(output: list[str], what: str, *, is_not_json: str) -> dict[str, Any]:
    """The JSON object in the last line that begins as one: a login shell's greeting may come first.

    Raises FactProcessError, which costs this one host, in the caller's words.
    """
    for line in reversed(output):
        if line.startswith("{"):
            try:
                document = json.loads(line)
            except json.JSONDecodeError as error:
                raise FactProcessError(f"{is_not_json}: {error}") from error
            if isinstance(document, dict):
                return document
    raise FactProcessError(f"the host printed no {what}, but: {' | '.join(output[-5:])[:400]}")
