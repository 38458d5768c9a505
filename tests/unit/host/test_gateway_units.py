"""The gateway's units in each shape: what they start, in which order, and what they may reach."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.deploys.artefacts import units_of
from pyinfra_deploy.planning import wanted
from tests.unit.planning import worlds

SERVICE, SOCKET = "llm-gateway.service", "llm-gateway.socket"


def unit(name: str = SERVICE, engines: tuple[Any, ...] = (), **gateway: Any) -> str:
    settings = worlds.settings_with({"gateway": gateway, "engine": {"name": "other"}})
    return units_of(settings, engines)[name].content


def values(text: str, key: str) -> list[str]:
    return [line.split("=", 1)[1] for line in text.splitlines() if line.startswith(f"{key}=")]


def test_nginx_and_the_engine_outlive_its_last_answers() -> None:
    """Units stop in the reverse order of their start (systemd.unit(5), Before=)."""
    (after, *_) = values(unit(), "After")
    assert set(after.split()) == {
        SOCKET, "nginx.service", "llm-engine@other.service",
    }  # fmt: skip
    assert values(unit(), "Before") == []
    # So that at boot Nginx finds the socket, if not yet the service.
    assert values(unit(SOCKET), "Before") == ["nginx.service"]


def test_its_answers_have_the_time_that_the_settings_give_them() -> None:
    text = unit(stop_seconds=300)
    assert values(text, "TimeoutStopSec") == ["330"]
    assert values(text, "KillMode") == ["mixed"]


def test_bodies_that_take_all_memory_cost_a_worker_and_nothing_else() -> None:
    assert values(unit(), "MemoryMax") == ["4G"]
    assert values(unit(), "OOMPolicy") == ["continue"]


def test_a_reload_hands_over_and_a_restart_keeps_the_socket() -> None:
    assert values(unit(), "ExecReload") == ['/bin/sh -c "kill -HUP ${MAINPID}"']
    assert values(unit(), "Requires") == [SOCKET]
    assert values(unit(), "RuntimeDirectoryPreserve") == ["yes"]
    # Without --socket: it takes the one of the socket unit.
    assert values(unit(), "ExecStart") == ["/srv/llm/gateway/current/bin/python -m llm_gateway"]


def test_only_nginx_s_group_reaches_the_socket() -> None:
    text = unit(SOCKET)
    assert values(text, "ListenStream") == ["/run/llm-gateway/http.sock"]
    assert (values(text, "SocketGroup"), values(text, "SocketMode")) == (["llm-http"], ["0660"])
    line = "d /run/llm-gateway 0750 llm-gateway llm-http -"
    assert line in wanted.tmpfiles("/srv/llm", frozenset({"gateway"}))
    # There is no such user elsewhere.
    assert line not in wanted.tmpfiles("/srv/llm", frozenset({"gpu"}))


@pytest.mark.parametrize("mode", ["direct", "full"])
def test_without_other_hosts_it_has_no_network(mode: str) -> None:
    text = unit(mode=mode)
    assert values(text, "PrivateNetwork") == ["yes"]
    assert values(text, "RestrictAddressFamilies") == ["AF_UNIX"]


def test_with_other_hosts_it_has_one_that_is_up_before_it() -> None:
    text = unit(engines=({"host": "x"},))
    assert values(text, "PrivateNetwork") == []
    assert values(text, "RestrictAddressFamilies") == ["AF_UNIX AF_INET AF_INET6"]
    assert "network-online.target" in values(text, "After")[1]
    assert "LLM_GATEWAY_SHAPE=full-remote" in text


def test_mode_direct_has_no_configuration_and_no_shape() -> None:
    text = unit(mode="direct")
    assert "LLM_GATEWAY_CONFIG" not in text
    assert "LLM_GATEWAY_SHAPE" not in text
    assert values(text, "Before") == ["nginx.service"]
