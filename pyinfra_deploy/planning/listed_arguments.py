"""engine.args against the whole lists of vLLM's arguments: what a version has, how it is written,
and whether it is on its way out. Only what was read in that very version is refused."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.serve_flags import serve_flags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

    from pyinfra_deploy.planning.serve_flags import Cell, ServeFlags
    from pyinfra_deploy.planning.tables.rows import Replaced

LATER = "the installed vLLM is asked before anything is switched"


@functools.cache
def _replaced() -> dict[str, Replaced]:
    return {row.name: row for row in tables.engine_arguments().replaced}


def replacement(name: str) -> str | None:
    """What to write for an argument that is gone, in words; None where nothing is known."""
    row = _replaced().get(name.split(".", 1)[0])
    if row is None:
        return None
    if row.instead is None:
        return row.advice
    since = serve_flags().since(row.instead)
    return f"{row.instead} takes its place{f' ({since})' if since else ''}: {row.advice}"


def listed_findings(host: str, name: str, value: Any, version: Version) -> Iterator[Finding]:
    """What is to be said of one argument that has no row of its own in engine_arguments.yml."""
    table = serve_flags()
    place = table.place(name, version)
    if place == "there":
        cell = table.cell(name, table.around(version)[0] or version)
        if cell is not None:
            yield from _written(host, name, value, version, cell, certain=version in table.versions)
    elif place == "absent":
        yield _absent(host, name, version, table)
    elif place == "between":
        older, newer = table.around(version)
        came = older is not None and table.cell(name, older) is None
        yield _unknown(
            host,
            name,
            "warn",
            f"{name} {'came' if came else 'went'} between vLLM {older} and {newer}, and {version} "
            "lies between: it is not known whether it has it",
        )
    elif table.known_anywhere(name):
        yield _unknown(
            host,
            name,
            "note",
            f"the arguments of vLLM {version} were not read, so it is not known whether it has "
            f"{name}; {_seen(name, table)}",
        )
    else:
        near = table.nearest(name, version)
        meant = f"; is {near[0]} meant?" if near else ""
        yield _unknown(
            host, name, "warn", f"no vLLM that was read has {name} {_read(table)}{meant}"
        )


def _seen(name: str, table: ServeFlags) -> str:
    having = [version for version in table.versions if table.cell(name, version) is not None]
    return f"it is in {', '.join(map(str, having))}"


def _read(table: ServeFlags) -> str:
    return f"({', '.join(map(str, table.versions))})"


def _unknown(host: str, name: str, severity: Any, message: str) -> Finding:
    return Finding(
        "compat.argument-unknown",
        severity,
        host,
        f"engine.args.{name}",
        message,
        f"look: vllm serve --help=all | grep -e --{name}; {LATER}",
        evidence=name,
        source=serve_flags().source,
    )


def _absent(host: str, name: str, version: Version, table: ServeFlags) -> Finding:
    exact = version in table.versions
    base = name.split(".", 1)[0]
    older, newer = table.around(version)
    where = f"vLLM {version} has no argument" if exact else (
        f"neither vLLM {older} nor {newer} has an argument"
    )  # fmt: skip
    end, later = ("; it would not start", "") if exact else ("", f"; {LATER}")
    subject = f"engine.args.{name}"
    having = [one for one in table.versions if table.cell(name, one) is not None]
    near = table.nearest(name, version)
    if having and having[-1] < version:
        without = "remove the line" + (f"; nearest: {', '.join(near)}" if near else "")
        return Finding(
            "compat.argument-gone",
            "refuse" if exact else "warn",
            host,
            subject,
            f"{where} {base} any more (last seen in {having[-1]}){end}",
            (replacement(name) or without) + later,
            evidence=name,
            source=table.source,
        )
    if having and having[0] > version:
        return Finding(
            "compat.argument-not-yet",
            "refuse" if exact else "warn",
            host,
            subject,
            f"{where} {base} yet (first seen in {having[0]}){end}",
            f"raise runtime.vllm to {having[0]} or newer, or remove the line{later}",
            evidence=name,
            source=table.source,
        )
    fix, why = "remove the line", ""
    positive = base.removeprefix("no-")
    if positive != base and table.cell(positive, older or version) is not None:
        why = f": {positive} is off unless it is set"
    elif near:
        fix = f"write {near[0]}" + (f", or one of {', '.join(near[1:])}" if near[1:] else "")
    return Finding(
        "compat.argument-misspelt",
        "refuse" if exact else "warn",
        host,
        subject,
        f"{where} {base}{why}{end}",
        fix + later,
        evidence=name,
        source=table.source,
    )


def _written(
    host: str, name: str, value: Any, version: Version, cell: Cell, *, certain: bool
) -> Iterator[Finding]:
    """Deprecated, or written with a value where it takes none and the other way round."""
    subject, table = f"engine.args.{name}", serve_flags()
    if cell.deprecated:
        yield Finding(
            "compat.argument-deprecated",
            "warn",
            host,
            subject,
            f"{name} is deprecated in vLLM {version}",
            "see what its help says of it: fleet runtime flags, once it is installed",
            evidence=name,
            source=table.source,
        )
    if "." in name or not certain:
        return
    if cell.kind in ("boolean", "switch") and value is not True:
        wrong, fix = "takes no value", f"write {name}: true, or remove the line"
    elif cell.kind in ("value", "values", "repeated") and value is True:
        wrong, fix = "needs a value", f"write it after {name}:"
    else:
        return
    yield Finding(
        "compat.argument-value",
        "refuse",
        host,
        subject,
        f"{name} {wrong} in vLLM {version}; it would not start",
        fix,
        evidence=f"{name}: {str(value).lower() if isinstance(value, bool) else value}",
        source=table.source,
    )
