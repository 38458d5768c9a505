"""The hub's JSON about a model: the listing of its files, its revisions, its errors.

Shapes as the public hub answers them to the modelscope client 1.40.2. Pure: no files are read.
"""

from __future__ import annotations

import fnmatch
import hashlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lab.hub.faults import Fault
    from lab.hub.store import Revision

# The public hub ends a listing here without a word.
MAX_ENTRIES = 3000
Entry = dict[str, Any]


def synthetic_content(path: str) -> bytes:
    """What a file that only a fault invented contains."""
    return f"{path}: not a part of the model\n".encode()


def filler_path(number: int) -> str:
    return f"filler/{number // 1000:02}/{number:05}.txt"


def blob(path: str, size_bytes: int, sha256: str, commit: str) -> Entry:
    return {
        "Type": "blob",
        "Path": path,
        "Name": PurePosixPath(path).name,
        "Size": size_bytes,
        "Sha256": sha256,
        "Revision": commit,
        "IsLFS": path.endswith(".safetensors"),
        "Mode": "33188",
        "CommittedDate": 1700000000,
        "CommitMessage": "lab",
        "CommitterName": "lab",
        "InCheck": False,
    }


def tree(path: str, commit: str) -> Entry:
    return {
        **blob(path, 0, "", commit),
        "Type": "tree",
        "Mode": "16384",
    }


def _synthetic(path: str, commit: str) -> Entry:
    content = synthetic_content(path)
    return blob(path, len(content), hashlib.sha256(content).hexdigest(), commit)


def _spoil(entry: Entry, faults: Iterable[Fault]) -> Entry:
    for fault in faults:
        if not fnmatch.fnmatchcase(entry["Path"], fault.path):
            continue
        if fault.kind == "no_sha256":
            entry = {key: value for key, value in entry.items() if key != "Sha256"}
        elif fault.kind == "wrong_sha256":
            entry = {**entry, "Sha256": hashlib.sha256(b"something else").hexdigest()}
        elif fault.kind == "wrong_size":
            entry = {**entry, "Size": entry["Size"] + 1}
    return entry


def _with_directories(blobs: list[Entry], commit: str) -> list[Entry]:
    """Blobs and the directories above them, by path, as a recursive listing has them."""
    directories = {
        str(parent)
        for entry in blobs
        for parent in PurePosixPath(entry["Path"]).parents
        if str(parent) != "." and not parent.is_absolute() and ".." not in parent.parts
    }
    entries = blobs + [tree(path, commit) for path in directories]
    return sorted(entries, key=lambda entry: str(entry["Path"]))


def entries(found: Revision, faults: list[Fault]) -> list[Entry]:
    """Every entry of a revision with the faults applied, before any limit or root."""
    blobs = [blob(f.path, f.size_bytes, f.sha256, found.commit) for f in found.files]
    omitted = [fault.path for fault in faults if fault.kind == "omit"]
    blobs = [
        entry
        for entry in blobs
        if not any(fnmatch.fnmatchcase(entry["Path"], pattern) for pattern in omitted)
    ]
    for fault in faults:
        if fault.kind == "extra":
            blobs.append(_synthetic(str(fault.value), found.commit))
        elif fault.kind == "many":
            missing = int(fault.value or 0) - len(blobs)
            blobs += [_synthetic(filler_path(number), found.commit) for number in range(missing)]
    return _with_directories([_spoil(entry, faults) for entry in blobs], found.commit)


def page(all_entries: list[Entry], root: str, recursive: bool) -> list[Entry]:
    """What one request gets: below `root`, or only directly in it, and 3000 entries at most."""
    base = root.strip("/")
    prefix = f"{base}/" if base else ""
    below = [entry for entry in all_entries if entry["Path"].startswith(prefix)]
    if not recursive:
        below = [entry for entry in below if "/" not in entry["Path"][len(prefix) :].strip("/")]
    return below[:MAX_ENTRIES]


def success(data: object) -> dict[str, Any]:
    return {"Code": 200, "Success": True, "Message": "success", "RequestId": "lab", "Data": data}


def failure(status: int, message: str) -> dict[str, Any]:
    """The real hub's codes for what is not there are long; its client reads HTTP's status."""
    code = 10010205001 if status == 404 else status
    return {"Code": code, "Success": False, "Message": message, "RequestId": "lab", "Data": None}


def revisions(branches: dict[str, str]) -> dict[str, Any]:
    """Data of the /revisions request."""
    named = [{"Revision": name, "CreatedAt": 1700000000} for name in sorted(branches)]
    return {"RevisionMap": {"Branches": named, "Tags": []}}
