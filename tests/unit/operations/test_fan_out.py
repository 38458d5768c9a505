"""Who is opened to whom before the first host pulls, and what is said of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.context import ctx_host, ctx_state

from pyinfra_deploy.deploys import model as deploy_model
from pyinfra_deploy.operations import engine_steps, fan_out
from pyinfra_deploy.operations.program import ConnectionLost
from pyinfra_deploy.planning.host_plan import HostPlan
from tests.fakes.pyinfra_host import ROOT, PyinfraWorld, refusal
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from pyinfra.api import Host

    from pyinfra_deploy.settings.schema import Settings

LOCK = "locks/models/Qwen--Qwen3-32B/master.json"
MODEL = "Qwen--Qwen3-32B/master-1d0e5a7c93b2"
PULL = {
    "model_id": "Qwen/Qwen3-32B", "revision": "master", "directory": MODEL.split("/")[1],
    "fan_out": True,
}  # fmt: skip
ADDRESSES = {"gpu01": "192.0.2.11", "gpu02": "192.0.2.12", "gpu03": "192.0.2.13"}
OPEN = {"state": "open", "why": "", "published": False}
NOTHING = {"state": "nothing", "why": "it does not have the model", "published": False}
DONE = {"state": "done", "result": {"model_digest": "d1"}}


def settings(**model: Any) -> Settings:
    return worlds.settings_with({"model": {"lock": LOCK, **model}})


def plan_of(host: str, **model: Any) -> HostPlan:
    return HostPlan(host=host, groups=frozenset({"gpu"}), settings=settings(**model), pull=PULL)


@pytest.fixture
def fleet(
    world: PyinfraWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> PyinfraWorld:
    caplog.set_level(logging.INFO, logger="pyinfra")

    def addresses_of(host: Host) -> list[str]:
        address = ADDRESSES.get(name_of(host))
        return [address] if address else []

    monkeypatch.setattr(fan_out, "addresses_of", addresses_of)
    monkeypatch.setattr(engine_steps, "_pulled", {})
    for host in world.state.inventory:
        monkeypatch.setattr(host, "groups", ["gpu"])
        host.data.settings = settings()
        world.script.says("job status", DONE, host=name_of(host))
        world.script.says("fan-out open", OPEN, host=name_of(host))
    return world


def name_of(host: Host) -> str:
    return str(host.name.removeprefix("@fake/"))


def pulls(world: PyinfraWorld, *hosts: str) -> None:
    """All announce themselves while the run is prepared, then pull."""
    for host in hosts:
        fan_out.announce(world.state, world.host(host), plan_of(host))
    for host in hosts:
        assert world.run(engine_steps.pull_model, host=host, plan=plan_of(host), job_id="m")


def opened(world: PyinfraWorld) -> dict[str, dict[str, Any]]:
    """The last request to each host."""
    return {
        sent.host: sent.spec for sent in world.script.sent if sent.command.endswith("fan-out open")
    }


def test_all_that_pull_are_opened_to_each_other_once_before_the_first_pulls(
    fleet: PyinfraWorld,
) -> None:
    pulls(fleet, "gpu02", "gpu01", "gpu03")
    commands = fleet.script.commands()
    assert commands.count("fan-out open") == 3
    assert commands.index("job start") > 2
    asked = opened(fleet)
    assert len({spec["token"] for spec in asked.values()}) == 1
    assert len(asked["gpu01"]["token"]) == 64
    for rank, (name, address) in enumerate(ADDRESSES.items()):
        spec = asked[name]
        assert (spec["rank"], spec["pulling"], spec["model"]) == (rank, True, MODEL)
        assert (spec["address"], spec["port"]) == (address, 8472)
        assert spec["allowed"] == sorted(ADDRESSES.values())
        assert [peer["rank"] for peer in spec["peers"]] == [0, 1, 2]


def test_a_host_that_nobody_announced_is_opened_when_it_comes(fleet: PyinfraWorld) -> None:
    for host in ("gpu01", "gpu02"):
        fleet.script.says("fan-out open", NOTHING, OPEN, host=host)
        plan = plan_of(host)
        assert fleet.run(engine_steps.pull_model, host=host, plan=plan, job_id="m")
    asked = opened(fleet)
    assert [peer["rank"] for peer in asked["gpu01"]["peers"]] == [0, 1, 2]
    assert [asked[name]["pulling"] for name in ("gpu01", "gpu02")] == [True, True]


def test_two_runs_have_two_secrets(fleet: PyinfraWorld) -> None:
    pulls(fleet, "gpu01", "gpu02")
    first = opened(fleet)["gpu01"]["token"]
    fan_out._runs.clear()
    pulls(fleet, "gpu01", "gpu02")
    assert opened(fleet)["gpu01"]["token"] != first


def test_a_host_that_has_the_model_gives_it_and_one_that_has_none_is_no_peer(
    fleet: PyinfraWorld,
) -> None:
    fleet.script.says("fan-out open", NOTHING, host="gpu03")
    pulls(fleet, "gpu02")
    asked = opened(fleet)
    assert asked["gpu01"]["pulling"] is False
    assert [peer["name"] for peer in asked["gpu02"]["peers"]] == ["@fake/gpu02", "@fake/gpu01"]


def test_a_host_outside_of_the_run_is_asked_when_none_of_it_has_the_model(
    fleet: PyinfraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpu01", "gpu03"):
        monkeypatch.setattr(fleet.host(name), "connected", False)
        fleet.state.active_hosts.discard(fleet.host(name))
    pulls(fleet, "gpu02")
    assert fleet.connects == ["gpu01"], "one that has it is enough"
    assert "@fake/gpu01" in [peer["name"] for peer in opened(fleet)["gpu02"]["peers"]]


def test_hosts_that_are_down_are_no_end(
    fleet: PyinfraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(**_: Any) -> None:
        raise TimeoutError("timed out")

    for name in ("gpu01", "gpu03"):
        monkeypatch.setattr(fleet.host(name), "connected", False)
        monkeypatch.setattr(fleet.host(name), "connect", connect)
    pulls(fleet, "gpu02")
    assert [peer["name"] for peer in opened(fleet)["gpu02"]["peers"]] == ["@fake/gpu02"]


@pytest.mark.parametrize(
    "answer",
    [
        ConnectionLost("gone"),
        refusal("'fan-out open' is not a command"),
        {"state": "closed", "why": "the port is in use", "published": False},
    ],
)
def test_a_host_that_cannot_be_opened_is_named_and_pulls_all_the_same(
    fleet: PyinfraWorld, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    fleet.script.says("fan-out open", answer, host="gpu02")
    pulls(fleet, "gpu01", "gpu02")
    assert "[gpu02]" in caplog.text or "gpu02" in caplog.text
    assert "gives no model to other hosts in this run" in caplog.text
    assert fleet.script.commands("gpu02").count("job start") == 1


def test_hosts_with_another_lock_or_without_fan_out_are_left_alone(fleet: PyinfraWorld) -> None:
    fleet.host("gpu02").data.settings = settings(fan_out={"enabled": False})
    fleet.host("gpu03").data.settings = settings(lock="locks/models/other.json")
    pulls(fleet, "gpu01")
    assert set(opened(fleet)) == {"gpu01"}


def test_a_pull_that_shares_nothing_opens_nobody(fleet: PyinfraWorld) -> None:
    plan = HostPlan(
        host="gpu01", groups=frozenset({"gpu"}), settings=settings(), pull={"model_id": "a/b"}
    )
    assert fleet.run(engine_steps.pull_model, plan=plan, job_id="m")
    assert "fan-out open" not in fleet.script.commands()


def test_a_host_that_failed_before_is_not_waited_for(fleet: PyinfraWorld) -> None:
    fan_out.announce(fleet.state, fleet.host("gpu01"), plan_of("gpu01"))
    fleet.state.failed_hosts.add(fleet.host("gpu01"))
    pulls(fleet, "gpu02")
    assert "gpu01" not in opened(fleet)


def test_the_storage_network_the_port_and_the_rate_are_the_settings(fleet: PyinfraWorld) -> None:
    host = fleet.host("gpu01")
    host.data.settings = worlds.settings_with(
        {
            "storage_address": "198.51.100.11",
            "model": {"lock": LOCK, "fan_out": {"port": 9000, "rate_mb_per_second": 400}},
        }
    )
    pulls(fleet, "gpu01", "gpu02")
    asked = opened(fleet)["gpu01"]
    assert (asked["address"], asked["port"]) == ("198.51.100.11", 9000)
    assert asked["rate_bytes_per_second"] == 400_000_000
    # A host may ask from either of its addresses.
    assert {"198.51.100.11", "192.0.2.11"} <= set(asked["allowed"])
    (peer,) = [one for one in opened(fleet)["gpu02"]["peers"] if one["rank"] == 0]
    assert (peer["address"], peer["port"]) == ("198.51.100.11", 9000)


def test_what_peers_did_is_told(fleet: PyinfraWorld, caplog: pytest.LogCaptureFixture) -> None:
    line = "peer gpu03 (192.0.2.13 port 8472): it does not answer. If that host is up, ..."
    result = {
        "model_digest": "d1",
        "peers": {
            "files": 3,
            "from": {"gpu01": 5_000_000_000},
            "dropped": {"gpu02": "it gave wrong bytes for model-1.safetensors"},
            "unreachable": [line],
        },
    }
    fleet.script.says("job status", {"state": "done", "result": result}, host="gpu02")
    pulls(fleet, "gpu02")
    assert "5.00 GB came from gpu01" in caplog.text
    assert "left gpu02 out: it gave wrong bytes for model-1.safetensors" in caplog.text
    assert line in caplog.text
    assert ROOT in fleet.script.sent[0].command


def test_a_host_announces_its_pull_while_the_run_is_prepared(
    fleet: PyinfraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `pyinfra -y` an operation is looked at only when it is executed: too late."""
    monkeypatch.setattr(engine_steps, "pull_model", lambda **_: None)
    for name in ("gpu02", "gpu03"):
        with ctx_state.use(fleet.state), ctx_host.use(fleet.host(name)):
            deploy_model.model._inner(plan=plan_of(name))
    announced = fan_out._runs[fleet.state].pulling[MODEL]
    assert {name_of(host) for host in announced} == {"gpu02", "gpu03"}
