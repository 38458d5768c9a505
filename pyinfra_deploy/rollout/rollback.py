"""Which host goes back to which release: pure, from what hosts have kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LEAST_CHARACTERS = 4


@dataclass(frozen=True)
class Target:
    """kept: where the host is to be held. rejected: what a deploy must not bring back. switch:
    whether it runs another release now."""

    kept: str
    rejected: tuple[str, ...]
    serves: str | None
    switch: bool


def targets(
    kept: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, str | None], release: str = ""
) -> dict[str, Target] | str:
    """By host, or why there are none. A fleet that is half rolled out becomes one fleet again:
    hosts that never had the new release stay, and are held, so that no deploy brings it to them.

    kept: {host: {current, previous, releases: {ID: ...}}}. wanted: what the settings ask for, of
    hosts of which that is known. release: "" for the one before it, else an ID or its beginning.
    """
    return _named(kept, wanted, release) if release else _before(kept, wanted)


def _before(
    kept: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, str | None]
) -> dict[str, Target] | str:
    found: dict[str, Target] = {}
    without = []
    for host, answer in kept.items():
        current, previous, asked = answer["current"], answer["previous"], wanted.get(host)
        if asked is None or current is None:
            continue
        if current != asked:
            found[host] = Target(current, (asked,), current, switch=False)
        elif previous in answer["releases"] and previous != current:
            found[host] = Target(previous, (asked,), current, switch=True)
        else:
            without.append(host)
    if without:
        return f"{', '.join(without)} has kept no release before the one that it runs. It has:"
    if not any(target.switch for target in found.values()):
        return (
            "no host runs the release that the settings ask for, so there is none to go back from. "
            "Name the release to go to; hosts have:"
        )
    return found


def _named(
    kept: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, str | None], release: str
) -> dict[str, Target] | str:
    if len(release) < LEAST_CHARACTERS:
        return f"{release!r} is too short for a release: {LEAST_CHARACTERS} characters at least:"
    matching = {
        identity
        for answer in kept.values()
        for identity in answer["releases"]
        if identity.startswith(release)
    }
    if len(matching) > 1:
        return f"{release!r} is the beginning of {', '.join(sorted(matching))}:"
    if not matching:
        return f"no host has kept a release {release!r}. They have:"
    (identity,) = matching
    without = [host for host, answer in kept.items() if identity not in answer["releases"]]
    if without:
        names = ",".join(without)
        return f"{', '.join(without)} has not kept {identity} (--exclude {names}). Hosts have:"
    return {
        host: Target(
            identity,
            tuple(sorted({wanted.get(host), answer["current"]} - {identity, None})),
            answer["current"],
            switch=answer["current"] != identity,
        )
        for host, answer in kept.items()
    }


def in_words(target: Target, answer: Mapping[str, Any]) -> str:
    vllm = (answer["releases"].get(target.kept) or {}).get("vllm")
    name = f"{target.kept} (vLLM {vllm})" if vllm else target.kept
    held = f"; held there, {', '.join(target.rejected)} does not come back by a deploy"
    if not target.switch:
        return f"stays at {name}{held}"
    return f"{target.serves} -> {name}{held}"


def listed(kept: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What each host has, the live one marked."""
    for host, answer in kept.items():
        names = [
            f"{identity}{' (live)' if identity == answer['current'] else ''}"
            f"{' (the one before)' if identity == answer['previous'] else ''}"
            for identity in answer["releases"]
        ]
        yield f"{host}: {', '.join(names) or 'none'}"
