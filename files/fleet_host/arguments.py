"""Are engine.args what the installed vLLM takes? Asked twice, before anything of the host changes.

`release review` reads vLLM's source (half a second, no import) and refuses what is wrong with a
name or a value. The real parser runs once for each release, in the unit llm-arguments@ENGINE, as
the engine and in its sandbox; its verdict and vLLM's whole help text are kept in the release:
arguments.json and help.txt.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    durable,
    engine,
    events,
    fields,
    flag_check,
    job_state,
    layout,
    systemctl,
    vllm_flags,
)
from .errors import HostError

if TYPE_CHECKING:
    from .status import Progress

UNIT = "llm-arguments@{engine}.service"
VERDICT, HELP = "arguments.json", "help.txt"
# 13 s on a quiet host; a cold network disk reads 3 GB of libraries for minutes.
PARSER_TIMEOUT_SECONDS = 1260.0
LARGEST_BYTES = 8 << 20
# These come from the deploy itself, on vLLM's command line.
COMMAND_LINE = ("config", "uds")


def review(request: dict[str, Any]) -> dict[str, Any]:
    """`release review` {engine, id, runtime, arguments, advice, unknown_accepted} ->
    {known, version, count, warnings, flags, before}.

    arguments: what config.yaml will say, as JSON. advice: argument -> what to write instead, for
    names of which the control side knows that they are gone. unknown_accepted: names that are not
    in the source are left to the parser, which sees plugins' arguments too. known: the release is
    there already, with its verdict: nothing was read. flags, before {version, flags}: only when the
    engine's present release has another runtime, to tell what differs. HostError for what is wrong.
    """
    name, identity = engine.name_of(request), engine.name_of(request, "id")
    given = request.get("arguments")
    arguments = dict(given) if isinstance(given, dict) else {}
    answer: dict[str, Any] = {"known": False, "version": None, "count": None, "warnings": []}
    if verdict_of(name, identity) is not None:
        return {**answer, "known": True}
    runtime = Path(fields.text(request, "runtime"))
    try:
        read = vllm_flags.read_flags(runtime)
    except HostError as unknown:
        # A layout that this program does not know: the real parser has the word, before draining.
        return {**answer, "warnings": [f"{unknown}: {unknown.why}"]}
    flags = read["flags"]
    wrong = flag_check.wrong_arguments(
        {**arguments, **dict.fromkeys(COMMAND_LINE, "x")}, flags, fields.text_map(request, "advice")
    )
    left = [one for one in wrong if one.unknown and request.get("unknown_accepted") is True]
    if refused := [one for one in wrong if one not in left]:
        raise _refusal(name, read["version"], refused)
    answer |= {"version": read["version"], "count": len(flags)}
    answer["warnings"] = [
        f"{key}: vLLM {read['version']} says: {text}"
        for key, text in flag_check.deprecated_arguments(arguments, flags)
    ] + [f"{one} Accepted; vLLM's own parser decides." for one in left]
    before = _flags_of_present(name, runtime)
    return {**answer, "flags": flags, "before": before} if before is not None else answer


def _refusal(name: str, version: str | None, wrong: list[flag_check.Wrong]) -> HostError:
    first, count = wrong[0], len(wrong)
    more = f", and {count - 1} more below" if count > 1 else ""
    return HostError(
        f"vLLM {version} does not take engine.args as they are: {first.key}{more}",
        f"{first.key} {first.why}",
        f"{first.fix} Engine {name} was not touched; what served before still does.",
        [str(one) for one in wrong],
    )


def _flags_of_present(name: str, runtime: Path) -> dict[str, Any] | None:
    """The arguments of the runtime that serves now, when it is another one and can be read."""
    present = engine.linked(name, "current")
    link = engine.release_directory(name, present) / "runtime" if present else None
    if link is None or not link.is_symlink() or link.readlink() == runtime:
        return None
    try:
        read = vllm_flags.read_flags(link.readlink())
    except HostError:
        return None
    return {"version": read["version"], "flags": read["flags"]}


def list_flags(request: dict[str, Any]) -> dict[str, Any]:
    """`runtime flags` {help: bool} ->
    {runtimes: [{name, version, flags, releases, help, problem}]}.

    help: the whole help text of its vLLM, where a release of it has one and it was asked for.
    """
    wanted = request.get("help") is True
    releases = _releases_by_runtime()
    found = []
    for record in sorted((layout.llm_root() / "runtimes").glob("*/.fleet-complete.json")):
        runtime = record.parent
        entry: dict[str, Any] = {"name": runtime.name, "version": None, "flags": {}, "help": None}
        users = releases.get(str(runtime), [])
        entry |= {"releases": [place.name for place in users], "problem": ""}
        try:
            read = vllm_flags.read_flags(runtime)
            entry |= {"version": read["version"], "flags": read["flags"]}
        except HostError as error:
            entry["problem"] = str(error)
        texts = [place / HELP for place in users if (place / HELP).is_file()]
        if wanted and texts:
            entry["help"] = texts[-1].read_text(encoding="utf-8", errors="replace")
        found.append(entry)
    return {"runtimes": found}


def _releases_by_runtime() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for link in sorted((layout.llm_root() / "engines").glob("*/releases/*/runtime")):
        if link.is_symlink() and not link.parent.name.startswith("."):
            found.setdefault(str(link.readlink()), []).append(link.parent)
    return found


# --- the real parser's verdict


def verdict_of(name: str, identity: str) -> dict[str, Any] | None:
    """What the parser said of a staged release; None while it has not been asked."""
    directory = engine.release_directory(name, identity)
    verdict = durable.read_json(directory / VERDICT)
    if not isinstance(verdict, dict) or verdict.get("config") != _digest(directory):
        return None
    return verdict


def _digest(directory: Path) -> str:
    """Of what the parser is asked about."""
    parts = [(directory / name).read_bytes() for name in ("config.yaml", "env")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def prove(name: str, identity: str, progress: Progress) -> dict[str, Any]:
    """Ask the real parser about a staged release, once, and keep its verdict in the release.

    HostError when it refuses, or says nothing at all. A vLLM that has no parser where it is looked
    for is kept as {checked: false}, with why.
    """
    kept = verdict_of(name, identity)
    if kept is None:
        kept = _ask(name, identity, progress)
    if kept.get("checked") and not kept.get("accepted"):
        raise HostError(
            f"vLLM's own parser refuses release {identity} of engine {name}",
            str(kept.get("message")),
            "Correct engine.args; nothing was stopped.",
            [str(line) for line in kept.get("lines", [])],
        )
    return kept


def _ask(name: str, identity: str, progress: Progress) -> dict[str, Any]:
    directory, unit = engine.release_directory(name, identity), UNIT.format(engine=name)
    progress.phase("checking arguments", unit="s", message=f"vLLM's own parser reads {identity}")
    engine.link(name, "candidate", identity)
    # Restart, not start: its directory in /run goes with the stop, so no older verdict is in it.
    try:
        systemctl.call(["restart", unit], PARSER_TIMEOUT_SECONDS)
    except HostError as error:
        raise _silent(name, identity, unit, [str(error), *error.detail]) from error
    finally:
        engine.link(name, "candidate", None)
    told = layout.run_root() / "llm-arguments" / name
    verdict, text = _read_own(told / VERDICT), _read_own(told / HELP)
    try:
        document = json.loads(verdict) if verdict is not None else None
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("release") != identity:
        raise _silent(name, identity, unit, [f"{told / VERDICT} is not this release's verdict"])
    document = {**document, "config": _digest(directory), "when": events.utc_now()}
    if text:
        durable.write_file(directory / HELP, text, mode=0o644)
    durable.write_json(directory / VERDICT, document, mode=0o644)
    systemctl.call(["stop", unit])
    if not document.get("checked"):
        progress.log(f"the arguments were not checked by vLLM's parser: {document.get('message')}")
    return document


class UndecidedError(HostError):
    """The parser came to no verdict: it died, or what it imports did."""


def _silent(name: str, identity: str, unit: str, lines: list[str]) -> UndecidedError:
    # Of this start alone: what the unit said of other releases is not what happened to this one.
    invocation = systemctl.show(unit, ["InvocationID"])["InvocationID"]
    tail = engine.journal(unit, [invocation], 0, 30) if invocation else []
    why = f"{unit} ended without a verdict."
    fix = f"Read the lines below, and 'journalctl -u {unit}' on the host."
    if any(job_state.TOO_LARGE in line for line in tail):
        why = f"{unit} could not be started: {job_state.ENVIRONMENT_TOO_LARGE}"
        fix = job_state.SHORTEN_ENVIRONMENT
    return UndecidedError(
        f"whether vLLM takes the arguments of release {identity} could not be found out",
        why,
        f"{fix} Nothing of engine {name} was touched.",
        [*lines, *tail],
    )


def _read_own(path: Path) -> str | None:
    """A small plain file that another user wrote; None when it is anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        status = os.fstat(handle.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_BYTES:
            return None
        return handle.read(LARGEST_BYTES).decode("utf-8", errors="replace")
