"""The lab itself: what it makes goes with it, and what others made stays. Runs before the lab is
brought up for the other tests, and only where it is down: there is one on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab import hosts, network
from lab.commands import run_checked, try_run
from lab.layout import current_layout
from lab.plan import BRIDGE, BRIDGE_MAC, NFT_TABLE
from tests.hosts import machine_state
from tests.hosts.lab_session import shell

if TYPE_CHECKING:
    from collections.abc import Iterator

THEIRS = "other-bridge0"
TABLE = "other_table"
RULES = f"""\
table inet {TABLE} {{
  chain forward {{ type filter hook forward priority 5; policy accept; ip daddr 192.0.2.1 drop; }}
}}
"""


@pytest.fixture
def what_others_made() -> Iterator[None]:
    """A bridge and a firewall table as Docker or an operator has them."""
    run_checked(["ip", "link", "add", THEIRS, "type", "bridge"], what="a bridge")
    try:
        run_checked(["ip", "link", "set", THEIRS, "alias", "theirs", "up"], what="a bridge")
        run_checked(["nft", "-f", "-"], what="a table", input_text=RULES)
        yield
    finally:
        try_run(["nft", "delete", "table", "inet", TABLE])
        try_run(["ip", "link", "del", THEIRS])


@pytest.fixture
def no_lab() -> None:
    if hosts.status():
        pytest.skip("the lab is up, and a machine has one: `lab down` first to try its end")
    with hosts.exclusive_as_root("up", install=True):  # packages, which `down` leaves installed
        is_left = network.link_alias(BRIDGE) is not None
    if is_left:
        hosts.down()  # what a killed run has made


@pytest.mark.usefixtures("no_lab", "what_others_made")
def test_down_leaves_the_machine_as_it_was_and_reset_changes_it_not_at_all() -> None:
    before = machine_state.snapshot()
    assert any(TABLE in line for line in before["nft"])
    assert any(line.startswith(THEIRS) for line in before["links"])
    layout = current_layout()
    try:
        (host,) = hosts.up(1)
        during = machine_state.snapshot()
        # Its own, not a host's, which it would lose with that host.
        assert (network.LINKS / BRIDGE / "address").read_text().strip() == BRIDGE_MAC
        # Seen at all: else the comparison at the end would say nothing.
        came = machine_state.differences(before, during)
        for kind, word in (
            ("links", BRIDGE), ("routes", BRIDGE), ("nft", f"table ip {NFT_TABLE}"),
            ("netns", host.name), ("cgroups", host.name), ("processes", host.name),
        ):  # fmt: skip
            assert [line for line in came if line.startswith(f"+ {kind} ") and word in line], came
        # The overlay and nspawn's mounts are in the host's own mount namespace.
        assert [line for line in came if " mounts " in line and "/run/netns" not in line] == []
        assert [line for line in came if line.startswith("- ") and " sysctls " not in line] == []
        shell(host.name, "echo here > /srv/mark; cat /srv/mark")
        hosts.reset(host.name)
        assert shell(host.name, "cat /srv/mark 2>&1 || true").endswith(
            "No such file or directory\n"
        )
        assert machine_state.differences(during, machine_state.snapshot()) == []
    finally:
        hosts.down()
    assert machine_state.differences(before, machine_state.snapshot()) == []
    for path in (layout.hosts, layout.trash, layout.state_file, layout.inventory,
                 layout.known_hosts, layout.ssh_config):  # fmt: skip
        assert not path.exists(), path
    assert hosts.status() == []
