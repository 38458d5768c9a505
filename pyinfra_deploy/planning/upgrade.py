"""Another vLLM than the one that serves: what differs between their arguments, as far as the table
of all arguments knows both. The deploy tells it from the installed ones (flag_difference.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.flag_difference import difference, in_few_lines
from pyinfra_deploy.planning.serve_flags import serve_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyinfra_deploy.settings.schema import Settings


def serving_version(snapshot: Mapping[str, Any] | None, engine: str) -> str | None:
    """The vLLM version of the engine's present release; None when nothing is live."""
    engines = (snapshot or {}).get("engines")
    state = engines.get(engine) if isinstance(engines, dict) else None
    if not isinstance(state, dict):
        return None
    release = (state.get("releases") or {}).get(state.get("current"))
    version = release.get("vllm") if isinstance(release, dict) else None
    return version if isinstance(version, str) else None


def upgrade_findings(
    host: str, settings: Settings, snapshot: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """One note where the settings ask for another vLLM than the one that serves."""
    present = serving_version(snapshot, settings.engine.name)
    if present is None or settings.runtime is None:
        return
    before, after = _base(present), _base(settings.runtime.vllm)
    if before is None or after is None or before == after:
        return
    table = serve_flags()
    change = "upgrade" if after > before else "downgrade"
    unread = [str(one) for one in (before, after) if one not in table.versions]
    if unread:
        yield _note(
            host,
            f"{change} from vLLM {before} to {after}: the arguments of {' and '.join(unread)} were "
            "not read, so what differs is told by the deploy, when both are installed",
            "",
        )
        return
    found = difference(table.as_flags(before), table.as_flags(after), settings.engine.args)
    head, *lines = in_few_lines(found, str(before), str(after), "")
    yours = [line.strip() for line in lines if line.startswith("  in engine.args: ")]
    yield _note(host, f"{change}: {head}", "; ".join(yours))


def _base(text: str) -> Version | None:
    try:
        return Version(Version(text).base_version)
    except InvalidVersion:
        return None


def _note(host: str, message: str, evidence: str) -> Finding:
    return Finding(
        "compat.vllm-changes",
        "note",
        host,
        "runtime.vllm",
        message,
        "read its release notes; once both are installed: fleet runtime flags INVENTORY --diff "
        "OLD NEW",
        evidence=evidence,
        source=serve_flags().source,
    )
