"""The operation that has hosts verify their models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra.api import operation

from pyinfra_deploy.operations.calling import on_host
from pyinfra_deploy.operations.jobs import job_result
from pyinfra_deploy.operations.program import ConnectionLost, HostRefused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands


@operation()
def verify_models(models: Sequence[str], deep: bool, llm_root: str, told: Path) -> Commands:
    """Have the host verify its published models, as a job of its own. It changes nothing but their
    records, so it needs no lease and may run beside a deploy.

    + models: OWNER--NAME/REVISION of each; empty: all
    + deep: read every byte, not only what was touched
    + llm_root: where the host program is
    + told: a file of this machine to write the host's answer into

    **Example:**

    .. code:: python

        verify_models(name="Verify models", models=[], deep=True, llm_root="/srv/llm",
                      told=Path("/tmp/verified/gpu01.json"))
    """
    spec = {"models": list(models) or None, "deep": deep}

    def verify(state: State, host: Host) -> bool:
        answer: dict[str, Any]
        try:
            answer = job_result(
                state, host, kind="verify", job_id="deep" if deep else "touched", spec=spec,
                llm_root=llm_root, step="verify", renew=lambda: None,
            )  # fmt: skip
        except HostRefused as refusal:
            found = refusal.result if isinstance(refusal.result, dict) else {}
            key = "wrong" if "models" in found else "refused"
            answer = {**found, key: refusal.lines()}
        except ConnectionLost as error:
            answer = {"refused": [f"the connection was lost ({error}); its job goes on by itself"]}
        told.write_text(json.dumps(answer), encoding="utf-8")
        return True

    yield on_host(verify)
