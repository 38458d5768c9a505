"""Keys, certificate and Nginx's configuration on their way to a gateway."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys import session
from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.operations import gateway_steps
from pyinfra_deploy.planning import host_plan, nginx
from tests.fakes.pyinfra_host import ROOT, refusal
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan
    from tests.fakes.pyinfra_host import PyinfraWorld

KEYS = {"schema": 1, "serial": 7, "keys": []}


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pyinfra")


def plan_of(**gateway: Any) -> HostPlan:
    settings = worlds.settings_with({"gateway": gateway})
    artefacts = worlds.artefacts_with(settings)
    return host_plan.plan_host("gpu01", worlds.ALL, settings, worlds.untouched(), artefacts)


def test_the_digests_are_made_when_the_step_runs(world: PyinfraWorld) -> None:
    arguments: dict[str, Any] = {"document": lambda: KEYS, "llm_root": ROOT}
    assert world.run(gateway_steps.push_keys, **arguments)
    assert world.script.commands() == ["keys push"]
    assert world.script.sent[0].spec == KEYS
    world.script.says("keys push", refusal("the keys are older than the host's"))
    assert not world.run(gateway_steps.push_keys, **arguments)


def test_a_key_file_that_cannot_be_read_fails_the_host_in_words(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        raise KeysError("keys.json is damaged", "line 3", "restore it from git")

    assert not world.run(gateway_steps.push_keys, document=broken, llm_root=ROOT)
    assert "keys.json is damaged" in caplog.text
    assert "restore it from git" in caplog.text
    assert world.script.sent == []


def test_the_service_gets_what_the_plan_wants(world: PyinfraWorld) -> None:
    plan = plan_of(stop_seconds=40)
    assert world.run(gateway_steps.activate_service, plan=plan)
    (sent,) = world.script.sent
    assert world.script.commands() == ["gateway activate"]
    assert sent.spec == {
        "environment": plan.gateway_name,
        "unit": "llm-gateway.service",
        "shape": "full",
        "configuration": plan.gateway_text,
        "stop_seconds": 40,
    }
    world.script.says("gateway activate", refusal("it did not become ready"))
    assert not world.run(gateway_steps.activate_service, plan=plan)


def test_in_mode_direct_there_is_no_configuration(world: PyinfraWorld) -> None:
    assert world.run(gateway_steps.activate_service, plan=plan_of(mode="direct"))
    (sent,) = world.script.sent
    assert (sent.spec["shape"], sent.spec["configuration"]) == ("direct", None)


def issue(world: PyinfraWorld, requests: list[str]) -> bool:
    def sign(request: str) -> tuple[str, str]:
        requests.append(request)
        return "the chain", "the authority"

    return world.run(gateway_steps.issue_certificate, settings=plan_of().settings, sign=sign)


def test_the_key_stays_on_the_host_and_its_request_is_signed(world: PyinfraWorld) -> None:
    world.script.says("tls request", {"csr": "a request", "key_created": True})
    requests: list[str] = []
    assert issue(world, requests)
    assert requests == ["a request"]
    assert [sent.spec for sent in world.script.sent] == [
        {"names": ["llm.example.com"], "addresses": []},
        {"certificate_chain": "the chain", "ca": "the authority"},
    ]


def test_nothing_is_signed_for_a_host_that_refuses(world: PyinfraWorld) -> None:
    world.script.says("tls request", refusal("no"))
    requests: list[str] = []
    assert not issue(world, requests)
    assert requests == []


def test_a_ca_that_does_not_sign_fails_the_host_in_words(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def sign(_request: str) -> tuple[str, str]:
        raise KeysError("the CA may not sign for llm.example.com", "its names", "make another")

    world.script.says("tls request", {"csr": "x"})
    assert not world.run(gateway_steps.issue_certificate, settings=plan_of().settings, sign=sign)
    assert "the CA may not sign for llm.example.com" in caplog.text
    assert "Traceback" not in caplog.text
    assert world.script.commands() == ["tls request"]


def test_a_certificate_that_the_host_refuses_fails_it(world: PyinfraWorld) -> None:
    world.script.says("tls request", {"csr": "x"})
    world.script.says("tls install", refusal("not for this host's key"))
    assert not issue(world, [])


def test_a_new_key_is_not_taken_for_made_by_an_older_program(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    arguments: dict[str, Any] = {
        "settings": plan_of().settings, "sign": lambda _csr: ("chain", "ca"), "new_key": True,
    }  # fmt: skip
    world.script.says("tls request", {"csr": "a request", "key_created": False})
    assert not world.run(gateway_steps.issue_certificate, **arguments)
    assert world.script.commands() == ["tls request"]
    assert "deploy first" in caplog.text
    world.script.says("tls request", {"csr": "a request", "key_created": True, "new_key": True})
    assert world.run(gateway_steps.issue_certificate, **arguments)
    assert world.script.sent[-2].spec["new_key"] is True


@pytest.mark.parametrize(("version", "parameter"), [("1.22.1", True), ("1.26.3", False)])
def test_nginx_is_configured_for_the_version_that_is_there_by_now(
    world: PyinfraWorld, version: str, parameter: bool
) -> None:
    """The plan saw none: the package came with this very run."""
    world.script.says("host facts", {"nginx": version, "nginx_openssl": "3.0.15", "ipv6": False})
    settings = plan_of(https_port=8443).settings
    assert world.run(gateway_steps.apply_nginx, settings=settings, reload=True)
    assert world.script.commands() == ["host facts", "nginx apply"]
    spec = world.script.sent[1].spec
    text = spec["files"][nginx.CONFIGURATION]
    assert ("ssl http2 default_server" in text) is parameter
    assert "[::]" not in text
    assert spec["remove"] == [nginx.DOOR_CONFIGURATION, nginx.STOCK_SITE]
    assert spec["probe"]["port"] == 8443
    assert spec["probe"]["server_name"] == "llm.example.com"
    # A new certificate has the same name: Nginx reads it only when it is told to.
    assert spec["reload"] is True


@pytest.mark.parametrize("command", ["host facts", "nginx apply"])
def test_a_host_that_keeps_its_old_configuration_fails(world: PyinfraWorld, command: str) -> None:
    world.script.says("host facts", {"nginx": "1.22.1"})
    world.script.says(command, refusal("nginx -t failed"))
    assert not world.run(gateway_steps.apply_nginx, settings=plan_of().settings, reload=False)


@pytest.mark.parametrize(
    ("certificate", "problem", "said"),
    [
        (True, KeysError("the CA's key cannot be read", "a wrong password", "give it"), True),
        (True, None, False),
        # A certificate that is there needs no signature.
        (False, KeysError("the CA's key cannot be read", "a wrong password", "give it"), False),
    ],
)
def test_a_ca_that_could_not_sign_refuses_before_anything(
    monkeypatch: pytest.MonkeyPatch, certificate: bool, problem: KeysError | None, said: bool
) -> None:
    monkeypatch.setattr(session, "signing_problem", lambda *_: problem)
    plan = plan_of()
    assert plan.certificate
    plan = plan if certificate else replace(plan, certificate="")
    found = list(session.unusable_secrets(plan, {"name": "prod", "root": ROOT}))
    assert [one.id for one in found if one.severity == "refuse"] == ["gateway.ca-key"] * said
    assert all("a wrong password" in one.message and one.fix == "give it" for one in found)
