"""One fact that reads everything the deploy needs to know of a host, with one command."""

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

SNAPSHOT_SOURCE = Path(__file__).resolve().parents[2] / "files" / "fleet_host" / "snapshot.py"

# `exec` of a compressed source keeps the whole snapshot in one command line (the kernel takes
# 128 KiB in one argument, execve(2)), so nothing has to be on the host before it can be read.
# binascii and zlib are in Debian's python3-minimal.
_BOOTSTRAP = (
    "import binascii as b,sys,zlib;"
    "r,t=map(b.a2b_base64,sys.argv[1:]);sys.argv[1:]=[r.decode()];"
    "exec(compile(zlib.decompress(t),'snapshot.py','exec'),{'__name__':'__main__'})"
)
# A host without Python is still read far enough to say what it is; the deploy installs Python.
NO_PYTHON = "NO-PYTHON"
_WITHOUT_PYTHON = f"echo {NO_PYTHON}; id -u; cat /etc/os-release"


@cache
def _packed_source() -> str:
    return base64.b64encode(zlib.compress(SNAPSHOT_SOURCE.read_bytes(), 9)).decode()


class HostSnapshot(FactBase[dict[str, Any]]):
    """What `files/fleet_host/snapshot.py` prints: a mapping of sections, see its docstring.

    On a host without python3 the result has only `os` and `python_missing: True`.
    """

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, request: str) -> StringCommand:
        encoded = base64.b64encode(request.encode()).decode()
        python = StringCommand(
            "python3 -I -S -c", QuoteString(_BOOTSTRAP), encoded, _packed_source(), _separator=" "
        )
        return StringCommand(
            "if command -v python3 >/dev/null 2>&1; then",
            python,
            f"; else {_WITHOUT_PYTHON}; fi",
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        return parse(output)


def parse(output: list[str]) -> dict[str, Any]:
    """Read what the snapshot command printed.

    Raises FactProcessError (which fails this one host) when it is neither JSON nor the short
    answer of a host without Python.
    """
    # A login shell's greeting may come first, of whatever kind.
    if NO_PYTHON in output:
        return _without_python(output[output.index(NO_PYTHON) + 1 :])
    for line in reversed(output):
        if line.startswith("{"):
            try:
                document = json.loads(line)
            except json.JSONDecodeError as error:
                raise FactProcessError(f"the host's snapshot is not JSON: {error}") from error
            if isinstance(document, dict):
                return document
    raise FactProcessError(f"the host printed no snapshot, but: {' | '.join(output[-5:])[:400]}")


def _without_python(lines: list[str]) -> dict[str, Any]:
    release = dict(line.split("=", 1) for line in lines[1:] if "=" in line)
    return {
        "python_missing": True,
        "os": {
            "id": release.get("ID", "").strip('"'),
            "version_id": release.get("VERSION_ID", "").strip('"'),
            "codename": release.get("VERSION_CODENAME", "").strip('"'),
            "is_root": bool(lines) and lines[0].strip() == "0",
            "python": None,
            "pythons": [],
        },
    }


_memo: dict[int, dict[str, Any]] = {}


def read_snapshot(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """The host's snapshot, read once a run (pyinfra itself does not keep facts).

    Later steps decide on the host, never by this: it shows how the host was before the run.
    """
    key = id(host)
    if key not in _memo:
        _memo[key] = host.get_fact(HostSnapshot, request=json.dumps(dict(request), sort_keys=True))
    return _memo[key]
