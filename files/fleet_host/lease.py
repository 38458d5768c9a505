"""One run at a time changes a host: the lease, and the generation that its plan saw.

{llm_root}/state/lease.json   who has it: owner, machine, run, pid, pid_start, since, until, ...
{llm_root}/state/generation   how often it was taken; a plan made at another number is stale

Both change under flock on state/lease.lock. The expiry is wall-clock time, because it has to hold
across a reboot of the host.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import durable, events, fields, layout
from .errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAXIMUM_TTL_SECONDS = 24 * 3600
FIELDS = ("owner", "machine", "run", "pid", "pid_start")
TEXTS, NUMBERS = ("owner", "machine", "run"), ("since", "until", "ttl_seconds")


def _state() -> Path:
    return layout.llm_root() / "state"


@contextmanager
def _locked() -> Iterator[Path]:
    state = _state()
    durable.make_directories(state, mode=0o750)
    lock = state / "lease.lock"
    with durable.writing(lock):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield state
    finally:
        os.close(descriptor)


def _generation(state: Path) -> int:
    try:
        return int((state / "generation").read_text())
    except FileNotFoundError:
        return 0
    except (ValueError, IsADirectoryError) as error:
        raise HostError(
            f"{state / 'generation'} does not hold a number",
            f"{error}.",
            "Somebody else changed it: remove it, together with lease.json, and run again.",
        ) from error


def _read(state: Path) -> dict[str, Any] | None:
    """The lease, None without one. HostError when it is not what this program writes."""
    path = state / "lease.json"
    held = durable.read_json(path)
    if held is None and not path.exists():
        return None
    wrong = _malformed(held)
    if wrong:
        raise HostError(
            f"{path} is no lease",
            f"{wrong}, so it does not tell who is at work on this host.",
            "Somebody else changed it. See that no deploy is running, then 'sudo rm "
            f"{path}' on the host and run again.",
        )
    lease: dict[str, Any] = held
    return lease


def _malformed(held: Any) -> str:
    """What is wrong with a lease, in words; empty for a good one."""
    if not isinstance(held, dict):
        return f"it holds {str(held)[:40]!r} instead of an object"
    for key in TEXTS:
        if not isinstance(held.get(key), str):
            return f"its '{key}' is {held.get(key)!r}, not a text"
    for key in NUMBERS:
        value = held.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"its '{key}' is {value!r}, not a number"
        if isinstance(value, float) and not math.isfinite(value):
            return f"its '{key}' is {value!r}, not a time"
    return ""


def _clock(epoch_seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(epoch_seconds))
    except (ValueError, OverflowError, OSError):
        return f"{epoch_seconds:g} s after 1970"


def _live(lease: dict[str, Any] | None, now: float) -> bool:
    # Neither a clock that was set back nor a lease that somebody else wrote lasts for ever: how
    # long one may be is bounded too.
    if lease is None:
        return False
    left, longest = lease["until"] - now, min(lease["ttl_seconds"], MAXIMUM_TTL_SECONDS)
    return bool(0 < left <= longest)


def acquire(asked: dict[str, Any]) -> dict[str, Any]:
    """`lease acquire` {owner, machine, run, pid, pid_start, ttl_seconds, generation_seen,
    steal_run?} -> {generation, lease, taken_over: run or null}.

    generation_seen: null skips the comparison (a procedure without a plan). steal_run: the run
    whose process the same machine has found dead. The same run asking again renews.
    """
    run = fields.text(asked, "run")
    ttl = fields.whole(asked, "ttl_seconds")
    seen = asked.get("generation_seen")
    with _locked() as state:
        now = time.time()
        held = _read(state)
        generation = _generation(state)
        if held is not None and held["run"] == run and _live(held, now):
            return {
                "generation": generation,
                "lease": _write(state, held, now, ttl),
                "taken_over": None,
            }
        stolen = False
        if held is not None and _live(held, now):
            stolen = held["run"] == asked.get("steal_run")
            if not stolen:
                raise _held_by_another(held)
            if _machine(held["machine"]) != _machine(fields.text(asked, "machine")):
                raise HostError(
                    f"the lease of run {held['run']} cannot be taken over from here",
                    f"it was taken on {held['machine']}; only that machine can tell a dead run.",
                    f"Run from there, or wait until {_clock(held['until'])}.",
                )
        if seen is not None and seen != generation:
            raise _stale(seen, generation)
        lease = {key: asked.get(key) for key in FIELDS}
        lease |= {"run": run, "since": now, "generation": generation + 1}
        # The generation first: a kill between the two leaves a number that nobody saw, which
        # makes the next plan be made again; the other order would let two plans have one number.
        durable.write_file(state / "generation", f"{generation + 1}\n")
        lease = _write(state, lease, now, ttl)
    taken_over = held["run"] if held is not None else None
    if taken_over is not None:
        how = (
            "its run was found dead" if stolen else "it had expired, or was longer than one may be"
        )
        events.record("lease taken over", lease["owner"], run=run, from_run=taken_over, why=how)
    return {"generation": generation + 1, "lease": lease, "taken_over": taken_over}


def _machine(identity: str) -> str:
    """HOST NAME:MACHINE ID without the :BOOT ID behind it, which a reboot changes."""
    return ":".join(str(identity).split(":")[:2])


def _write(state: Path, lease: dict[str, Any], now: float, ttl_seconds: int) -> dict[str, Any]:
    ttl = min(ttl_seconds, MAXIMUM_TTL_SECONDS)
    lease = {**lease, "renewed": now, "until": now + ttl, "ttl_seconds": ttl}
    durable.write_json(state / "lease.json", lease)
    return lease


def _held_by_another(held: dict[str, Any]) -> HostError:
    machine = str(held["machine"]).split(":", 1)[0]
    return HostError(
        "another run is at work on this host",
        f"run {held['run']} of {held['owner']} (on {machine}, process {held.get('pid')}) has held "
        f"the lease since {_clock(held['since'])}, at the longest until {_clock(held['until'])}.",
        f"Wait for it. If it was killed: a run from {machine} takes over at once, one from "
        "elsewhere when the lease has ended. If it is certain that nobody is at work: 'sudo rm "
        f"{_state() / 'lease.json'}' on the host.",
    )


def _stale(seen: object, generation: int) -> HostError:
    return HostError(
        "the host has changed since it was planned",
        f"the plan saw generation {seen}, the host is at {generation}: another run was here.",
        "Run the same command again; it plans anew.",
    )


def renew(asked: dict[str, Any]) -> dict[str, Any]:
    """`lease renew` {run, ttl_seconds} -> {lease}. HostError when the run does not hold it."""
    run = fields.text(asked, "run")
    ttl = fields.whole(asked, "ttl_seconds")
    with _locked() as state:
        held = _read(state)
        if held is None or held["run"] != run:
            now_with = f"run {held['run']} of {held['owner']} has it" if held else "nobody has it"
            raise HostError(
                "this run no longer holds the host's lease",
                f"it ended or was given back, and now {now_with}.",
                "Run the same command again; it plans anew.",
            )
        return {"lease": _write(state, held, time.time(), ttl)}


def release(asked: dict[str, Any]) -> dict[str, Any]:
    """`lease release` {run} -> {released: bool}; false when the run does not hold it (any more)."""
    run = fields.text(asked, "run")
    with _locked() as state:
        held = _read(state)
        if held is None or held["run"] != run:
            return {"released": False}
        durable.remove_file(state / "lease.json")
    return {"released": True}


def status(_asked: dict[str, Any]) -> dict[str, Any]:
    """`lease status` {} -> {lease or null, live, generation}."""
    with _locked() as state:
        held = _read(state)
        return {"lease": held, "live": _live(held, time.time()), "generation": _generation(state)}
