"""Certificates of an ACME authority, and the end of those that nobody here renews."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pyinfra_deploy.deploys.session import snapshot_request
from pyinfra_deploy.planning import gateway_plan, host_plan
from pyinfra_deploy.planning.certificate import acme_request
from tests.unit.planning import worlds

ACME = {"source": "acme", "acme_terms_accepted": True, "acme_email": "ops@example.com"}
SETTINGS = worlds.settings_with({"gateway": {"tls": ACME}})
FILES = {"source": "files", "certificate": "/etc/ssl/a.pem", "key": "/etc/ssl/a.key"}


def ending(**after: float) -> dict[str, Any]:
    end = worlds.NOW + timedelta(**after)
    return {
        "path": "/etc/llm/acme/live/llm-gateway/fullchain.pem",
        "not_after": f"{end:%b %d %H:%M:%S %Y} GMT",
        "sans": ["llm.example.com"],
        "issuer": "R13",
    }


def plan(change: dict[str, Any], settings: Any = SETTINGS) -> host_plan.HostPlan:
    artefacts = worlds.artefacts_with(settings)
    snapshot = worlds.merged(worlds.converged(settings, artefacts), change)
    return host_plan.plan_host(worlds.HOST, worlds.ALL, settings, snapshot, artefacts)


SERVED = {
    "os": {"acme_certificate": True},
    "units": {"llm-acme.timer": worlds.unit()},
    "gateway": {"other_certificate": ending(days=60), "acme": acme_request(SETTINGS)},
}


def test_the_first_one_begins_with_one_of_ours() -> None:
    artefacts = worlds.artefacts_with(SETTINGS)
    found = host_plan.plan_host(worlds.HOST, worlds.ALL, SETTINGS, worlds.untouched(), artefacts)
    assert "certbot" in found.packages
    assert found.certificate == "there is none yet"
    assert found.acme == "there is none of the authority's yet"
    assert "ask the ACME authority for a certificate" in " / ".join(found.reasons())
    paths = [file.path for file in found.files]
    assert "/etc/systemd/system/llm-acme.timer" in paths
    system = {"nginx": "1.22.1"}
    (before,) = gateway_plan.nginx_files(SETTINGS, system).files.values()
    assert "ssl_certificate /etc/llm/tls/server.crt;" in before
    assert "/.well-known/acme-challenge/" in before
    system["acme_certificate"] = "yes"
    (after,) = gateway_plan.nginx_files(SETTINGS, system).files.values()
    assert "ssl_certificate /etc/llm/acme/live/llm-gateway/fullchain.pem;" in after


def test_with_the_authoritys_there_is_nothing_to_do() -> None:
    found = plan(SERVED)
    assert (found.acme, found.certificate) == ("", "")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"gateway": {"other_certificate": {"=": None}}}, "none of the authority's yet"),
        ({"gateway": {"acme": {"name": "old.example.com"}}}, "another one is asked for"),
        ({"gateway": {"acme": {"directory": "https://staging.example/"}}}, "another one"),
        ({"gateway": {"other_certificate": ending(days=13)}}, "ends soon and was not renewed"),
        ({"units": {"llm-acme.timer": worlds.unit(enabled="disabled")}}, "would not be renewed"),
    ],
)
def test_why_the_authority_is_asked(change: dict[str, Any], expected: str) -> None:
    assert expected in plan(worlds.merged(SERVED, change)).acme


def test_another_source_ends_the_renewals() -> None:
    timer = {"units": {"llm-acme.timer": worlds.unit()}}
    found = plan(timer, worlds.settings_with())
    assert found.acme == "stop"
    assert "no more" in " / ".join(found.reasons())
    assert plan({}, worlds.settings_with()).acme == ""


@pytest.mark.parametrize(
    ("tls", "days", "warned"),
    [(FILES, 31, False), (FILES, 29, True), (FILES, -1, True), (ACME, 20, False), (ACME, 13, True)],
)
def test_the_end_of_a_certificate_is_warned_of(
    tls: dict[str, Any], days: int, warned: bool
) -> None:
    settings = worlds.settings_with({"gateway": {"tls": tls}})
    gateway = {"other_certificate": ending(days=days), "acme": acme_request(settings)}
    found = plan(worlds.merged(SERVED, {"gateway": gateway}), settings)
    said = [one for one in found.findings if one.id == "gateway.certificate-ends"]
    assert bool(said) is warned
    assert not found.refused
    if days < 0:
        assert "has ended" in str(said[0])


@pytest.mark.parametrize(
    ("tls", "path"),
    [
        ({"source": "own_ca"}, None),
        (FILES, "/etc/ssl/a.pem"),
        (ACME, "/etc/llm/acme/live/llm-gateway/fullchain.pem"),
    ],
)
def test_the_snapshot_looks_at_the_certificate_that_is_served(
    tls: dict[str, Any], path: str | None
) -> None:
    settings = worlds.settings_with({"gateway": {"tls": tls}})
    request = snapshot_request(settings, worlds.ALL, worlds.artefacts_with(settings))
    assert request["other_certificate"] == path
    assert "llm-acme.timer" in request["units"]
