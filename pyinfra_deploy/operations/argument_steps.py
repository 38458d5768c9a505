"""Before a release is staged: the host compares engine.args with the vLLM that is installed there,
and says what an upgrade changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml
from packaging.version import Version
from pyinfra import logger

from pyinfra_deploy.operations.calling import answer_of
from pyinfra_deploy.planning.acceptance import is_accepted
from pyinfra_deploy.planning.compatibility_arguments import gone_advice
from pyinfra_deploy.planning.flag_difference import difference, in_few_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, State

    from pyinfra_deploy.planning.host_plan import HostPlan


def arguments_reviewed(state: State, host: Host, plan: HostPlan, identity: str) -> bool:
    """False after a refusal has been reported: nothing of the host's engine was touched."""
    assert plan.release is not None
    settings = plan.settings
    assert settings.runtime is not None
    answer = answer_of(
        state,
        host,
        "engine.args",
        "release review",
        {
            "engine": settings.engine.name,
            "id": identity,
            "runtime": plan.release.runtime.path,
            "arguments": yaml.safe_load(plan.release.configuration),
            "advice": gone_advice(settings.engine.args, Version(settings.runtime.vllm)),
            "unknown_accepted": is_accepted(
                plan.host,
                "compat.argument-misspelt",
                settings.accept_findings,
                datetime.now(UTC).date(),
            ),
        },
        settings.llm_root,
    )
    if answer is None:
        return False
    for warning in answer.get("warnings", []):
        host.log_styled(f"engine.args: {warning}", fg="yellow", log_func=logger.warning)
    for line in upgrade_lines(answer, settings.engine.args):
        host.log(line, log_func=logger.info)
    return True


def upgrade_lines(answer: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What differs from the vLLM that serves; nothing where it is the same runtime."""
    before = answer.get("before")
    if not isinstance(before, dict) or not before.get("flags"):
        return []
    found = difference(before["flags"], answer["flags"], arguments)
    old, new = str(before["version"]), str(answer["version"])
    return in_few_lines(found, old, new, f"fleet runtime flags INVENTORY --diff {old} {new}")
