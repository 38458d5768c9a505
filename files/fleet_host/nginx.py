"""Change Nginx's configuration so that a bad one never runs and never waits on disk for a reboot.

Tested in a copy first, then written, tested in place, reloaded, and probed as a client. Whatever
fails from the writing on, the former files come back and are loaded again.

{llm_root}/state/nginx.json          {files: {path: sha256}, loaded: digest, null while under way,
                                     certificates: {path: sha256}, as they were when it loaded}
{llm_root}/state/nginx-before.json   the former files, while a change is under way
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import durable, events, fields, layout, nginx_process, snapshot
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable

TEST_TIMEOUT_SECONDS = 60.0
# "nginx: [emerg] TEXT in FILE:LINE", or "DATE [emerg] PID#PID: ..." where the error log is stderr.
MESSAGE = re.compile(
    r"^(?:nginx:|[\d/]+ [\d:]+) \[(?P<level>\w+)\] (?:\d+#\d+: )?(?P<text>.*?)"
    r"(?: in (?P<file>/\S+):(?P<line>\d+))?$"
)
CERTIFICATES = re.compile(
    r"^[ \t]*ssl_(?:certificate|client_certificate|trusted_certificate)[ \t]+(/[^;\s]+);", re.M
)
# Files whose text may name paths below /etc/nginx.
MAXIMUM_TEXT_BYTES = 1 << 20


def configuration() -> Path:
    return layout.etc_root() / "nginx"


def state_path() -> Path:
    return layout.llm_root() / "state" / "nginx.json"


def before_path() -> Path:
    return layout.llm_root() / "state" / "nginx-before.json"


def digest_of(files: dict[str, str]) -> str:
    """SHA-256 of {path: text} as canonical JSON; the control side computes the same."""
    text = json.dumps(files, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def apply(request: dict[str, Any]) -> dict[str, Any]:
    """`nginx apply` {files: {path: text}, remove: [path], probe: {port, server_name, path,
    status?}, reload?} -> {changed, reloaded, started, files}.

    reload: load again even if no file differs, as after a new certificate. HostError when the new
    configuration is no good: the former one runs on.
    """
    files = fields.text_map(request, "files")
    remove = fields.texts(request, "remove")
    for path in [*files, *remove]:
        _refuse_elsewhere(path)
    probe = request.get("probe")
    wanted = nginx_process.read_probe(probe if isinstance(probe, dict) else {})
    interrupted = _restore_interrupted()
    changed = _differing(files, remove)
    state = durable.read_json(state_path()) or {}
    # A certificate that changed on disk is loaded too, whoever changed it: also when the run that
    # installed it ended before it came to here.
    certificates_loaded = state.get("certificates") == certificates_in(files.values())
    loaded = state.get("loaded") == digest_of(files) and certificates_loaded and not interrupted
    active = nginx_process.is_active()
    if not changed and loaded and active and request.get("reload") is not True:
        enabled = nginx_process.enable()
        return {"changed": enabled, "reloaded": False, "started": False, "files": []}
    _test_in_a_copy(files, remove)
    _switch(files, remove, wanted, active)
    nginx_process.enable()
    if changed:
        events.record("nginx configuration changed", files=changed)
    return {"changed": True, "reloaded": active, "started": not active, "files": changed}


def certificates_in(texts: Iterable[str]) -> dict[str, str | None]:
    """The certificates that a configuration names, by their SHA-256 now; None for one that is not
    there."""
    found: dict[str, str | None] = {}
    for text in texts:
        for path in CERTIFICATES.findall(text):
            found[path] = snapshot.sha256_or_none(path)
    return found


def certificates_reloaded() -> None:
    """Somebody else had Nginx load what is there now: note the certificates that it has."""
    state = durable.read_json(state_path())
    if isinstance(state, dict) and state.get("loaded"):
        texts = [_text(Path(path)) or "" for path in state["files"]]
        durable.write_json(state_path(), {**state, "certificates": certificates_in(texts)})


def _refuse_elsewhere(path: str) -> None:
    inside = Path(path).is_relative_to(configuration()) and ".." not in Path(path).parts
    if not inside or Path(path) == configuration():
        raise SpecError(
            f"{path} is not a file of Nginx's configuration",
            f"it must be below {configuration()}.",
            "Correct it.",
        )


def _differing(files: dict[str, str], remove: list[str]) -> list[str]:
    return [path for path, text in files.items() if _text(Path(path)) != text] + [
        path for path in remove if os.path.lexists(path)
    ]


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


# --- the test before anything is written


def _test_in_a_copy(files: dict[str, str], remove: list[str]) -> None:
    """`nginx -t` on a copy of the whole configuration with the change in it."""
    with tempfile.TemporaryDirectory(prefix="llm-nginx-") as staging:
        copy = Path(staging, "nginx")
        # A link to a file elsewhere, as in modules-enabled, keeps pointing there.
        shutil.copytree(configuration(), copy, symlinks=True)
        for path in remove:
            _inside(path, copy).unlink(missing_ok=True)
        for path, text in files.items():
            target = _inside(path, copy)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_text(text)
        _point_into(copy)
        _test(copy, files)


def _inside(path: str, copy: Path) -> Path:
    return copy / Path(path).relative_to(configuration())


def _point_into(copy: Path) -> None:
    """Make absolute paths below the configuration, in links and in texts, name the copy."""
    original = str(configuration()) + "/"
    for root, directories, names in os.walk(copy):
        for name in [*directories, *names]:
            path = Path(root, name)
            if path.is_symlink():
                target = str(path.readlink())
                if target.startswith(original):
                    path.unlink()
                    path.symlink_to(target.replace(original, f"{copy}/", 1))
            elif path.is_file() and path.stat().st_size <= MAXIMUM_TEXT_BYTES:
                content = path.read_bytes()
                rewritten = content.replace(original.encode(), f"{copy}/".encode())
                if rewritten != content:
                    path.write_bytes(rewritten)


def _test(directory: Path, files: dict[str, str]) -> None:
    """`nginx -t`; HostError with Nginx's own line, the file as it is really called, and its text"""
    command = ["nginx", "-t", "-q", "-c", str(directory / "nginx.conf"), "-e", "stderr"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TEST_TIMEOUT_SECONDS,
            check=False,
            env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(
            "Nginx's configuration could not be tested", f"{error}.", "Install the package nginx."
        ) from error
    if done.returncode == 0:
        return
    raise explain(done.stderr.replace(str(directory), str(configuration())), files)


def explain(output: str, files: dict[str, str]) -> HostError:
    """What `nginx -t` printed, as an error that names the file and shows the line."""
    lines = [line for line in output.splitlines() if line.strip()]
    found = [match for line in lines if (match := MESSAGE.match(line))]
    worst = next((match for match in found if match["level"] in ("emerg", "crit", "alert")), None)
    if worst is None:
        return _refused("it printed no reason that this program knows.", lines)
    why, detail = f"{worst['text']}.", list(lines)
    if worst["file"]:
        number = int(worst["line"])
        ours = worst["file"] in files
        whose = "written by this deploy" if ours else "not one of ours, left as it was"
        why = f"{worst['text']} in {worst['file']}, line {number} ({whose})."
        text = (files.get(worst["file"]) or _text(Path(worst["file"])) or "").splitlines()
        for shown in range(max(1, number - 2), min(len(text), number + 2) + 1):
            detail.append(f"{'>' if shown == number else ' '} {shown:4}  {text[shown - 1]}")
    return _refused(why, detail)


def _refused(why: str, detail: list[str]) -> HostError:
    return HostError(
        "Nginx refuses the new configuration; the old one runs on",
        why,
        "Mend what the line names, in the settings or in that file, and run again.",
        detail,
    )


# --- the change, and the way back


def _switch(
    files: dict[str, str], remove: list[str], probe: nginx_process.Probe, active: bool
) -> None:
    before = {path: _former(Path(path)) for path in [*files, *remove]}
    durable.write_json(before_path(), before, mode=0o600)
    digests = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()}
    durable.write_json(state_path(), {"files": digests, "loaded": None})
    # Before it loads them: one that changes meanwhile is loaded by the next run.
    certificates = certificates_in(files.values())
    try:
        for path, text in files.items():
            durable.make_directories(Path(path).parent)
            durable.write_file(Path(path), text, mode=0o644)
        for path in remove:
            durable.remove_file(Path(path))
        _test(configuration(), files)
        if active:
            nginx_process.reload()
        else:
            nginx_process.start()
        nginx_process.wait_for(probe)
    except BaseException as error:
        _put_back(before)
        if active:
            nginx_process.reload_quietly()
        elif isinstance(error, HostError):
            nginx_process.stop()
        raise
    durable.write_json(
        state_path(),
        {"files": digests, "loaded": digest_of(files), "certificates": certificates},
    )
    durable.remove_file(before_path())


def _former(path: Path) -> dict[str, str] | None:
    """What a path holds, for putting it back: {"text": ...} or {"link": ...}; None: nothing."""
    if path.is_symlink():
        return {"link": str(path.readlink())}
    text = _text(path)
    return None if text is None else {"text": text}


def _put_back(before: dict[str, dict[str, str] | None]) -> None:
    for name, former in before.items():
        path = Path(name)
        if former is None:
            durable.remove_file(path)
        elif "link" in former:
            durable.replace_symlink(path, former["link"])
        else:
            durable.write_file(path, former["text"], mode=0o644)
    durable.remove_file(before_path())


def _restore_interrupted() -> bool:
    """Undo a change that was cut off by a kill or a power cut: its files were never proved."""
    before = durable.read_json(before_path())
    if before is None:
        return False
    _put_back(before)
    return True
