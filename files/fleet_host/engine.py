"""An engine on its host: its directory, its unit, what it runs, and its drain flag."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

from . import durable, fields, jobs, layout, snapshot, systemctl
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

UNIT_PROPERTIES = [
    "LoadState",
    "LoadError",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "Result",
    "MainPID",
    "NRestarts",
    "InvocationID",
    "ExecMainCode",
    "ExecMainStatus",
    "CPUUsageNSec",
]
DRAINED_BY_GO_LIVE = "go-live"
# Lines of a release's config.yaml (pyinfra_deploy/planning/release.py, sorted and flat). A length
# written otherwise ("16k", auto) is the engine's to say.
_LENGTH = re.compile(r"^max-model-len: ([1-9][0-9]{0,8})$", re.MULTILINE)
_PRIORITY = re.compile(r"^scheduling-policy: priority$", re.MULTILINE)


def name_of(request: dict[str, Any], key: str = "engine") -> str:
    """A name that is safe as a directory and as a unit's instance. SpecError."""
    value = fields.text(request, key)
    if not jobs.IDENTIFIER.fullmatch(value):
        raise SpecError(
            f"the spec's '{key}' is {value!r}",
            "it must be letters, digits, '.', '_' and '-', beginning with a letter or digit.",
            "Correct it.",
        )
    return value


def home(engine: str) -> Path:
    return layout.llm_root() / "engines" / engine


def release_directory(engine: str, release: str) -> Path:
    return home(engine) / "releases" / release


def run_directory(engine: str) -> Path:
    """The unit's RuntimeDirectory, gone whenever the unit is down."""
    return layout.run_root() / f"llm-engine-{engine}"


def socket_path(engine: str) -> Path:
    return run_directory(engine) / "http.sock"


def linked(engine: str, link: str) -> str | None:
    """The release that `current` or `previous` names, there or not; None without the link, and
    where it points at anything but a place in releases/."""
    return snapshot.release_in(str(home(engine)), link)


def on_disk(engine: str, release: str | None) -> bool:
    """Whether a release is there in full: staging publishes all of its files or none."""
    if not release:
        return False
    directory = release_directory(engine, release)
    whole = durable.read_object(directory / "release.json") is not None
    files = all((directory / name).is_file() for name in ("config.yaml", "env"))
    return whole and files and (directory / "runtime").is_symlink()


def link(engine: str, name: str, release: str | None) -> None:
    """Point `current` or `previous` at a release, atomically and durably; None removes it."""
    path = home(engine) / name
    if release is None:
        durable.remove_file(path)
    elif linked(engine, name) != release:
        durable.replace_symlink(path, f"releases/{release}")


def binding_digest(engine: str, release: str) -> str | None:
    """Of the release's own binding (binding.py); of the engine's for a release that was staged
    before releases had one. The units' EnvironmentFile= lines decide the same."""
    for path in (release_directory(engine, release), home(engine)):
        with contextlib.suppress(FileNotFoundError):
            return hashlib.sha256((path / "binding.env").read_bytes()).hexdigest()
    return None


def started(request: dict[str, Any]) -> dict[str, Any]:
    """`engine started` ENGINE, the unit's ExecStartPre: note what this start is going to run.

    {release, binding, model_mended, invocation} in /run/llm-engine-ENGINE/started.json, removed by
    systemd with the directory when the unit goes down: whether to restart is decided by comparing
    it with what is on disk. A release never changes once staged, so its ID says it all; of its
    model only damaged files are ever replaced, and model_mended tells. Beside it ready.json, the
    answer of the host's door to gateways while the engine is well (gateway/llm_gateway/serves.py).
    """
    engine = name_of(request)
    release = linked(engine, "current")
    if release is None:
        place = home(engine) / "current"
        seen = f"it points at {place.readlink()}" if place.is_symlink() else "it does not exist"
        raise HostError(
            f"engine {engine} has no release to run",
            f"{place} names none of {place.parent / 'releases'}: {seen}.",
            "Run the deploy; it stages a release and goes live.",
        )
    document = {
        "release": release,
        "binding": binding_digest(engine, release),
        "model_mended": model_mended(engine, release),
        "invocation": os.environ.get("INVOCATION_ID", ""),
    }
    _note(engine, "started.json", document)
    _note(
        engine, "ready.json", {"ready": True, "draining": False, "serves": serves(engine, release)}
    )
    return document


def _note(engine: str, name: str, document: dict[str, Any]) -> None:
    path = run_directory(engine) / name
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # No fsync: /run is memory, and after a power cut nothing runs.
    temporary.write_text(json.dumps(document) + "\n")
    temporary.replace(path)


