"""Bridge, addresses, masquerading, and one network namespace for each host."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lab.commands import run_checked, try_run
from lab.errors import LabError
from lab.plan import (
    BRIDGE,
    BRIDGE_ADDRESS,
    BRIDGE_MAC,
    NETNS_PREFIX,
    NETWORK,
    NFT_TABLE,
    PREFIX_LENGTH,
    Host,
    netns_of,
    veth_of,
)
from lab.report import say

NETNS_DIRECTORY = Path("/run/netns")
LINKS = Path("/sys/class/net")
_READY = "fleet-lab: complete"


def nft_rules() -> str:
    """Our table, replaced as a whole; the first line makes the delete work when there is none.

    The clamp: the uplink's MTU may be below the bridge's 1500, and path MTU discovery often fails.
    """
    return f"""\
table ip {NFT_TABLE} {{}}
delete table ip {NFT_TABLE}
table ip {NFT_TABLE} {{
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {NETWORK} oifname != "{BRIDGE}" masquerade
  }}
  chain forward {{
    type filter hook forward priority mangle; policy accept;
    iifname "{BRIDGE}" tcp flags syn tcp option maxseg size set rt mtu
    oifname "{BRIDGE}" tcp flags syn tcp option maxseg size set rt mtu
  }}
}}
"""


def link_alias(name: str) -> str | None:
    """The link's alias, which is where we write whose it is; None if there is no such link."""
    try:
        return (LINKS / name / "ifalias").read_text().strip()
    except OSError:
        return None


def is_link_up(name: str) -> bool:
    """Administratively up (IFF_UP), whatever the other end does."""
    try:
        return bool(int((LINKS / name / "flags").read_text(), 16) & 1)
    except OSError:
        return False


def bridge_mark(state_directory: Path) -> str:
    return f"fleet-lab: {state_directory}"


def refuse_foreign_bridge(state_directory: Path) -> None:
    """Never use, and never remove, a bridge that another lab or somebody else made."""
    alias = link_alias(BRIDGE)
    # Empty: we were killed between making it and marking it.
    if alias and alias != bridge_mark(state_directory):
        raise LabError(
            what=f"the bridge {BRIDGE} is not this lab's",
            why=f"it is marked {alias!r}, this lab's state is in {state_directory}",
            fix="run `lab down` with the FLEET_LAB_DIR that made it",
        )


def foreign_route(ip_route: str) -> str | None:
    """A route that already covers our addresses by another interface, from `ip -o route`."""
    prefix = BRIDGE_ADDRESS.rsplit(".", 1)[0]
    for line in ip_route.splitlines():
        if line.startswith(f"{prefix}.") and f"dev {BRIDGE} " not in f"{line} ":
            return line.strip()
    return None


def ensure_bridge(state_directory: Path) -> None:
    refuse_foreign_bridge(state_directory)
    route = foreign_route(run_checked(["ip", "-o", "route"], what="reading the routes"))
    if route:
        raise LabError(
            what=f"the lab's network {NETWORK} is in use on this machine",
            why=f"there is a route: {route}",
            fix="remove that route; the lab's addresses are fixed in lab/plan.py",
        )
    if link_alias(BRIDGE) is None:
        # Without an address of its own it takes the lowest of its hosts', and another one when that
        # host goes: the others would send to the old one until they ask again.
        make = ["ip", "link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge"]
        run_checked(make, what="making the bridge")
    mark = bridge_mark(state_directory)
    run_checked(["ip", "link", "set", BRIDGE, "alias", mark], what="marking the bridge")
    address = f"{BRIDGE_ADDRESS}/{PREFIX_LENGTH}"
    run_checked(["ip", "addr", "replace", address, "dev", BRIDGE], what="setting its address")
    run_checked(["ip", "link", "set", BRIDGE, "up"], what="starting the bridge")
    run_checked(["nft", "-f", "-"], what="loading the lab's nft table", input_text=nft_rules())


