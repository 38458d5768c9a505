"""Taking everything of ours off a host: units, files, users, directories. Models stay unless asked.

What is ours follows from names that only we write, and from what the state says: state/nginx.json
for Nginx's files (only as we wrote them), state/manifest.json for package holds. Safe to run again:
what is gone is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from . import durable, events, holds, layout, lease, snapshot, systemctl
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

# Modules are read from the program's file, which goes too.
_LOADED = (snapshot, hashlib)
SETTLED = ("inactive", "failed")
STOP_SECONDS = 900.0
TOOL_SECONDS = 120.0
USERS = ("llm-gateway", "llm", "llm-build")
GROUP = "llm-http"
KEPT_WITH_MODELS = ("models", "state")


def run(request: dict[str, Any]) -> dict[str, Any]:
    """`uninstall` {lease: as `lease acquire`, models, dry} -> {units, paths, kept: [text]}.

    models: the models and the event log too. dry: only the manifest of what would go.
    """
    models, dry = request.get("models") is True, request.get("dry") is True
    units = our_units()
    paths, kept = manifest(models=models)
    if dry:
        return {"units": units, "paths": [str(path) for path in paths], "kept": kept}
    wanted = request.get("lease")
    lease.acquire(dict(wanted) if isinstance(wanted, dict) else {})
    events.record("uninstalled", models=models)
    _stop(units)
    if holds.ours():
        holds.change([], holds.ours())
    for path in paths:
        _remove(path)
    systemctl.call(["daemon-reload"])
    with contextlib.suppress(HostError):  # where none of them had failed
        systemctl.call(["reset-failed", "llm-*"])
    if (layout.etc_root() / "nginx").is_dir():
        _reload_nginx()
    kept += _remove_users(models=models)
    return {"units": units, "paths": [str(path) for path in paths], "kept": kept}


def our_units() -> list[str]:
    """Instances that systemd knows and enabled ones, by name."""
    done = subprocess.run(
        ["systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", "llm-*"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False,
    )  # fmt: skip
    named = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    enabled = {path.name for path in _systemd().glob("*.wants/llm-*")}
    return sorted(named | enabled)


def _systemd() -> Path:
    return layout.etc_root() / "systemd/system"


def manifest(*, models: bool) -> tuple[list[Path], list[str]]:
    """(what is ours and goes, in that order; what stays, in words)."""
    etc, root = layout.etc_root(), layout.llm_root()
    found = [
        *sorted(_systemd().glob("*.wants/llm-*")),
        *sorted(
            path
            for path in _systemd().glob("llm-*")
            if path.name.endswith((".service", ".socket", ".timer", ".service.d"))
        ),
    ]
    nginx, kept = _nginx_files()
    found += nginx
    found += [
        etc / "sysusers.d/llm-fleet.conf",
        etc / "tmpfiles.d/llm-fleet.conf",
        etc / "apt/apt.conf.d/52llm-driver-hold",
        *sorted((etc / "sysctl.d").glob("*llm-map-count.conf")),
        etc / "llm",
        etc / "llm-gateway",
        layout.run_root() / "llm",
        *sorted(layout.run_root().glob("llm-*")),
        *sorted(layout.state_root().glob("llm-*")),
        *sorted(layout.cache_root().glob("llm-*")),
        layout.log_root() / "llm",
    ]
    if models:
        found.append(root)
    else:
        inside = sorted(root.iterdir()) if root.is_dir() else []
        found += [path for path in inside if path.name not in KEPT_WITH_MODELS]
        log = events.events_path()
        state = sorted((root / "state").iterdir()) if (root / "state").is_dir() else []
        found += [path for path in state if path != log]
        kept += [f"{root / 'models'}: the models", f"{log}: what was done here, by whom"]
    return [path for path in found if path.exists() or path.is_symlink()], kept


def _nginx_files() -> tuple[list[Path], list[str]]:
    """Files of Nginx as we wrote them; what somebody has changed since is theirs."""
    document = durable.read_json(layout.llm_root() / "state" / "nginx.json") or {}
    ours, kept = [], []
    for name, digest in (document.get("files") or {}).items():
        path = layout.etc_root() / str(name).removeprefix("/etc/")
        if not path.is_file():
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            ours.append(path)
        else:
            kept.append(f"{path}: changed by hand since")
    return ours, kept


def _stop(units: list[str]) -> None:
    if not units:
        return
    systemctl.call(["stop", *units], STOP_SECONDS)
    running = [
        unit
        for unit in units
        if systemctl.show(unit, ["ActiveState"])["ActiveState"] not in SETTLED
    ]
    if running:
        raise HostError(
            f"{', '.join(running)} did not stop",
            "systemd was asked to stop it, and it is still there; nothing was removed.",
            "Look at 'systemctl status' of it, then run the same command again.",
        )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # A mount below it, such as a disk for models, is emptied and stays.
        shutil.rmtree(path, ignore_errors=True)
        if path.exists() and any(path.iterdir()):
            raise HostError(
                f"{path} could not be removed",
                "something in it stays: a read-only file system, or somebody writes into it.",
                "Look at what is left there, then run the same command again.",
            )
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _reload_nginx() -> None:
    shown = systemctl.show("nginx.service", ["ActiveState"])
    if shown["ActiveState"] == "active":
        systemctl.call(["reload", "nginx.service"])


def _remove_users(*, models: bool) -> list[str]:
    """Whose models stay keeps its name, so that their owner is no bare number."""
    kept = [] if models else ["user llm-build: the models are its"]
    for user in USERS:
        if user != "llm-build" or models:
            _tool(["userdel", user])
    _tool(["groupdel", GROUP])
    return kept


def _tool(command: list[str]) -> None:
    """6 is 'no such user' of userdel(8) and groupdel(8)."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TOOL_SECONDS,
        check=False,
    )  # fmt: skip
    if done.returncode not in (0, 6):
        raise HostError(
            f"'{' '.join(command)}' failed",
            done.stderr.strip()[:300] or f"exit code {done.returncode}.",
            "See what still runs as that user, then run the same command again.",
        )
