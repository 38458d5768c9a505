"""Which hosts meet each other by mutual TLS, and under which names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyinfra_deploy.settings.mutual_tls import (
    NOBODY,
    MutualTls,
    as_data,
    common_name,
    differing_ports,
    from_data,
    host_identity,
    internal_domain,
    mutual_tls_of,
)


def host(name: str, *groups: str, mode: str = "full", **gateway: Any) -> Any:
    settings = {"mode": mode, "engine_port": 8443, "max_body_mb": None} | gateway
    settings.setdefault("read_timeout_seconds", 600)
    return SimpleNamespace(
        name=name,
        groups=frozenset(groups),
        settings=SimpleNamespace(
            gateway=SimpleNamespace(**settings) if "gateway" in groups else None
        ),
    )


def fleet(*hosts: Any) -> Any:
    return SimpleNamespace(name="prod", hosts={one.name: one for one in hosts})


def test_gateways_in_front_of_engines() -> None:
    front, behind = host("gw01", "gateway", max_body_mb=20), host("gpu01", "gpu")
    second = host("gw02", "gateway", read_timeout_seconds=900)
    found = fleet(front, second, behind)
    assert mutual_tls_of(found, front) == MutualTls("gateway", "gw01.gateway.prod.fleet.internal")
    assert mutual_tls_of(found, behind) == MutualTls(
        "engine",
        "gpu01.engine.prod.fleet.internal",
        ("gw01.gateway.prod.fleet.internal", "gw02.gateway.prod.fleet.internal"),
        port=8443,
        max_body_mb=20,
        read_timeout_seconds=900,
    )
    assert from_data({"mutual_tls": as_data(mutual_tls_of(found, behind))}) == mutual_tls_of(
        found, behind
    )


def test_all_on_each_host_needs_none() -> None:
    one, two = host("gpu01", "gpu", "gateway"), host("gpu02", "gpu", "gateway")
    assert [mutual_tls_of(fleet(one, two), each) for each in (one, two)] == [NOBODY, NOBODY]
    assert from_data({}) == NOBODY


def test_direct_gateways_come_to_nobody() -> None:
    one, two = host("gpu01", "gpu", "gateway", mode="direct"), host("gpu02", "gpu")
    assert [mutual_tls_of(fleet(one, two), each) for each in (one, two)] == [NOBODY, NOBODY]


def test_one_door_has_one_port() -> None:
    hosts = {"a": host("a", "gateway"), "b": host("b", "gateway", engine_port=9443)}
    (problem,) = differing_ports(hosts)
    assert "a: 8443, b: 9443" in str(problem)
    assert not list(differing_ports({"a": hosts["a"]}))


@pytest.mark.parametrize(
    "name", ["gpu01", "GPU01", "10.0.0.1", "10-0-0-1", "host_a", "host-a", "x" * 200, "-", "é"]
)
def test_each_host_has_a_name_of_its_own(name: str) -> None:
    others = ["gpu01", "GPU01", "10.0.0.1", "10-0-0-1", "host_a", "host-a", "x" * 200, "-", "é"]
    mine = host_identity(name, "engine", "prod")
    assert [host_identity(one, "engine", "prod") for one in others].count(mine) == 1
    label = mine.removesuffix(f".engine.{internal_domain('prod')}")
    assert label != mine
    assert 1 <= len(label) <= 63
    assert label.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == ""
    assert not label.startswith("-")
    assert host_identity(name, "gateway", "prod") != mine


def test_a_common_name_is_short_enough_and_still_its_own() -> None:
    long = [host_identity("h" * 60 + end, "gateway", "a-long-inventory") for end in ("a", "b")]
    names = [common_name(one) for one in long]
    assert [len(name) for name in names] == [64, 64]
    assert names[0] != names[1]
    assert common_name("gw01.gateway.prod.fleet.internal") == "gw01.gateway.prod.fleet.internal"
