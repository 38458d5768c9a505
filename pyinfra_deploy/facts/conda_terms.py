"""The fact that reads conda's acceptance files on a host, as the user who will run conda."""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra.api import FactBase, FactProcessError, QuoteString, StringCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host

SOURCE = Path(__file__).resolve().parents[2] / "files" / "fleet_host" / "conda_terms.py"

# As for the snapshot: the program's text in an argument, so that nothing has to be there before.
_BOOTSTRAP = (
    "import binascii as b,sys,zlib;"
    "r,t=map(b.a2b_base64,sys.argv[1:]);sys.argv[1:]=[r.decode()];"
    "exec(compile(zlib.decompress(t),'conda_terms.py','exec'),{'__name__':'__main__'})"
)


@cache
def _packed_source() -> str:
    return base64.b64encode(zlib.compress(SOURCE.read_bytes(), 9)).decode()


class CondaTerms(FactBase[dict[str, Any]]):
    """{roots, terms: {channel: {accepted, version, path}}, files: {path: readable}}; {} on a host
    without Python, error instead of terms where an acceptance file cannot be read."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, request: str) -> StringCommand:
        encoded = base64.b64encode(request.encode()).decode()
        python = StringCommand(
            "python3 -I -S -c", QuoteString(_BOOTSTRAP), encoded, _packed_source(), _separator=" "
        )
        return StringCommand("if command -v python3 >/dev/null 2>&1; then", python,
                             "; else echo '{}'; fi")  # fmt: skip

    def process(self, output: list[str]) -> dict[str, Any]:
        return parse(output)


def parse(output: list[str]) -> dict[str, Any]:
    """Raises FactProcessError, which costs this one host."""
    # A login shell's greeting may come first.
    for line in reversed(output):
        if line.startswith("{"):
            try:
                document = json.loads(line)
            except ValueError as error:
                raise FactProcessError(f"conda's terms are not JSON: {error}") from error
            if isinstance(document, dict):
                return document
    raise FactProcessError(f"the host printed no answer, but: {' | '.join(output[-5:])[:400]}")


def read_conda_terms(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """What the host's files say; decided again on the host, right before conda is run."""
    found: dict[str, Any] = host.get_fact(
        CondaTerms, request=json.dumps(dict(request), sort_keys=True)
    )
    return found
