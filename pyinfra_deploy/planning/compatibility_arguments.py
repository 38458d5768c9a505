"""engine.args against the version: arguments that are gone, deprecated, not there yet, misspelt, or
wrong together.

Two tables: engine_arguments.yml has a few arguments over many versions, with what took their place;
vllm_serve.tsv (serve_flags.py) every argument of a few versions. Where neither has looked, that is
said; the installed vLLM is asked before anything is switched.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.listed_arguments import listed_findings, replacement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

    from pyinfra_deploy.planning.tables.rows import Argument, Combination
    from pyinfra_deploy.settings.schema import Settings


@functools.cache
def _by_name() -> dict[str, Argument]:
    return {row.name: row for row in tables.engine_arguments().arguments}


def argument_findings(host: str, settings: Settings, version: Version) -> Iterator[Finding]:
    for name, value in settings.engine.args.items():
        row = _by_name().get(name.split(".", 1)[0])
        if row is None:
            yield from listed_findings(host, name, value, version)
        else:
            yield from _one(host, name, value, row, version)
    for combination in tables.engine_arguments().combinations:
        yield from _combined(host, settings, combination, version)


def _one(host: str, name: str, value: Any, row: Argument, version: Version) -> Iterator[Finding]:
    subject, evidence = f"engine.args.{name}", f"{name}: {_shown(value)}"
    advice = row.advice or "remove the line, or raise runtime.vllm"
    instead = f"{row.instead} takes its place{_since(row.instead)}: {advice}"
    instead = instead if row.instead else advice
    source = tables.engine_arguments().source
    if row.never:
        yield Finding(
            "compat.argument-never",
            "refuse",
            host,
            subject,
            f"no version of vllm serve has had {name}; it would not start",
            advice,
            evidence,
            source,
        )
        return
    place = row.place(version)
    if place == "gone":
        yield Finding(
            "compat.argument-gone",
            "refuse",
            host,
            subject,
            f"vLLM {version} does not have {name} any more (last seen in {row.last}); it would not "
            "start",
            instead,
            evidence,
            source,
        )
    elif place == "before":
        yield Finding(
            "compat.argument-not-yet",
            "refuse",
            host,
            subject,
            f"vLLM {version} does not have {name} yet (first seen in {row.first}); it would not "
            "start",
            f"raise runtime.vllm to {row.first} or newer; or: {instead}",
            evidence,
            source,
        )
    elif place == "unknown":
        late = row.last is not None and version > row.last
        between = (row.last, row.gone) if late else (row.absent_in, row.first)
        yield Finding(
            "compat.argument-unknown",
            "warn",
            host,
            subject,
            f"{name} {'went' if late else 'came'} between vLLM {between[0]} and {between[1]}, and "
            f"{version} lies between: it is not known whether it has it",
            f"{instead}; or look: vllm serve --help=all | grep -e --{name}",
            evidence,
            source,
        )
    elif row.deprecated is not None and version >= row.deprecated:
        ends = f" and ends with {row.last}" if row.last else ""
        yield Finding(
            "compat.argument-deprecated",
            "warn",
            host,
            subject,
            f"{name} is deprecated in vLLM {version}{ends}",
            instead,
            evidence,
            source,
        )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _since(name: str | None) -> str:
    """From when on the replacement is there, where that was looked at."""
    row = _by_name().get(name or "")
    if row is None or row.first is None or row.absent_in is None:
        return ""
    return f" (not yet in {row.absent_in}, there in {row.first})"


def gone_advice(arguments: dict[str, Any], version: Version) -> dict[str, str]:
    """What to write in place of arguments that are not in this version, by name: for the host,
    which knows only its own vLLM."""
    advice: dict[str, str] = {}
    for name in arguments:
        base = name.split(".", 1)[0]
        row = _by_name().get(base)
        if row is None:
            known = replacement(base)
            advice |= {base: f"{known}."} if known else {}
            continue
        if row.never or row.place(version) == "there":
            continue
        said = row.advice or "remove the line"
        instead = f"{row.instead} takes its place{_since(row.instead)}: " if row.instead else ""
        last = f"It was last seen in {row.last}. " if row.last else ""
        advice[base] = f"{last}{instead}{said}."
    return advice


def _combined(
    host: str, settings: Settings, row: Combination, version: Version
) -> Iterator[Finding]:
    device = settings.runtime.device if settings.runtime else "cuda"
    if row.device not in (None, device):
        return
    if row.from_ is not None and version < row.from_:
        return
    if row.before is not None and version >= row.before:
        return
    arguments = settings.engine.args
    if not all(_holds(arguments, name, wanted) for name, wanted in row.when.items()):
        return
    yield Finding(
        "compat.argument-combination",
        row.severity,
        host,
        " and ".join(f"engine.args.{name}" for name in row.when),
        row.message,
        row.fix,
        evidence=", ".join(f"{name}: {_shown(arguments[name])}" for name in row.when)
        + f" with vLLM {version} on {device}",
        source=row.source,
    )


def _holds(arguments: dict[str, Any], name: str, wanted: bool | str | None) -> bool:
    if name not in arguments:
        return False
    value = arguments[name]
    if isinstance(wanted, str) and wanted.startswith(">"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and value > float(wanted[1:])
    return wanted is None or value == wanted
