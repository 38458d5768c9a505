"""Operations on models that hosts have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyinfra.api import operation

from pyinfra_deploy.operations import lease
from pyinfra_deploy.operations.calling import answer_of, on_host

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands

# A file system with millions of blocks to free takes its time.
REMOVE_SECONDS = 3600


@operation()
def remove_models(models: Sequence[str], llm_root: str, told: Path) -> Commands:
    """Remove models that no release refers to. The host holds its lease meanwhile: a deploy that
    has just pulled one of them refers to it only when its release is staged.

    + models: OWNER--NAME/REVISION of each
    + llm_root: where the host program is
    + told: a file of this machine to write the host's answer into

    **Example:**

    .. code:: python

        remove_models(name="Remove models", models=["Qwen--Qwen3-32B/master"],
                      llm_root="/srv/llm", told=Path("/tmp/removed/gpu01.json"))
    """

    def remove(state: State, host: Host) -> bool:
        taken = lease.acquire(state, host, llm_root=llm_root, generation_seen=None, lease_seen=None)
        if not taken:
            return False
        try:
            answer = answer_of(
                state, host, "remove", "model remove", {"models": list(models)}, llm_root,
                timeout_seconds=REMOVE_SECONDS,
            )  # fmt: skip
        finally:
            lease.release(state, host)
        if answer is None:
            return False
        told.write_text(json.dumps(answer), encoding="utf-8")
        return True

    yield on_host(remove)
