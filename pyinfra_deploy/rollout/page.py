"""A run as one HTML page that needs nothing else: no script, no font, no image from elsewhere."""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from pyinfra_deploy.rollout.foresee import canaries

if TYPE_CHECKING:
    from collections.abc import Mapping

TEMPLATES = Path(__file__).resolve().parents[2] / "templates" / "reports"
MARKS = {
    "live": ("good", "serves the release"),
    "same": ("good", "served it already"),
    "back": ("bad", "went back"),
    "failed": ("bad", "failed before the switch"),
    "after": ("bad", "serves the release; what comes after it failed"),
    "down": ("worst", "serves nothing"),
    "lost": ("worst", "not reached"),
    None: ("waiting", "not begun"),
}


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("rollout.html.j2")


def render(document: Mapping[str, Any]) -> str:
    """document: a record's (record.py), masked."""
    hosts = [
        {"name": name, "mark": _mark(document, host), "outcome": host.get("outcome") or {}, **host}
        for name, host in document["hosts"].items()
    ]
    by_name = {host["name"]: host for host in hosts}
    groups = [[by_name[name] for name in group if name in by_name] for group in document["groups"]]
    grouped = {name for group in document["groups"] for name in group}
    return _template().render(
        run=document,
        groups=groups,
        canaries=canaries(document["groups"], _models(document)),
        others=[host for host in hosts if host["name"] not in grouped],
        hosts=hosts,
        end=document.get("end"),
        seconds=_seconds(document),
    )


def _models(document: Mapping[str, Any]) -> dict[str, str]:
    hosts: Mapping[str, Mapping[str, Any]] = document["hosts"]
    return {name: str(host["model"]) for name, host in hosts.items() if host.get("model")}


def _mark(document: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[str, str]:
    """A deploy or a runbook ends as a whole: what became of one host, its log tells."""
    kind, end = _kind(host), document.get("end")
    if kind is not None or document["options"] or not end:
        return MARKS[kind]
    return ("good", end["what"]) if end["code"] == 0 else ("bad", f"{end['what']}: see the log")


def _kind(host: Mapping[str, Any]) -> str | None:
    outcome = host.get("outcome")
    return str(outcome["kind"]) if outcome else None


def _seconds(document: Mapping[str, Any]) -> int | None:
    end = document.get("end")
    if not end:
        return None
    began, ended = (
        datetime.datetime.fromisoformat(text) for text in (document["began"], end["when"])
    )
    return round((ended - began).total_seconds())
