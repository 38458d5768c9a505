"""The ground of a host: our files, users and directories, written in one go and durably."""

from __future__ import annotations

import contextlib
import grp
import pwd
import re
from pathlib import Path
from typing import Any

from . import SCHEMA_VERSION, durable, events, fields, layout, programs, snapshot, systemctl
from .errors import HostError, SpecError

TOOL_TIMEOUT_SECONDS = 60.0
TOOL_FIXES = programs.Fixes(
    absent="Install systemd's package in full.",
    hangs="Look at 'journalctl -b -p warning' on the host: a directory of users may not answer.",
    fails="Mend what it names, then run again.",
)
# Drop-ins of our engines' units and the unit of an installation that is over are all that may be
# removed: what else is ours stays, and the rest is not ours.
REMOVABLE = re.compile(
    r"/etc/systemd/system/(?:llm-engine@[a-z][a-z0-9-]*\.service\.d/[a-z][a-z0-9-]*\.conf"
    r"|llm-driver@\.service)"
)


def facts(_request: dict[str, Any]) -> dict[str, Any]:
    """`host facts` {} -> the snapshot's section `os`, as it is now."""
    found: dict[str, Any] = snapshot.collect({})["os"]
    return found


def prepare(request: dict[str, Any]) -> dict[str, Any]:
    """`host prepare` {files: [{path, content, mode, owner, group}], remove: [path], sysusers,
    tmpfiles} -> {changed: [path], removed: [path]}.

    remove: of REMOVABLE, what is not wanted any more; absent ones are fine.
    sysusers, tmpfiles: paths of our sysusers.d(5) and tmpfiles.d(5) files, which are applied before
    the files that may need the users. mode is octal text. Ends with a daemon-reload when a unit
    was written or systemd says that one is stale.
    """
    files = [_checked(item) for item in request.get("files", [])]
    unwanted = [_removable(path) for path in request.get("remove", [])]
    sysusers, tmpfiles = fields.text(request, "sysusers"), fields.text(request, "tmpfiles")
    first = [item for item in files if item["path"] in (sysusers, tmpfiles)]
    changed = [path for item in first if (path := _write(item))]
    programs.output_of(["systemd-sysusers", sysusers], TOOL_TIMEOUT_SECONDS, TOOL_FIXES)
    create = ["systemd-tmpfiles", "--create", tmpfiles]
    programs.output_of(create, TOOL_TIMEOUT_SECONDS, TOOL_FIXES)
    state = layout.llm_root() / "state"
    schema = state / "schema_version"
    if not schema.exists() or schema.read_text().strip() != str(SCHEMA_VERSION):
        durable.write_file(schema, f"{SCHEMA_VERSION}\n")
    changed += [path for item in files if item not in first and (path := _write(item))]
    removed = [path for path in unwanted if _removed(path)]
    # Always: a run that was killed between writing a unit and this line leaves systemd stale.
    systemctl.call(["daemon-reload"])
    if changed:
        events.record("files written", paths=changed)
    if removed:
        events.record("files removed", paths=removed)
    return {"changed": changed, "removed": removed}


def _removable(path: Any) -> str:
    if not isinstance(path, str) or not REMOVABLE.fullmatch(path):
        raise SpecError(
            f"{path!r} cannot be removed",
            "only drop-ins of our engines' units, and llm-driver@.service, are removed.",
            "Correct it.",
        )
    return path


def _removed(path: str) -> bool:
    """Remove the file, and its directory where nothing else is in it. False when it was gone."""
    found = layout.etc_root() / path.removeprefix("/etc/")
    there = found.exists() or found.is_symlink()
    durable.remove_file(found)
    with contextlib.suppress(OSError):
        found.parent.rmdir()
    return there


def _checked(item: Any) -> dict[str, str]:
    keys = ("path", "content", "mode", "owner", "group")
    if not isinstance(item, dict) or any(not isinstance(item.get(key), str) for key in keys):
        raise SpecError(
            "a file to write is malformed", f"it needs {', '.join(keys)}, all texts.", "Correct it."
        )
    if not item["path"].startswith("/") or ".." in Path(item["path"]).parts:
        raise SpecError(
            f"{item['path']!r} cannot be written", "it is no plain absolute path.", "Correct it."
        )
    return {key: item[key] for key in keys}


def _write(item: dict[str, str]) -> str | None:
    """The path when the file was written, None when it was so already."""
    path, mode = Path(item["path"]), int(item["mode"], 8)
    uid, gid = _user(item["owner"]), _group(item["group"])
    if path.is_file() and not path.is_symlink():
        status = path.stat()
        same = (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (uid, gid, mode)
        if same and path.read_bytes() == item["content"].encode():
            return None
    durable.make_directories(path.parent)
    durable.write_file(path, item["content"], mode=mode, uid=uid, gid=gid)
    return str(path)


def _user(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise HostError(
            f"there is no user {name} on the host",
            "systemd-sysusers did not create it.",
            "Run: systemd-sysusers /etc/sysusers.d/llm-fleet.conf, and see what it says.",
        ) from error


def _group(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise HostError(
            f"there is no group {name} on the host",
            "systemd-sysusers did not create it.",
            "Run: systemd-sysusers /etc/sysusers.d/llm-fleet.conf, and see what it says.",
        ) from error


def write_credential(request: dict[str, Any]) -> dict[str, Any]:
    """`credential write` {name, secret} -> {changed}: a secret for a unit's LoadCredential=.

    /etc/llm/credentials/NAME, mode 0600, root's. The secret is in no argv, log or event.
    """
    name, secret = fields.text(request, "name"), fields.text(request, "secret")
    if not name or "/" in name or name.startswith("."):
        raise SpecError(f"{name!r} is no credential's name", "it is a file's name.", "Correct it.")
    path = layout.etc_root() / "llm" / "credentials" / name
    if path.is_file() and path.read_text() == secret:
        return {"changed": False}
    durable.make_directories(path.parent, mode=0o700)
    durable.write_file(path, secret, mode=0o600, uid=0, gid=0)
    events.record("credential written", name=name)
    return {"changed": True}