def serves(engine: str, release: str) -> dict[str, Any] | None:
    """{release, model, max_model_len, priority_scheduling} of a staged release, as gateways have to
    ask it; None for one that does not name its model."""
    directory = release_directory(engine, release)
    model = (durable.read_object(directory / "release.json") or {}).get("served_model_name")
    path = directory / "config.yaml"
    if not model or not path.is_file():
        return None
    arguments = path.read_text()
    length = _LENGTH.search(arguments)
    return {
        "release": release,
        "model": model,
        "max_model_len": int(length[1]) if length else None,
        "priority_scheduling": _PRIORITY.search(arguments) is not None,
    }


def model_mended(engine: str, release: str) -> str | None:
    """When files of the release's model were last found damaged and replaced; None: never. An
    engine that was started before may have loaded them as they were."""
    link = release_directory(engine, release) / "model"
    model = link.readlink() if link.is_symlink() else None
    record = durable.read_json(model.with_name(f"{model.name}.json")) if model else None
    mended = record.get("mended") if isinstance(record, dict) else None
    return str(mended.get("when")) if isinstance(mended, dict) else None


def read_started(engine: str) -> dict[str, Any]:
    """What `started` wrote, empty when the engine is down or has never run."""
    try:
        document = json.loads((run_directory(engine) / "started.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def unit_state(unit: str) -> dict[str, str]:
    """The unit's properties as systemd prints them. HostError when systemd cannot load it."""
    shown = systemctl.show(unit, UNIT_PROPERTIES)
    if shown["LoadState"] not in ("loaded", ""):
        raise HostError(
            f"systemd cannot load {unit}",
            f"{shown['LoadState']}: {shown['LoadError'] or 'the unit file is missing or wrong.'}",
            "Run the deploy, which installs the units.",
        )
    return shown


def cpu_seconds(shown: dict[str, str]) -> float | None:
    """CPU time of the unit's whole cgroup; None without CPUAccounting ("[not set]")."""
    value = shown["CPUUsageNSec"]
    # 2^64-1 is systemd's "not known".
    known = value.isdigit() and int(value) < (1 << 64) - 1
    return int(value) / 1e9 if known else None


def journal(unit: str, invocations: list[str], since_epoch_seconds: float, lines: int) -> list[str]:
    """The last lines of runs of the unit and what systemd said of them; without an invocation,
    those since a moment of wall time, in which the end of the run before may be."""
    known = dict.fromkeys(invocation for invocation in invocations if invocation)
    if not known:
        # With --since, journalctl of systemd 252 takes --lines from the oldest one on, 257 from the
        # newest; reversed, both begin at the newest.
        since = f"--since=@{int(since_epoch_seconds)}"
        newest = ["--output=cat", "--reverse", f"--lines={lines}", f"--unit={unit}", since]
        return _journalctl(newest)[::-1]
    # The unit's own lines and, by the second field, systemd's (systemd.journal-fields(7)).
    own = [f"_SYSTEMD_INVOCATION_ID={invocation}" for invocation in known]
    of_systemd = [f"INVOCATION_ID={invocation}" for invocation in known]
    return _journalctl(["--output=cat", f"--lines={lines}", *own, "+", *of_systemd])


def journal_position(unit: str) -> str:
    """A text that changes with every new line of the unit's journal."""
    # Without --since, which with systemd 252 shows the oldest line for ever.
    return "\n".join(_journalctl(["--show-cursor", "--lines=1", f"--unit={unit}"]))


def _journalctl(arguments: list[str]) -> list[str]:
    command = ["journalctl", "--no-pager", "--quiet", *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=systemctl.CALL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"(the journal could not be read: {error})"]
    return (done.stdout if done.returncode == 0 else done.stderr).splitlines()


# --- the drain flag: while it exists Nginx answers new requests 503; running streams go on


def drain_flag(engine: str) -> Path:
    return layout.run_root() / "llm" / "drain" / engine


def raise_drain_flag(engine: str, by: str, reason: str) -> None:
    """Ask Nginx for no new requests. Another's flag (an operator's) stays as it is."""
    flag = drain_flag(engine)
    flag.parent.mkdir(parents=True, exist_ok=True)
    document = json.dumps({"by": by, "reason": reason, "since": int(time.time())})
    with contextlib.suppress(FileExistsError), flag.open("x") as handle:
        handle.write(document + "\n")


def lower_drain_flag(engine: str, by: str) -> bool:
    """Remove the flag if it is `by`'s, or unreadable; whether the engine takes requests again."""
    flag = drain_flag(engine)
    try:
        document = json.loads(flag.read_text())
    except FileNotFoundError:
        return True
    except ValueError:
        document = {"by": by}  # a run killed between creating and writing it
    if isinstance(document, dict) and document.get("by", by) != by:
        return False
    flag.unlink(missing_ok=True)
    return True
