"""Which host goes back to which release: pure, from what hosts have kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LEAST_CHARACTERS = 4
NAME_IT = "Name the release to go to; hosts have:"


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
    Without `release`, hosts that run none are not in it.

    kept: {host: {current, previous, releases: {ID: {staged, ...}}}}. wanted: what the settings ask
    for, of hosts of which that is known. release: "" for the one before it, else an ID or its
    beginning.
    """
    return _named(kept, wanted, release) if release else _before(kept, wanted)


def _before(
    kept: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, str | None]
) -> dict[str, Target] | str:
    """Hosts go back from the newest release that was rolled out. Mostly that is the one that the
    settings ask for. Where those were reverted meanwhile, they ask for the old one: whoever runs it
    is good and stays, and whoever runs what came after it goes back. Nothing is guessed."""
    runs = {host: one["current"] for host, one in kept.items() if one["current"] is not None}
    asked = {host: _asked(host, runs, wanted, kept) for host in runs}
    unknown = [host for host, release in asked.items() if release is None]
    if unknown:
        return f"what the settings ask for on {_named_out(unknown)} cannot be told. {NAME_IT}"
    after: list[str] = []
    unclear: list[str] = []
    for host, current in runs.items():
        if current == asked[host] or not _is_kept(asked[host], kept):
            continue
        later = _came_after(current, asked[host], kept)
        (unclear if later is None else after if later else []).append(host)
    if unclear:
        return (
            f"{_named_out(unclear)} runs another release than the settings ask for, and which of "
            f"the two came later cannot be told. {NAME_IT}"
        )
    leaving = after or [host for host, current in runs.items() if current == asked[host]]
    gone = sorted({runs[host] for host in leaving})
    if not leaving:
        return (
            "no host runs the release that the settings ask for, so there is none to go back from. "
            f"{NAME_IT}"
        )
    if after and any(_came_after(one, other, kept) for one in gone for other in gone):
        return (
            f"{', '.join(after)} run {', '.join(gone)}, which came one after the other, and after "
            f"what the settings ask for. {NAME_IT}"
        )
    return _no_way_back(leaving, kept) or {
        host: Target(kept[host]["previous"], (current,), current, switch=True)
        if host in leaving
        else Target(current, tuple(gone) if after else (str(asked[host]),), current, switch=False)
        for host, current in runs.items()
    }


def _asked(
    host: str,
    runs: Mapping[str, str],
    wanted: Mapping[str, str | None],
    kept: Mapping[str, Mapping[str, Any]],
) -> str | None:
    """What the settings ask for. Of a host whose plan is refused, what they ask of others that run
    the same, or of others where only one of these releases can be compared with what it runs. Where
    nothing is known of any host, the newest that runs."""
    known = {one: release for one in runs if (release := wanted.get(one)) is not None}
    if host in known:
        return known[host]
    if known:
        same = {release for one, release in known.items() if runs[one] == runs[host]}
        likely = same or {
            one for one in known.values() if _came_after(runs[host], one, kept) is not None
        }
    else:
        releases = set(runs.values())
        likely = {
            one for one in releases
            if all(_came_after(one, other, kept) for other in releases - {one})
        }  # fmt: skip
    return likely.pop() if len(likely) == 1 else None


def _is_kept(release: str | None, kept: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(release in one["releases"] for one in kept.values())


def _came_after(
    release: str, other: str | None, kept: Mapping[str, Mapping[str, Any]]
) -> bool | None:
    """Whether it came later to the hosts that have kept both; None where they do not say, or not
    all the same. The links do not tell: of a host that was taken back, `previous` is the newer."""
    votes = {
        mine > others
        for one in kept.values()
        if (mine := (one["releases"].get(release) or {}).get("staged")) is not None
        and (others := (one["releases"].get(other) or {}).get("staged")) is not None
        and mine != others
    }
    return votes.pop() if len(votes) == 1 else None


def _no_way_back(leaving: Sequence[str], kept: Mapping[str, Mapping[str, Any]]) -> str:
    """Why these hosts cannot go to the release before; empty where they can."""
    back = {host: (kept[host]["current"], kept[host]["previous"]) for host in leaving}
    without = [
        host for host, (current, previous) in back.items()
        if previous == current or previous not in kept[host]["releases"]
    ]  # fmt: skip
    if without:
        return (
            f"{', '.join(without)} has kept no release before the one that it runs (--exclude "
            f"{','.join(without)}). Hosts have:"
        )
    already = [
        host for host, (current, previous) in back.items()
        if _came_after(previous, current, {host: kept[host]})
    ]  # fmt: skip
    if already:
        return (
            f"{', '.join(already)} has been taken back already: what it ran before is newer than "
            f"what it runs. {NAME_IT}"
        )
    return ""


def _named_out(hosts: Sequence[str]) -> str:
    return f"{', '.join(hosts)} (--exclude {','.join(hosts)})"


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


def commands(kept: Mapping[str, Mapping[str, Any]], inventory: str) -> Iterator[str]:
    """What to type to take hosts to what each ran before."""
    hosts_by: dict[str, list[str]] = {}
    for host, answer in kept.items():
        if answer["previous"] in answer["releases"] and answer["previous"] != answer["current"]:
            hosts_by.setdefault(answer["previous"], []).append(host)
    for release, hosts in hosts_by.items():
        yield f"fleet rollback {inventory} {release} --only {','.join(hosts)}"
