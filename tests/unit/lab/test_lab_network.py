import json
from pathlib import Path

import pytest

from lab import network
from lab.errors import LabError
from lab.network import foreign_route, forward_drops, host_network_commands, nft_rules
from lab.plan import Host

GPU2 = Host("gpu2", "bookworm", ("lab",))


def test_host_network_is_marked_complete_last() -> None:
    commands = host_network_commands(GPU2)
    assert commands[0] == ["ip", "netns", "add", "fleetlab-gpu2"]
    assert [
        "ip",
        "-n",
        "fleetlab-gpu2",
        "addr",
        "add",
        "10.213.77.11/24",
        "dev",
        "eth0",
    ] in commands
    assert commands[-1][:5] == ["ip", "link", "set", "fl-gpu2", "alias"]


def test_nft_rules_touch_only_our_table() -> None:
    rules = nft_rules()
    tables = [line for line in rules.splitlines() if "table" in line.split()[:2]]
    assert len(tables) == 3
    assert all("table ip fleet_lab" in line for line in tables)
    assert "flush ruleset" not in rules
    # Loading twice must not double the rules.
    assert rules.index("delete table ip fleet_lab") < rules.index("chain postrouting")


def test_a_route_of_somebody_else_is_found() -> None:
    ours = "default via 192.0.2.1 dev eth0\n10.213.77.0/24 dev fleetlab0 proto kernel scope link\n"
    assert foreign_route(ours) is None
    assert foreign_route(ours + "10.213.77.0/24 dev tun0\n") == "10.213.77.0/24 dev tun0"


def test_forward_chains_that_drop_are_named() -> None:
    chain = {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward"}
    listing = {"nftables": [{"metainfo": {}}, {"chain": {**chain, "policy": "drop"}}]}
    assert forward_drops(json.dumps(listing)) == ["ip filter FORWARD"]
    listing["nftables"] = [{"chain": {**chain, "policy": "accept"}}, {"chain": {"family": "ip",
        "table": "filter", "name": "DOCKER"}}]  # fmt: skip
    assert forward_drops(json.dumps(listing)) == []


@pytest.mark.parametrize(
    ("alias", "refused"),
    [(None, False), ("", False), ("fleet-lab: /var/lib/fleet-lab", False), ("mine", True),
     ("fleet-lab: /home/me/other", True)],
)  # fmt: skip
def test_only_our_own_bridge_is_used(
    monkeypatch: pytest.MonkeyPatch, alias: str | None, refused: bool
) -> None:
    monkeypatch.setattr(network, "link_alias", lambda _name: alias)
    directory = Path("/var/lib/fleet-lab")
    if refused:
        with pytest.raises(LabError, match="is not this lab's"):
            network.refuse_foreign_bridge(directory)
    else:
        network.refuse_foreign_bridge(directory)


def test_a_file_without_a_namespace_is_no_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "NETNS_DIRECTORY", tmp_path)
    (tmp_path / "fleetlab-gpu1").touch()
    assert not network.is_netns("fleetlab-gpu1")
    assert not network.is_netns("fleetlab-gpu2")
    assert network.host_names_with_network() == ["gpu1"]
