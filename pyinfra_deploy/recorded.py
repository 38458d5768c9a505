"""A run beside rollouts with a record and a page of its own: deploys and runbooks."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pyinfra_deploy import hooks
from pyinfra_deploy.rollout import record
from pyinfra_deploy.rollout.masking import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyinfra_deploy.rollout.record import Record
    from pyinfra_deploy.settings.fleet import Fleet

INTERRUPTED = 130


def begin(
    fleet: Fleet, kind: str, owner: str, hosts: Sequence[str],
    told: Mapping[str, Mapping[str, Any]] | None = None,
) -> Record:  # fmt: skip
    """told: of each host, what is known before (rollout_plan.told_of)."""
    return record.begin(
        fleet.root, fleet.name, uuid.uuid4().hex[:12], kind=kind, owner=owner, options=None,
        groups=[list(hosts)], hosts={host: (told or {}).get(host, {}) for host in hosts},
    )  # fmt: skip


def teller(kept: Record) -> Callable[[str], None]:
    """Prints a line, masked, and keeps it."""
    lines = Lines()

    def say(text: str) -> None:
        kept.log(text)
        print(lines.mask(text), flush=True)

    return say


def run(fleet: Fleet, facts: Mapping[str, Any], kept: Record, act: Callable[[], int]) -> int:
    """`act` with the hooks around it and its end in the record; its exit code."""

    def acted() -> int:
        kept.event("begun", hosts=list(kept.document["hosts"]))
        try:
            code = act()
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            why = "by the operator" if interrupted else f"by a defect: {error!r}"
            kept.end("interrupted", why, INTERRUPTED if interrupted else 1)
            raise
        what = {0: "complete", INTERRUPTED: "interrupted"}.get(code, "failed")
        kept.end(what, "", int(code))
        print(f"report: {kept.page_path}")
        return code

    def not_begun(why: str) -> None:
        kept.end("not begun", why, hooks.NOT_BEGUN)

    return hooks.around(
        fleet, facts, acted, lambda: {"report": str(kept.page_path)}, not_begun=not_begun
    )
