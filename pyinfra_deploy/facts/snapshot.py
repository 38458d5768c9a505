"""One fact that reads everything the deploy needs to know of a host, with one command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra.api import FactBase

from pyinfra_deploy.facts.inline import PROGRAMS, last_object, python_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, StringCommand

SNAPSHOT_SOURCE = PROGRAMS / "snapshot.py"

# A host without Python is still read far enough to say what it is; the deploy installs Python.
NO_PYTHON = "NO-PYTHON"
_WITHOUT_PYTHON = f"echo {NO_PYTHON}; id -u; cat /etc/os-release"


class HostSnapshot(FactBase[dict[str, Any]]):
    """What `files/fleet_host/snapshot.py` prints: a mapping of sections, see its docstring.

    On a host without python3 the result has only `os` and `python_missing: True`.
    """

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, request: str) -> StringCommand:
        return python_command(SNAPSHOT_SOURCE, request, otherwise=_WITHOUT_PYTHON)

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
    return last_object(output, "snapshot", is_not_json="the host's snapshot is not JSON")


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
