"""Wheels from the fleet's first host: who downloads, who serves, and what when it is down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations import host_steps, wheelhouse
from pyinfra_deploy.operations.program import ConnectionLost
from pyinfra_deploy.planning.wanted import Environment
from tests.fakes.pyinfra_host import ROOT, PyinfraWorld, refusal

if TYPE_CHECKING:
    from pyinfra.api import Host

WHEELS = ({"file": "vllm-1-py3-none-any.whl", "sha256": "a" * 64, "size_bytes": 5},)
ENVIRONMENT = Environment(
    label="vLLM 0.33.0",
    name="vllm-1",
    path=f"{ROOT}/runtimes/vllm-1",
    digest="d",
    job={"index_url": "https://index.example", "extra_index_urls": [], "find_links": []},
    wheels=WHEELS,
    serve_port=8471,
)
ADDRESSES = {"gpu01": "192.0.2.11", "gpu02": "192.0.2.12", "gpu03": "192.0.2.13"}
URL = "http://192.0.2.11:8471/"


@pytest.fixture
def fleet(world: PyinfraWorld, monkeypatch: pytest.MonkeyPatch) -> PyinfraWorld:
    def addresses_of(host: Host) -> list[str]:
        return [ADDRESSES[host.name.removeprefix("@fake/")]]

    monkeypatch.setattr(wheelhouse, "addresses_of", addresses_of)
    for host in world.state.inventory:
        monkeypatch.setattr(host, "groups", ["gpu"])
        name = host.name.removeprefix("@fake/")
        world.script.says("job status", {"state": "done", "result": {}}, host=name)
        address = ADDRESSES[name]
        world.script.says("wheels serve", {"url": f"http://{address}:8471/"}, host=name)
    return world


def build(world: PyinfraWorld, host: str) -> bool:
    return world.run(
        host_steps.build_environment, host=host, environment=ENVIRONMENT, llm_root=ROOT
    )


def started(world: PyinfraWorld, host: str) -> list[dict[str, Any]]:
    return [
        sent.spec
        for sent in world.script.sent
        if sent.host == host and sent.command.endswith("job start")
    ]


def test_the_first_host_downloads_once_and_serves_the_others(fleet: PyinfraWorld) -> None:
    for host in ("gpu02", "gpu01", "gpu03"):
        assert build(fleet, host)
    gathered, own = started(fleet, "gpu01")
    assert gathered["kind"] == "wheels"
    assert gathered["spec"]["wheels"] == list(WHEELS)
    assert gathered["spec"]["index_url"] == "https://index.example"
    assert gathered["spec"]["remove_others"] is True
    # Another run, for other hosts, may be serving other wheels from there.
    assert gathered["spec"]["keep_seconds"] >= 3600
    assert own["spec"]["wheelhouse"] == f"{ROOT}/wheels"
    for host in ("gpu02", "gpu03"):
        (job,) = started(fleet, host)
        assert job["kind"] == "environment"
        assert job["spec"]["wheelhouse"] == URL


def test_it_serves_at_its_address_to_the_inventory_alone(fleet: PyinfraWorld) -> None:
    build(fleet, "gpu02")
    (asked,) = [sent.spec for sent in fleet.script.sent if sent.command.endswith("wheels serve")]
    assert asked["address"] == "192.0.2.11"
    assert asked["allowed"] == sorted(ADDRESSES.values())
    assert asked["port"] == 8471


def test_the_first_host_alone_opens_no_server(fleet: PyinfraWorld) -> None:
    assert build(fleet, "gpu01")
    assert "wheels serve" not in fleet.script.commands()


def test_every_host_says_beforehand_what_it_is_going_to_need(fleet: PyinfraWorld) -> None:
    """So that the first host downloads all of it at once."""
    more = ({"file": "uv-1-py3-none-any.whl", "sha256": "b" * 64, "size_bytes": 7},)
    tool = Environment("uv", "uv-1", f"{ROOT}/tools/uv-1", "e", ENVIRONMENT.job, more, 8471)
    wheelhouse.announce(fleet.state, tool)
    build(fleet, "gpu02")
    (gathered, *_) = started(fleet, "gpu01")
    assert gathered["spec"]["wheels"] == [*WHEELS, *more]


def test_the_next_host_serves_when_the_first_has_failed(
    fleet: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.state.failed_hosts.add(fleet.host("gpu01"))
    assert build(fleet, "gpu03")
    assert started(fleet, "gpu03")[0]["spec"]["wheelhouse"] == "http://192.0.2.12:8471/"
    assert "does not serve the wheels of this run: its own run has failed" in caplog.text


def test_the_next_host_serves_when_the_first_goes_away(
    fleet: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.script.says("job start", ConnectionLost("gone"), host="gpu01")
    assert build(fleet, "gpu03")
    assert started(fleet, "gpu03")[0]["spec"]["wheelhouse"] == "http://192.0.2.12:8471/"
    assert "cannot be reached" in caplog.text


def test_a_first_host_that_is_not_of_this_run_is_connected_to(
    fleet: PyinfraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fleet.host("gpu01")
    monkeypatch.setattr(first, "connected", False)
    assert build(fleet, "gpu02")
    assert fleet.connects == ["gpu01"]
    assert started(fleet, "gpu02")[0]["spec"]["wheelhouse"] == URL


def test_a_first_host_that_does_not_answer_at_all_is_passed_over(
    fleet: PyinfraWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def connect(**_: Any) -> None:
        raise TimeoutError("timed out")

    first = fleet.host("gpu01")
    monkeypatch.setattr(first, "connected", False)
    monkeypatch.setattr(first, "connect", connect)
    assert build(fleet, "gpu03")
    assert started(fleet, "gpu03")[0]["spec"]["wheelhouse"] == "http://192.0.2.12:8471/"
    assert "it cannot be reached" in caplog.text


def test_a_first_host_with_an_older_program_is_passed_over(fleet: PyinfraWorld) -> None:
    fleet.state.active_hosts.discard(fleet.host("gpu01"))
    fleet.script.says("job start", refusal("there is no job kind 'wheels'"), host="gpu01")
    assert build(fleet, "gpu02")
    assert started(fleet, "gpu02")[-1]["spec"]["wheelhouse"] == f"{ROOT}/wheels"


def test_a_download_that_fails_is_told_on_the_host_that_waits(
    fleet: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    failed = {"state": "failed", "error": {"what": "the wheel x is not the one", "why": "hash"}}
    fleet.script.says("job status", failed, host="gpu01")
    for host in ("gpu02", "gpu03", "gpu01"):
        caplog.clear()
        assert not build(fleet, host)
        assert "gpu01 has no wheels to serve: the wheel x is not the one" in caplog.text
    assert started(fleet, "gpu02") == []
    assert len(started(fleet, "gpu01")) == 1, "it was tried again for each host"


def test_without_any_host_it_says_what_to_do(
    fleet: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ADDRESSES:
        fleet.script.says("job start", ConnectionLost("gone"), host=name)
    assert not build(fleet, "gpu02")
    assert "no host of the inventory can serve the wheels" in caplog.text
    assert "runtime.wheelhouse" in caplog.text


def test_what_cannot_be_pruned_fails_nothing(
    world: PyinfraWorld, caplog: pytest.LogCaptureFixture
) -> None:
    arguments: dict[str, Any] = {"llm_root": ROOT, "keep_releases": 3, "keep_runtimes": 2}
    world.script.says("prune", refusal("could not be removed"))
    assert world.run(host_steps.prune, **arguments)
    assert "could not be removed" in caplog.text
    gone = {"changed": True, "releases": ["main/r1"], "runtimes": ["vllm-1"], "freed_bytes": 3e9}
    world.script.says("prune", gone)
    assert world.run(host_steps.prune, **arguments)
    assert world.script.sent[-1].spec == {"keep_releases": 3, "keep_runtimes": 2}
