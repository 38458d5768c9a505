"""Where a rollout was that has not ended, from what its hosts say: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.rollout import outcome
from pyinfra_deploy.rollout.drive import UNFINISHED
from pyinfra_deploy.rollout.policy import Course, Kind, Options, read_batch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def unfinished(seen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The newest one that has not ended. Where one host says that it has, the others were only not
    reached at its end."""
    found = [
        document for answer in seen.values() if isinstance(document := answer.get("rollout"), dict)
    ]
    ended = {document.get("id") for document in found if document.get("state") not in UNFINISHED}
    left = [document for document in found if document.get("id") not in ended]
    return max(left, key=lambda one: str(one.get("began")), default=None)


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