def forward_drops(nft_json: str) -> list[str]:
    """Foreign base chains that drop forwarded packets by policy: Docker's and ufw's do."""
    entries: list[dict[str, Any]] = json.loads(nft_json or "{}").get("nftables", [])
    chains = [entry["chain"] for entry in entries if "chain" in entry]
    return [
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in chains
        if chain.get("hook") == "forward"
        and chain.get("policy") == "drop"
        and chain["table"] != NFT_TABLE
    ]


def warn_of_firewall() -> None:
    """Our table cannot allow what another's drops, and another's is not ours to change."""
    result = try_run(["nft", "-j", "list", "chains"])
    for chain in forward_drops(result.stdout) if result.returncode == 0 else []:
        say(
            f"warning: the firewall chain `{chain}` drops forwarded packets, so hosts may not "
            f"reach package archives; allow them: iptables -I FORWARD -i {BRIDGE} -j ACCEPT; "
            f"iptables -I FORWARD -o {BRIDGE} -j ACCEPT"
        )


def host_network_commands(host: Host) -> list[list[str]]:
    """Namespace, cable, address and route of one host, marked complete by the last command."""
    veth, netns = veth_of(host.name), netns_of(host.name)
    inside = ["ip", "-n", netns]
    return [
        ["ip", "netns", "add", netns],
        ["ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", netns],
        ["ip", "link", "set", veth, "master", BRIDGE, "up"],
        [*inside, "link", "set", "lo", "up"],
        [*inside, "addr", "add", f"{host.address}/{PREFIX_LENGTH}", "dev", "eth0"],
        [*inside, "link", "set", "eth0", "up"],
        [*inside, "route", "add", "default", "via", BRIDGE_ADDRESS],
        ["ip", "link", "set", veth, "alias", _READY],
    ]


def ensure_host_network(host: Host) -> None:
    if link_alias(veth_of(host.name)) == _READY and is_netns(netns_of(host.name)):
        return
    remove_host_network(host.name)
    for command in host_network_commands(host):
        run_checked(command, what=f"making the network of {host.name}")


def is_netns(netns: str) -> bool:
    """Not so for the file that a killed `ip netns add` leaves: nothing is mounted there."""
    path = NETNS_DIRECTORY / netns
    return path.exists() and path.stat().st_dev != NETNS_DIRECTORY.stat().st_dev


def remove_host_network(name: str) -> None:
    """Namespace and cable; the namespace's end takes the cable with it."""
    netns = netns_of(name)
    if (NETNS_DIRECTORY / netns).exists():
        try_run(["ip", "netns", "del", netns])
        (NETNS_DIRECTORY / netns).unlink(missing_ok=True)
    if link_alias(veth_of(name)) is not None:
        try_run(["ip", "link", "del", veth_of(name)])


def set_link(name: str, *, up: bool) -> None:
    """Plug or pull the host's cable. Pulled, no packet passes in either direction."""
    if link_alias(veth_of(name)) is None:
        return
    state = "up" if up else "down"
    run_checked(["ip", "link", "set", veth_of(name), state], what=f"setting the link {state}")


def host_names_with_network() -> list[str]:
    """Hosts that have a namespace, also those that the state file does not know."""
    found = NETNS_DIRECTORY.glob(f"{NETNS_PREFIX}*") if NETNS_DIRECTORY.is_dir() else []
    return sorted(path.name.removeprefix(NETNS_PREFIX) for path in found)


def remove_network(state_directory: Path) -> None:
    """Table and bridge, if they are there and ours."""
    refuse_foreign_bridge(state_directory)
    tables = try_run(["nft", "list", "tables"]).stdout
    if re.search(rf"^table ip {NFT_TABLE}$", tables, re.MULTILINE):
        run_checked(["nft", "delete", "table", "ip", NFT_TABLE], what="removing the nft table")
    if link_alias(BRIDGE) is not None:
        run_checked(["ip", "link", "del", BRIDGE], what="removing the bridge")
