"""Certificates between hosts and an engine's door, on their way to a host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.operations import door_steps
from pyinfra_deploy.planning import engine_door, host_plan, nginx
from pyinfra_deploy.settings.mutual_tls import MutualTls
from tests.fakes.pyinfra_host import ROOT, refusal
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from tests.fakes.pyinfra_host import PyinfraWorld

DOOR = MutualTls(
    "engine", "gpu01.engine.prod.fleet.internal", ("gw01.gateway.prod.fleet.internal",), port=9443
)
FRONT = MutualTls("gateway", "gw01.gateway.prod.fleet.internal")


def issue(world: PyinfraWorld, identity: MutualTls, sign: Any = None) -> bool:
    return world.run(
        door_steps.issue_host_certificate,
        identity=identity,
        sign=sign or (lambda request: (f"signed {request}", "the authority")),
        llm_root=ROOT,
    )


@pytest.mark.parametrize(("identity", "reader"), [(DOOR, None), (FRONT, "llm-gateway")])
def test_a_request_is_signed(world: PyinfraWorld, identity: MutualTls, reader: str | None) -> None:
    world.script.says("mtls request", {"csr": "a request"})
    assert issue(world, identity)
    assert world.script.commands() == ["mtls request", "mtls install"]
    assert world.script.sent[0].spec == {"name": identity.name, "reader": reader}
    assert world.script.sent[1].spec == {
        "certificate": "signed a request",
        "ca": "the authority",
    }


def test_what_cannot_be_signed_fails_the_host(world: PyinfraWorld) -> None:
    def broken(request: str) -> Any:
        raise KeysError("the CA's key is gone", "why", "fix")

    world.script.says("mtls request", {"csr": "a request"})
    assert not issue(world, DOOR, broken)
    assert world.script.commands() == ["mtls request"]


def test_the_door_is_made_for_the_nginx_that_is_there_by_now(world: PyinfraWorld) -> None:
    settings = worlds.settings_with({"gateway": {"=": None}})
    artefacts = worlds.artefacts_with(settings, mutual_tls=DOOR)
    groups = frozenset({"gpu"})
    plan = host_plan.plan_host("gpu01", groups, settings, worlds.untouched(groups), artefacts)
    world.script.says("host facts", {"nginx": "1.26.3", "nginx_openssl": "3.5.4", "ipv6": False})
    assert world.run(door_steps.apply_door, plan=plan, identity=DOOR)
    assert world.script.commands() == ["host facts", "nginx apply"]
    spec = world.script.sent[1].spec
    text = spec["files"][engine_door.CONFIGURATION]
    assert "listen 9443 ssl default_server;" in text
    assert '"CN=gw01.gateway.prod.fleet.internal"' in text
    assert spec["remove"] == [nginx.CONFIGURATION, nginx.STOCK_SITE]
    assert spec["probe"] == {
        "port": 9443, "server_name": DOOR.name, "path": "/ready", "status": 403,
    }  # fmt: skip
    assert spec["reload"] is True
    world.script.says("nginx apply", refusal("Nginx refuses the new configuration"))
    assert not world.run(
        door_steps.apply_door, plan=replace(plan, host_certificate=""), identity=DOOR
    )
