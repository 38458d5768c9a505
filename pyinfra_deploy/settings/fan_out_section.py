# ruff: noqa: TC001 -- pydantic evaluates the annotations
"""The settings of how hosts get a model from each other."""

from __future__ import annotations

from pyinfra_deploy.settings.kinds import Port
from pyinfra_deploy.settings.section import Section, setting


class FanOut(Section):
    """Hosts get a locked model from each other, so that the fleet pulls it once. Without a lock,
    and on a host whose lock no other gpu host of the inventory has, nothing of this happens."""

    enabled: bool = setting(
        True,
        "Whether hosts take files of the model from each other, and give them, while some of them "
        "pull. The inventory's hosts have to reach each other at `port`; where they do not, each "
        "pulls from the hub. false: each pulls from the hub.",
        True,
    )
    port: Port = setting(8472, "TCP port at which hosts give files, only while some pull.", 8472)
    rate_mb_per_second: int | None = setting(
        None,
        "Most that one host sends, to all others together, in MB a second. null: no limit.",
        400,
        ge=1,
        le=100_000,
    )
