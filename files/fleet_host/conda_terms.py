"""Whose terms of service conda has an acceptance for, read from its files as conda reads them.

Asking conda itself takes two seconds, sixteen with a channel down (conda 26.7.1 with
conda-anaconda-tos 0.2.2, from which all of this is). A file is ROOT/H/VERSION.json with H the
SHA-256 of the channel's host and path; of several the newest version counts, of equal ones that of
the earlier root.

Self-contained: the deploy also runs this text before anything of ours is on the host, with one
JSON argument {user, home, conda_root, channels, files} and one JSON answer {roots, terms, files},
reading as that user, or as nobody before there is one: what root could read proves nothing.
"""

from __future__ import annotations

import hashlib
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

TYPE_CHECKING = False  # -I -S keeps typing importable, but it costs a host 6 ms
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NOBODY = 65534


def roots(
    home: Path, conda_root: Path, environment: Mapping[str, str], etc: Path, var_lib: Path
) -> list[Path]:
    """The directories in conda's order. environment: what conda will be run with."""
    found = [etc / "conda/tos", var_lib / "conda/tos", conda_root / "conda-meta/tos"]
    if environment.get("XDG_CONFIG_HOME"):
        found.append(Path(environment["XDG_CONFIG_HOME"], "conda/tos"))
    found += [home / ".config/conda/tos", home / ".conda/tos"]
    if environment.get("CONDA_PREFIX"):
        found.append(Path(environment["CONDA_PREFIX"], "conda-meta/tos"))
    if environment.get("CONDATOS"):
        found.append(Path(environment["CONDATOS"]))
    return found


def hash_of(channel: str) -> str:
    """https://repo.anaconda.com/pkgs/main -> 3c9d068a..., of "repo.anaconda.com" + "pkgs/main"."""
    scheme, _, rest = channel.rstrip("/").partition("://")
    if scheme == "file":
        place, _, name = rest.rpartition("/")
    else:
        place, _, name = rest.partition("/")
    return hashlib.sha256((place + name).encode()).hexdigest()


def read(searched: list[Path], channels: list[str]) -> dict[str, dict[str, Any]]:
    """Channel -> {accepted: true|false|null, version, path}. accepted is null where no file tells,
    false where somebody rejected the terms. version as it is written. OSError for a file that is
    there and cannot be read, which stops conda too."""
    return {channel: _read_one(searched, channel) for channel in channels}


def _read_one(searched: list[Path], channel: str) -> dict[str, Any]:
    best: tuple[float, dict[str, Any]] | None = None
    for root in searched:
        for path in sorted((root / hash_of(channel)).glob("*.json")):
            document = _document(path)
            moment = epoch(document.get("version"))
            # conda takes a file that does not fit its schema for none.
            if moment is None or not isinstance(document.get("tos_accepted"), bool):
                continue
            if best is None or moment > best[0]:
                found = {
                    "accepted": document["tos_accepted"],
                    "version": str(document["version"]),
                    "path": str(path),
                }
                best = (moment, found)
    return best[1] if best else {"accepted": None, "version": None, "path": None}


def _document(path: Path) -> dict[str, Any]:
    import json  # not in Debian's python3-minimal

    try:
        document = json.loads(path.read_text())
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def epoch(version: object) -> float | None:
    """A version as seconds: ISO 8601, or a number; without a zone it is UTC. None for others."""
    if isinstance(version, (int, float)) and not isinstance(version, bool):
        return float(version)
    if not isinstance(version, str):
        return None
    try:
        moment = datetime.fromisoformat(version.replace("Z", "+00:00"))
    except ValueError:
        return None
    utc = timezone.utc  # noqa: UP017 - datetime.UTC came with Python 3.11
    return (moment if moment.tzinfo else moment.replace(tzinfo=utc)).timestamp()


def become(user: str) -> None:
    """Read as the user who will run conda."""
    import pwd

    try:
        entry = pwd.getpwnam(user)
        ids = entry.pw_uid, entry.pw_gid
        os.initgroups(user, entry.pw_gid)
    except KeyError:  # the deploy has not made the user yet
        ids = NOBODY, NOBODY
        os.setgroups([])
    os.setgid(ids[1])
    os.setuid(ids[0])


def main() -> int:
    try:
        import json
    except ImportError:
        print("{}")  # a bare host: it is read again when conda is run
        return 0
    request = json.loads(sys.argv[1])
    if os.geteuid() == 0:
        become(request["user"])
    searched = roots(Path(request["home"]), Path(request["conda_root"]), {}, Path("/etc"),
                     Path("/var/lib"))  # fmt: skip
    answer: dict[str, Any] = {"roots": [str(root) for root in searched]}
    try:
        answer["terms"] = read(searched, request["channels"])
    except OSError as error:
        answer["error"] = f"{error.filename}: {error.strerror}"
    answer["files"] = {path: os.access(path, os.R_OK) for path in request["files"]}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
