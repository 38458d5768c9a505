"""Two hosts that are not there, and runbooks over them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyinfra_deploy.runbooks import registry
from pyinfra_deploy.runbooks.book import Scene, run
from pyinfra_deploy.settings.fleet import load_fleet
from tests.fakes.runbook_doors import FakeDoors, HostState

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

KEYS = json.dumps({"keys": [{"id": "k1", "name": "chat"}]})


class World:
    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.doors = FakeDoors({"gpu01": HostState(), "gpu02": HostState()})
        self.one, self.other = self.doors.hosts.values()

    def run(
        self, name: str, /, *hosts: str, dry: bool = False, yes: bool = True,
        options: dict[str, str] | None = None, **more: str,
    ) -> int:  # fmt: skip
        clock = [0.0]

        def sleep(seconds: float) -> None:
            clock[0] += seconds

        scene = Scene(
            load_fleet("prod", self.repository.root), list(hosts or ("gpu01",)),
            {**(options or {}), **more},
            "ada@desk", self.doors, {"run": "run-1"}, "fan 3", yes,
            sleep=sleep, clock=lambda: clock[0],
        )  # fmt: skip
        return run(registry.runbook(name), scene, dry=dry)
