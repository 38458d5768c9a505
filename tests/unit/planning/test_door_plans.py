"""A gpu host that other hosts' gateways come to: what is planned for it."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.deploys.session import snapshot_request
from pyinfra_deploy.planning import door_plan, engine_door, host_files, host_plan, nginx, wanted
from pyinfra_deploy.planning.release import digest_of
from pyinfra_deploy.settings.mutual_tls import MutualTls
from tests.unit.planning import worlds

GROUPS = frozenset({"gpu", "prod"})
GATEWAYS = ("gw01.gateway.prod.fleet.internal",)
DOOR = MutualTls("engine", "gpu01.engine.prod.fleet.internal", GATEWAYS, port=9443)
SETTINGS = worlds.settings_with({"gateway": {"=": None}})
CERTIFICATE = {
    "sans": [DOOR.name],
    "issuer": worlds.CA_SUBJECT,
    "not_after": "Nov 30 07:02:26 2027 GMT",
}


def plan(snapshot: dict[str, Any], **change: Any) -> host_plan.HostPlan:
    artefacts = worlds.artefacts_with(SETTINGS, **({"mutual_tls": DOOR} | change))
    return host_plan.plan_host(worlds.HOST, GROUPS, SETTINGS, snapshot, artefacts)


def with_door() -> dict[str, Any]:
    """A host whose door is as it is wanted; nothing else of it matters here."""
    snapshot = worlds.untouched(GROUPS)
    system = {**snapshot["os"], "nginx": "1.22.1", "nginx_openssl": "3.0.15"}
    rendered = door_plan.door_files(SETTINGS, DOOR, system)
    (text,) = rendered.files.values()
    files = {engine_door.CONFIGURATION: worlds.seen_file(wanted.ManagedFile("", text))}
    change: dict[str, Any] = {
        "os": system,
        "files": files,
        "units": {"nginx.service": worlds.unit()},
        "gateway": {
            "host_certificate": CERTIFICATE,
            "nginx_loaded": digest_of(dict(rendered.files)),
        },
    }
    return dict(worlds.merged(snapshot, change))


def test_a_bare_host_gets_all_of_it() -> None:
    found = plan(worlds.untouched(GROUPS))
    assert {"nginx", "openssl"} <= set(found.packages)
    assert found.host_certificate == "there is none yet"
    assert found.door == "Nginx is not installed yet"
    assert found.on(wanted.DOOR)
    assert not found.gateway_activate
    told = " / ".join(found.reasons())
    assert "issue a certificate for other hosts: there is none yet" in told
    assert "apply the engine's door" in told
    (users,) = [file.content for file in found.files if file.path == host_files.SYSUSERS]
    assert "m www-data llm-http" in users
    assert "llm-gateway" not in users


def test_a_door_that_is_as_it_should_be_stays() -> None:
    found = plan(with_door())
    assert (found.host_certificate, found.door) == ("", "")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"units": {"nginx.service": worlds.unit(active="failed")}}, "is failed"),
        ({"gateway": {"nginx_loaded": ""}}, "has not loaded it yet"),
        ({"files": {engine_door.CONFIGURATION: {"=": None}}}, "is missing"),
        ({"files": {nginx.CONFIGURATION: {"sha256": "x"}}}, "has to go"),
        ({"files": {nginx.STOCK_SITE: {"sha256": "x"}}}, "has to go"),
    ],
)
def test_why_it_is_applied_again(change: dict[str, Any], expected: str) -> None:
    assert expected in plan(worlds.merged(with_door(), change)).door


def test_a_new_gateway_changes_the_door() -> None:
    more = MutualTls("engine", DOOR.name, (*GATEWAYS, "gw02.gateway.prod.fleet.internal"), 9443)
    assert "differs" in plan(with_door(), mutual_tls=more).door


def test_a_certificate_is_renewed_before_it_ends() -> None:
    ending = {**CERTIFICATE, "not_after": "Dec 20 07:02:26 2026 GMT"}
    snapshot = worlds.merged(with_door(), {"gateway": {"host_certificate": ending}})
    assert plan(snapshot).host_certificate == "the present one ends on 2026-12-20"


def test_a_taken_port_is_refused_before_anything_changes() -> None:
    taken = [worlds.listener(9443, "java", "other.service")]
    found = plan({**worlds.untouched(GROUPS), "listeners": taken})
    (refusal,) = found.refused
    assert refusal.id == "gateway.port-taken"
    assert "gateway.engine_port" in str(refusal)


def test_a_gateway_gets_a_certificate_and_no_door() -> None:
    settings = worlds.settings_with()
    front = MutualTls("gateway", "gw01.gateway.prod.fleet.internal")
    artefacts = worlds.artefacts_with(settings, mutual_tls=front)
    snapshot = worlds.converged(settings, artefacts)
    found = host_plan.plan_host(worlds.HOST, worlds.ALL, settings, snapshot, artefacts)
    assert found.host_certificate == "there is none yet"
    assert not found.door
    assert not found.on(wanted.DOOR)


def test_a_host_for_itself_has_nothing_of_it() -> None:
    found = plan(worlds.untouched(GROUPS), mutual_tls=MutualTls())
    assert (found.host_certificate, found.door) == ("", "")
    assert "nginx" not in found.packages


def test_the_snapshot_looks_where_the_plan_decides() -> None:
    artefacts = worlds.artefacts_with(SETTINGS, mutual_tls=DOOR)
    request = snapshot_request(SETTINGS, GROUPS, artefacts)
    assert "nginx.service" in request["units"]
    assert {engine_door.CONFIGURATION, nginx.STOCK_SITE} <= set(request["files"])
    assert "www-data" in request["users"]
