"""The gateway service's settings: what is wrong together, and engines of other hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.settings import SettingsError, load_fleet
from pyinfra_deploy.settings.pyinfra_hosts import pyinfra_groups

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

TWO_SHAPES = """\
all:
  children:
    prod:
      vars: {ansible_group_priority: 10}
      hosts:
        gpu[01:02]:
        front:
    gpu:
      hosts:
        gpu[01:02]:
    gateway:
      hosts:
        front:
"""


def write_gateway(repository: Repository, text: str) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text() + "".join(f"  {line}\n" for line in text.splitlines()))


def refusal(repository: Repository) -> str:
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    return str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("aliases: {Qwen/Qwen3-32B: Qwen/Qwen3-32B}", "is itself the name of a model"),
        ("aliases: {a: b}", "stands for b, which no engine behind this gateway serves"),
        ("aliases: {a b: Qwen/Qwen3-32B}", "gateway.aliases"),
        ("tiers: [{name: a}, {name: a}]", "names the tier a twice"),
        ("tiers: []", "gateway.tiers"),
        ("default_tier: gold", "gold is none of gateway.tiers (default)"),
        ("admission: {maxima: [{parameter: n, most: 1}, {parameter: n, most: 2}]}", "n twice"),
        (
            "admission: {allowed_parameters: [n], maxima: [{parameter: max_tokens, most: 9}]}",
            "limits max_tokens, which gateway.admission.allowed_parameters does not allow",
        ),
        ("admission: {maxima: [{parameter: n, most: many}]}", "a number, 0 to"),
        ("health: {open_seconds: 61}", "is longer than gateway.health.max_open_seconds"),
        ("queue: {max_wait_seconds: 600}", "1 to 80"),
        ("revoked_streams: end\nauth: {url: https://a.example.com/c}", "is asked before an answer"),
        ("mode: direct\nkv_cache_usage: true", "with gateway.mode: direct nobody heeds it"),
        ("mode: direct\nqueue: {max_waiting: 1}", "with gateway.mode: direct nobody heeds it"),
        ("mode: neither", "full or direct"),
    ],
)
def test_what_is_refused(repository: Repository, lines: str, said: str) -> None:
    write_gateway(repository, lines)
    assert said in refusal(repository)


@pytest.mark.parametrize(
    "lines",
    [
        "aliases: {gpt-4o: Qwen/Qwen3-32B}",
        "tiers: [{name: a, weight: 3}, {name: b}]\ndefault_tier: b",
        "admission:\n  allowed_parameters: [max_completion_tokens]\n"
        "  maxima: [{parameter: max_tokens, most: 9}]",
        "admission: {maxima: [{parameter: temperature, most: 1.5}]}",
        "revoked_streams: end",
        "mode: direct\nmax_body_mb: 4",
    ],
)
def test_what_is_right(repository: Repository, lines: str) -> None:
    write_gateway(repository, lines)
    assert load_fleet("prod", repository.root).warnings == []


def test_an_inventory_that_names_none_of_it_needs_nothing(repository: Repository) -> None:
    fleet = load_fleet("prod", repository.root)
    gateway = fleet.hosts["gpu01"].settings.gateway
    assert gateway is not None
    assert gateway.mode == "full"
    assert [tier.name for tier in gateway.tiers] == ["default"]


def test_a_gateway_in_front_of_gpu_hosts(repository: Repository) -> None:
    repository.write("inventories/prod/hosts.yml", TWO_SHAPES)
    repository.write("host_vars/gpu01.yml", "ansible_host: 10.0.0.1\n")
    write_gateway(repository, "aliases: {short: Qwen/Qwen3-32B}")
    fleet = load_fleet("prod", repository.root)
    assert fleet.warnings == []
    data = dict(pyinfra_groups(fleet)["all"][0])
    engines = data["front"]["fleet"]["engines"]
    assert [(one["host"], one["address"]) for one in engines] == [
        ("gpu01", "10.0.0.1"), ("gpu02", "gpu02"),
    ]  # fmt: skip
    assert engines[0]["server_name"] == "gpu01.engine.prod.fleet.internal"
    assert data["gpu01"]["fleet"]["engines"] == []


def test_a_gateway_alone_needs_the_service(repository: Repository) -> None:
    repository.write("inventories/prod/hosts.yml", TWO_SHAPES)
    write_gateway(repository, "mode: direct")
    assert "its Nginx would have no engine" in refusal(repository)
