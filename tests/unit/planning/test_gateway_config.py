"""The service's configuration from settings: read by the service itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llm_gateway.config import Config, parse_config

from pyinfra_deploy.planning import gateway_config
from pyinfra_deploy.planning.hold import read_hold
from tests.unit.planning import worlds

BOTH, FRONT = frozenset({"gpu", "gateway"}), frozenset({"gateway"})


def engine(host: str = "gpu01", **settings: Any) -> dict[str, Any]:
    return {
        "host": host,
        "address": "10.0.0.1",
        "server_name": f"{host}.engine.prod.fleet.internal",
        "settings": worlds.settings_with(settings),
    }


def configured(
    groups: frozenset[str] = BOTH, engines: tuple[Any, ...] = (), **settings: Any
) -> Config:
    text = gateway_config.service_text(groups, worlds.settings_with(settings), engines)
    assert text is not None
    return parse_config(text.encode())


def test_the_host_s_own_engine_is_behind_its_socket() -> None:
    (backend,) = configured().backends
    assert (backend.name, backend.socket) == ("main", "/run/llm-engine-main/http.sock")
    assert backend.models == ("Qwen/Qwen3-32B",)
    assert backend.max_model_len == 16384
    assert backend.drain_flag == "/run/llm/drain/main"
    assert backend.ready_path is None
    assert backend.max_concurrent == 256
    assert not backend.priority_scheduling


def test_settings_that_name_nothing_are_the_service_s_own_defaults() -> None:
    """But for what Nginx and the settings know better: silences, and that an engine which was
    started again is to be found soon."""
    ours, theirs = (
        configured(),
        parse_config(
            json.dumps(
                {
                    "schema": 1,
                    "backends": [
                        {
                            "name": "main",
                            "url": "unix:/run/llm-engine-main/http.sock",
                            "models": ["Qwen/Qwen3-32B"],
                            "max_model_len": 16384,
                            "drain_flag": "/run/llm/drain/main",
                        }
                    ],
                    "health": {"max_open_seconds": 10},
                    "timeouts": {"first_byte_seconds": 600, "between_bytes_seconds": 600},
                }
            ).encode()
        ),
    )
    assert ours == theirs


def test_engine_arguments_are_heeded() -> None:
    args = {"max-model-len": "16k", "scheduling-policy": "priority", "max-num-seqs": 64}
    (backend,) = configured(engine={"args": args, "name": "other"}).backends
    assert backend.max_model_len is None
    assert backend.priority_scheduling
    assert backend.max_concurrent == 64
    assert (backend.socket, backend.drain_flag) == (
        "/run/llm-engine-other/http.sock", "/run/llm/drain/other",
    )  # fmt: skip
    (backend,) = configured(engine={"args": args}, gateway={"max_concurrent": 8}).backends
    assert backend.max_concurrent == 8


HOLD = {
    "kept": "r1", "rejected": ["r2"], "served_model_name": "old-name", "who": "ada", "why": "slow",
    "when": "2026-11-30T08:00:00Z",
}  # fmt: skip
ASKED = {
    "engine": {"args": {"max-model-len": 4096, "scheduling-policy": "priority"}},
    "gateway": {"aliases": {"big": "Qwen/Qwen3-32B", "former": "old-name"}},
}


def held_backend(**hold: Any) -> Any:
    """Of a host on which a release is held that is not what the settings ask for."""
    held = read_hold({**HOLD, **hold})
    assert held is not None
    settings = worlds.settings_with(ASKED)
    text = gateway_config.service_text(BOTH, settings, (engine("gpu02"),), held)
    assert text is not None
    own, other = parse_config(text.encode()).backends
    # What is held here is nothing that another host has.
    assert (other.models, other.max_model_len) == (("Qwen/Qwen3-32B",), 16384)
    return own


def test_of_a_held_release_only_its_name_is_known() -> None:
    backend = held_backend()
    assert (backend.name, backend.socket) == ("main", "/run/llm-engine-main/http.sock")
    assert backend.models == ("old-name",)
    assert backend.served_name("big") is None  # an alias of another model
    assert backend.served_name("former") == "old-name"
    assert (backend.max_model_len, backend.priority_scheduling) == (None, False)
    assert backend.drain_flag == "/run/llm/drain/main"


def test_a_held_release_without_a_name_keeps_that_of_the_settings() -> None:
    backend = held_backend(served_model_name=None)
    assert backend.models == ("Qwen/Qwen3-32B",)
    assert backend.served_name("big") == "Qwen/Qwen3-32B"
    assert (backend.max_model_len, backend.priority_scheduling) == (None, False)


def test_engines_of_other_hosts_come_by_mutual_tls() -> None:
    other = engine("gpu02", model={"id": "Qwen/Qwen3-8B"})
    config = configured(
        FRONT,
        (engine(), other),
        gateway={"aliases": {"big": "Qwen/Qwen3-32B"}, "engine_port": 9443},
    )
    first, second = config.backends
    assert (first.name, first.url) == ("gpu01-main", "https://10.0.0.1:9443")
    assert first.tls is not None
    assert first.tls.server_name == "gpu01.engine.prod.fleet.internal"
    assert first.tls.key == "/etc/llm-gateway/mtls/host.key"
    assert (first.ready_path, first.drain_flag) == ("/ready", None)
    assert (first.served_name("big"), second.served_name("big")) == ("Qwen/Qwen3-32B", None)
    assert second.models == ("Qwen/Qwen3-8B",)


def test_an_ipv6_address_is_bracketed() -> None:
    (backend,) = configured(FRONT, ({**engine(), "address": "fd00::1"},)).backends
    assert backend.url == "https://[fd00::1]:8443"


def test_a_gateway_with_an_engine_has_its_own_first() -> None:
    assert [one.name for one in configured(BOTH, (engine(),)).backends] == ["main", "gpu01-main"]


def test_what_an_operator_sets() -> None:
    config = configured(
        gateway={
            "tiers": [{"name": "gold", "weight": 9, "priority": -5}, {"name": "batch"}],
            "default_tier": "batch",
            "queue": {"max_waiting": 3, "max_wait_seconds": 7},
            "admission": {
                "allowed_parameters": ["temperature", "max_tokens"],
                "maxima": [{"parameter": "max_tokens", "most": 100},
                           {"parameter": "temperature", "most": 1.5}],
                "count_tokens": False,
            },
            "affinity": {"prefix_bytes": 512, "balance_percent": 150},
            "health": {"failures": 5},
            "kv_cache_usage": True,
            "revoked_streams": "end",
            "stop_seconds": 30,
            "tokenize": True,
            "read_timeout_seconds": 90,
            "max_body_mb": 2,
        }
    )  # fmt: skip
    assert (config.tiers["gold"].weight, config.tiers["gold"].priority) == (9, -5)
    assert (config.default_tier, config.max_waiting, config.max_wait_seconds) == ("batch", 3, 7)
    assert config.admission.allowed_parameters == frozenset({"temperature", "max_tokens"})
    assert config.admission.maxima == {"max_tokens": 100, "temperature": 1.5}
    assert (config.admission.count_tokens, config.admission.expose_tokenize) == (False, True)
    assert (config.prefix_bytes, config.balance_factor) == (512, 1.5)
    assert (config.health.failures, config.kv_cache, config.revoked_streams) == (5, True, "end")
    assert (config.stop_seconds, config.admission.max_body_bytes) == (30, 2 << 20)
    assert config.timeouts.first_byte_seconds == 90


def test_an_organisation_s_own_auth_service() -> None:
    url = "https://auth.example.com/check"
    config = configured(gateway={"auth": {"url": url, "timeout_seconds": 4}})
    assert config.auth is not None
    assert (config.auth.url, config.auth.answer_seconds) == (url, 4)
    assert config.auth.ca == "/etc/ssl/certs/ca-certificates.crt"
    assert configured().auth is None


@pytest.mark.parametrize(
    ("gateway", "engines", "shape"),
    [
        ({}, (), "full"),
        ({"mode": "direct"}, (), "direct"),
        ({}, (engine(),), "full-remote"),
        ({"auth": {"url": "https://auth.example.com/check"}}, (), "full-remote"),
    ],
)
def test_the_unit_gets_a_network_only_where_it_needs_one(
    gateway: dict[str, Any], engines: tuple[Any, ...], shape: str
) -> None:
    settings = worlds.settings_with({"gateway": gateway})
    assert gateway_config.shape_of(settings, engines) == shape
