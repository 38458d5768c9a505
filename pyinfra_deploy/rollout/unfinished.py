"""Where a rollout was that has not ended, from what its hosts say: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.rollout import outcome
from pyinfra_deploy.rollout.others import UNFINISHED
from pyinfra_deploy.rollout.policy import Course, Kind, Options, read_batch
from pyinfra_deploy.rollout.pyinfra_hosts import NOT_BEGUN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def unfinished(seen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The newest one that has not ended. Where one host says that it has, the others were only not
    reached at its end; and one on a host of which a newer one has begun since is over on all."""
    found = {
        host: document
        for host, answer in seen.items()
        if isinstance(document := answer.get("rollout"), dict)
    }
    ended = {one.get("id") for one in found.values() if one.get("state") not in UNFINISHED}
    left = [
        one for one in found.values()
        if one.get("id") not in ended
        and not any(_has_followed(found, host, one) for host in one["hosts"])
    ]  # fmt: skip
    return max(left, key=lambda one: str(one.get("began")), default=None)


def _has_followed(
    found: Mapping[str, Mapping[str, Any]], host: str, earlier: Mapping[str, Any]
) -> bool:
    one = found.get(host, earlier)
    if one.get("id") == earlier.get("id") or str(one.get("began")) <= str(earlier.get("began")):
        return False
    # One that could not take all of its hosts has begun on none.
    return any(
        there.get("state") in UNFINISHED or there.get("result") != NOT_BEGUN
        for there in found.values()
        if there.get("id") == one.get("id")
    )


def options_of(document: Mapping[str, Any]) -> Options:
    kept = document["options"]
    return Options(kept["canary"], read_batch(kept["batch"]), kept["pause"], kept["max_failures"])


def course_of(
    document: Mapping[str, Any],
    seen: Mapping[str, Mapping[str, Any]],
    again: Collection[str] = (),
) -> Course:
    """Where it was. again: hosts that have their turn again, whatever they serve. Whoever goes on
    has agreed to what there is."""
    outcomes = {}
    for host, release in document["hosts"].items():
        found = outcome.from_status(host, document["id"], release, seen.get(host))
        if found is None or (host in again and found.kind in (Kind.LIVE, Kind.SAME)):
            continue
        outcomes[host] = found.kind
    return Course(tuple(document["hosts"]), options_of(document), outcomes, agreed=len(outcomes))
