"""What became of a host in its turn, from what its run told and what the host itself says: pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.rollout.policy import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# files/fleet_host/ground.py
PENDING = ("draining", "proving", "switching", "starting", "judging", "reverting")
WORDS = {
    Kind.LIVE: "serves the release",
    Kind.SAME: "served it already",
    Kind.BACK: "went back and serves its previous release",
    Kind.FAILED: "failed before it was switched",
    Kind.AFTER: "serves the release, and what comes after it failed",
    Kind.DOWN: "SERVES NOTHING",
    Kind.LOST: "was not reached to its end",
}

GATEWAY_WORDS = {
    (Kind.BACK, "back"): "its gateway went back to what it ran before",
    (Kind.FAILED, "runs"): "its gateway runs, but not as a client needs it",
}


@dataclass(frozen=True)
class Outcome:
    """release: the one that was to come. serves: the one that serves now, None where none does or
    nobody knows. reason, fix, lines: of a failure; lines are the host's last words. gates, seconds:
    as the go-live told them."""

    host: str
    kind: Kind
    release: str | None = None
    serves: str | None = None
    reason: str = ""
    fix: str = ""
    lines: tuple[str, ...] = ()
    gates: Mapping[str, Any] | None = None
    seconds: float | None = None
    drained: bool | None = None
    notes: tuple[str, ...] = field(default=())
    # Of a host whose gateway failed and no release with it: "back", or "runs" (operations/go_live).
    gateway: str = ""

    @property
    def in_words(self) -> str:
        words = GATEWAY_WORDS.get((self.kind, self.gateway)) or WORDS[self.kind]
        if self.kind is Kind.FAILED and self.release and self.serves == self.release:
            words = "serves the release, but a step after that failed"
        return f"{self.host}: {words}" + (f": {self.reason}" if self.reason else "")


def succeeded(host: str, wanted: str | None, told: Mapping[str, Any] | None) -> Outcome:
    """Of a host whose run ended well. told: {result} of a go-live; None where it needed none."""
    result = (told or {}).get("result")
    result = result if isinstance(result, dict) else {}
    release = str(result.get("release") or "") or wanted
    return Outcome(
        host, Kind.LIVE, release, release, gates=result.get("gates"),
        seconds=result.get("seconds"), drained=result.get("drained"),
        notes=tuple(map(str, result.get("warnings") or ())),
    )  # fmt: skip


def failed(
    host: str,
    rollout: str,
    wanted: str | None,
    told: Mapping[str, Any] | None,
    said: Sequence[str],
    seen: Mapping[str, Any] | None,
) -> Outcome:
    """Of a host whose run did not end well.

    told: {error: {what, why, fix, detail}, back_to?} of its go-live, where it came to that. said:
    what the run printed of it. seen: its `rollout status` afterwards, None: not reached; its
    engine's `answers`, where a go-live has failed, tells whether it answers a completion.
    """
    error = (told or {}).get("error")
    error = error if isinstance(error, dict) else {}
    detail = tuple(map(str, error.get("detail") or ()))
    reason = " ".join(filter(None, (str(error.get("what") or ""), str(error.get("why") or ""))))
    release = (told or {}).get("release") or wanted
    engine = (seen or {}).get("engine") or {}
    kind, serves = _kind(rollout, told or {}, seen, engine)
    reason = reason or _reason(said, seen, engine)
    gateway = str((told or {}).get("gateway") or "")
    dead = _dead_gateway(seen)
    if dead and kind in (Kind.FAILED, Kind.BACK):
        # Whatever its engine does: no client gets there.
        kind, reason = Kind.DOWN, f"{dead}; {reason}"
    elif gateway == "back" and kind is Kind.FAILED:
        kind = Kind.BACK
    return Outcome(
        host, kind, release, serves,
        reason=reason,
        fix=str(error.get("fix") or ""),
        lines=detail or tuple(said),
        gateway=gateway,
    )  # fmt: skip


def _dead_gateway(seen: Mapping[str, Any] | None) -> str:
    """What of a host's gateway does not run, empty where all does and where none was ever there."""
    gateway = (seen or {}).get("gateway") or {}
    if not gateway.get("current"):
        return ""
    units = {"llm-gateway.service": gateway.get("service"), "nginx.service": gateway.get("nginx")}
    dead = [f"{unit} is {state}" for unit, state in units.items() if state != "active"]
    if not dead and gateway.get("answers") is False:
        dead = ["llm-gateway.service does not answer"]
    return ", ".join(dead)


def _kind(
    rollout: str,
    told: Mapping[str, Any],
    seen: Mapping[str, Any] | None,
    engine: Mapping[str, Any],
) -> tuple[Kind, str | None]:
    if seen is None:
        return Kind.LOST, None
    golive = engine.get("golive") or {}
    ours, phase = golive.get("run") == rollout, golive.get("phase")
    started = engine.get("started")
    serves = started if engine.get("active") == "active" else None
    if _at_work(engine):
        return Kind.LOST, None
    if ours and phase in PENDING:
        return Kind.DOWN if serves is None else Kind.LOST, serves
    if ours and phase == "failed":
        # A restart of what it ran before has nothing to go back to, and serves where only its
        # gates failed. That its process runs proves nothing: it has to answer.
        answers = serves is not None and engine.get("answers") is True
        return (Kind.FAILED, serves) if answers else (Kind.DOWN, None)
    if ours and (phase == "reverted" or (told.get("back_to") and told["back_to"] == serves)):
        return (Kind.BACK if serves else Kind.DOWN), serves
    # Nothing of it was ever switched: whether the host serves is as it was before.
    down = serves is None and engine.get("current") is not None
    return (Kind.DOWN if down else Kind.FAILED), serves


def _at_work(engine: Mapping[str, Any]) -> bool:
    return engine.get("golive_active") in ("active", "activating", "deactivating")


def _reason(said: Sequence[str], seen: Mapping[str, Any] | None, engine: Mapping[str, Any]) -> str:
    if seen is None:
        return said[-1] if said else "the host was not reached"
    if _at_work(engine):
        # Not --resume: with a lost host the rollout is over, and the next one takes what it finds.
        return "its go-live is still at work, and ends by itself; then run the same command again"
    return said[-1] if said else "its run ended without a word"


def from_status(
    host: str, rollout: str, wanted: str | None, seen: Mapping[str, Any] | None
) -> Outcome | None:
    """What became of a host in an interrupted rollout, by what it says now; None: its turn is still
    to come, or was cut off and is taken again."""
    engine = (seen or {}).get("engine") or {}
    golive = engine.get("golive") or {}
    ours, phase = golive.get("run") == rollout, golive.get("phase")
    if seen is None or _at_work(engine) or phase in PENDING:
        return None
    serves = engine.get("started") if engine.get("active") == "active" else None
    if serves is not None and serves == wanted and phase in ("done", None):
        return Outcome(host, Kind.LIVE if ours else Kind.SAME, wanted, serves)
    if ours and phase == "reverted" and serves:
        return Outcome(host, Kind.BACK, wanted, serves, reason=str(golive.get("cause") or ""))
    return None
