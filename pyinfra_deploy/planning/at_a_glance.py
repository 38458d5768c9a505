"""A host at a glance: release, engine, model, drain, certificate, GPUs. Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import wanted
from pyinfra_deploy.planning.hold import read_hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.settings.schema import Settings

# files/fleet_host/ground.py
PENDING = ("draining", "proving", "switching", "starting", "judging", "reverting")
GOOD, WARN, BAD = "good", "warn", "bad"
SOON_DAYS = 60
# ssl.SSLSocket.getpeercert()'s form of a certificate's times.
CERTIFICATE_TIME = "%b %d %H:%M:%S %Y %Z"


def glance(
    settings: Settings,
    groups: frozenset[str],
    snapshot: Mapping[str, Any],
    findings: Iterable[Finding],
    now: datetime.datetime,
) -> dict[str, Any]:
    """{release, wanted?, engine, model, drain, certificate, gpus, state}; each but the first is
    {text, state}, state: good, warn or bad; the host's own is the worst of them. None: it has no
    such part."""
    name = settings.engine.name
    engine = (snapshot.get("engines") or {}).get(name) or {}
    gpu = "gpu" in groups
    parts: dict[str, Any] = {
        "engine": _engine(name, engine, snapshot) if gpu else None,
        "model": _model(settings, engine, snapshot) if gpu else None,
        "drain": _drain(engine) if gpu else None,
        "hold": _hold(engine) if gpu else None,
        "certificate": _certificate(snapshot, now) if "gateway" in groups else None,
        "gpus": _gpus(findings) if gpu else None,
    }
    states = [part["state"] for part in parts.values() if part is not None]
    worst = next((state for state in (BAD, WARN) if state in states), GOOD)
    return {"release": engine.get("current") if gpu else None, **parts, "state": worst}


def _part(text: str, state: str = GOOD) -> dict[str, str]:
    return {"text": text, "state": state}


def _engine(name: str, engine: Mapping[str, Any], snapshot: Mapping[str, Any]) -> dict[str, str]:
    units = snapshot.get("units") or {}
    unit = units.get(f"llm-engine@{name}.service") or {}
    golive = units.get(f"llm-golive@{name}.service") or {}
    active = str(unit.get("active") or "absent")
    if golive.get("active") in ("active", "activating"):
        phase = (engine.get("golive") or {}).get("phase")
        return _part(f"being switched to {engine.get('golive_asked')} ({phase})", WARN)
    if not engine.get("current"):
        return _part("nothing is live yet", WARN)
    stopped = engine.get("stopped")
    if isinstance(stopped, dict):
        return _part(f"stopped by {stopped.get('who')}: {stopped.get('why')}", BAD)
    if active != "active":
        restarts = int(unit.get("restarts") or 0)
        again = f", started again {restarts} times in vain" if restarts else ""
        return _part(f"{active}{again}", BAD)
    started = (engine.get("started") or {}).get("release")
    if started != engine.get("current"):
        return _part(f"runs {started}, not what is current", BAD)
    if not engine.get("socket"):
        return _part("loads", WARN)
    return _unjudged(engine) or _part("serves")


def _unjudged(engine: Mapping[str, Any]) -> dict[str, str] | None:
    """Of a go-live that ended without its end, which none is at work to mend."""
    golive = engine.get("golive")
    phase, to = (golive.get("phase"), golive.get("to")) if isinstance(golive, dict) else (None, "")
    ended = f"the go-live to {to} ended before it was judged"
    if phase == "undone":
        return _part(f"serves; {ended}, and was undone", WARN)
    if phase in PENDING:
        return _part(f"serves; {ended}: deploy again, which ends it", WARN)
    return None


def _model(
    settings: Settings, engine: Mapping[str, Any], snapshot: Mapping[str, Any]
) -> dict[str, str]:
    live = (engine.get("releases") or {}).get(engine.get("current"))
    path = str(live.get("model") or "") if isinstance(live, dict) else ""
    slug, _, revision = path.rpartition("/")
    slug = slug.rpartition("/")[2] or (wanted.model_slug(settings) if settings.model else "")
    found = ((snapshot.get("models") or {}).get(slug) or {}).get(revision)
    if not isinstance(found, dict):
        return _part("none" if not path else f"{slug}: nothing is known of it", WARN)
    record = found.get("record") if isinstance(found.get("record"), dict) else {}
    assert record is not None
    when = record.get("deep_verified_at") or record.get("verified_at") or "never"
    if not found.get("intact"):
        problems = found.get("problems") or ["not as it was recorded"]
        return _part(f"{slug}: {problems[0]}", BAD)
    return _part(f"{slug}: whole, verified {when}")


def _drain(engine: Mapping[str, Any]) -> dict[str, str]:
    flag = engine.get("drained")
    if not isinstance(flag, dict):
        return _part("in service")
    return _part(
        f"drained by {flag.get('by') or 'somebody'}: {flag.get('reason') or 'no reason'}", WARN
    )


def _hold(engine: Mapping[str, Any]) -> dict[str, str] | None:
    hold = read_hold(engine.get("hold"))
    return _part(f"held at {hold.kept} by {hold.who}: {hold.why}", WARN) if hold else None


def _certificate(snapshot: Mapping[str, Any], now: datetime.datetime) -> dict[str, str]:
    found = (snapshot.get("gateway") or {}).get("certificate")
    text = found.get("not_after") if isinstance(found, dict) else None
    if not isinstance(text, str):
        return _part("none that can be read", BAD)
    try:
        # strptime gives no zone for "GMT", which is the only one that there is (RFC 5280).
        end = datetime.datetime.strptime(text, CERTIFICATE_TIME).replace(tzinfo=datetime.UTC)
    except ValueError:
        return _part(f"its end, {text!r}, cannot be read", BAD)
    days = (end - now).days
    state = BAD if days < 0 else WARN if days < SOON_DAYS else GOOD
    return _part(f"until {end:%Y-%m-%d} ({days} days)", state)


def _gpus(findings: Iterable[Finding]) -> dict[str, str]:
    about = [one for one in findings if one.id.startswith(("gpu.", "driver."))]
    refused = [one.id for one in about if one.severity == "refuse"]
    warned = [one.id for one in about if one.severity == "warn"]
    if refused:
        return _part(", ".join(sorted(set(refused))), BAD)
    return _part(", ".join(sorted(set(warned))), WARN) if warned else _part("healthy")
