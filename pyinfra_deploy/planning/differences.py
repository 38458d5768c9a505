"""What another release would make different on a host, line by line: pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NOTHING = "(not set)"
LONGEST = 120
ASSIGNMENT = re.compile(r'^([A-Za-z_]\w*)="?(.*?)"?$')


def release_differences(engine: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[str]:
    """`KEY: BEFORE -> AFTER`, sorted within each part: vLLM, model, arguments, environment.

    engine: its section of the snapshot, what is live now. after: {vllm, model, model_digest,
    configuration, environment, runtime: its path}, texts or None for what is not known yet.
    """
    engine = engine or {}
    current = engine.get("current")
    if not current:
        return ["nothing is live yet"]
    live = (engine.get("releases") or {}).get(current)
    live = live if isinstance(live, dict) else {}
    lines = [
        *_line("vLLM", live.get("vllm"), after.get("vllm")),
        *_runtime(live, after),
        *_line("model", live.get("model"), after.get("model")),
    ]
    digest = after.get("model_digest")
    if digest and live.get("model") == after.get("model"):
        before = str(live.get("model_digest"))[:12]
        lines += _line("the model's files", before, str(digest)[:12])
    lines += _of_mappings(
        _arguments(engine.get("configuration")), _arguments(after.get("configuration")), "--"
    )
    lines += _of_mappings(
        _variables(engine.get("environment")), _variables(after.get("environment")), ""
    )
    return lines


def _runtime(live: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Another lock, or another Python, brings other packages around the same vLLM."""
    before, coming = (_last(one.get("runtime")) for one in (live, after))
    if before and coming:
        yield from _line("runtime (packages, Python)", before, coming)


def _last(path: object) -> str:
    return str(path).rstrip("/").rpartition("/")[2] if path else ""


def _line(key: str, before: object, after: object) -> Iterator[str]:
    if after is not None and before != after:
        yield f"{key}: {_shown(before)} -> {_shown(after)}"


def _of_mappings(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, prefix: str
) -> Iterator[str]:
    if before is None or after is None:
        return
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            old, new = before.get(key, NOTHING), after.get(key, NOTHING)
            yield f"{prefix}{key}: {_shown(old)} -> {_shown(new)}"


def _arguments(text: object) -> dict[str, Any] | None:
    """vLLM's arguments as its configuration file has them; the model is told apart."""
    if not isinstance(text, str):
        return None
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    if not isinstance(found, dict):
        return {}
    return {str(key): value for key, value in found.items() if key != "model"}


def _variables(text: object) -> dict[str, str] | None:
    if not isinstance(text, str):
        return None
    found = (ASSIGNMENT.match(line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match}


def _shown(value: object) -> str:
    text = NOTHING if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
