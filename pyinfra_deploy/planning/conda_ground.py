"""What a host needs before an environment of conda's can be built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import conda_plan, wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.settings.schema import Settings


def plan_conda_ground(
    host: str, settings: Settings, snapshot: Mapping[str, Any], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """What an environment of conda's needs before it is built; nothing for one that is there."""
    if plan["runtime"] is None:
        return {}
    facts = snapshot.get(conda_plan.SECTION)
    findings = conda_plan.conda_findings(host, settings, facts)
    miniforge = wanted.miniforge_environment(settings)
    environments = snapshot.get("environments") or {}
    install = miniforge is not None and wanted.missing(miniforge, environments)
    return {
        "findings": (*plan["findings"], *findings),
        "tools": (*plan["tools"], *([miniforge] if install else [])),
        "conda_terms": conda_plan.terms_in_words(settings, facts),
    }
