"""What a lab host sends, as the cable's other end sees it: every frame, whatever runs on the host.

The cable is a veth pair, so an AF_PACKET socket on this machine's end (packet(7)) hears what the
host's own firewall, sandboxes and processes cannot hide.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lab.plan import BRIDGE_ADDRESS, address_of, veth_of

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL_PROTOCOLS = 0x0003  # ETH_P_ALL
IPV4, IPV6, ARP, VLAN = 0x0800, 0x86DD, 0x0806, 0x8100
TCP, UDP = 6, 17
# DNS, DNS over TLS, mDNS and LLMNR.
NAME_PORTS = frozenset({53, 853, 5353, 5355})
# What a kernel does by itself on its own cable: neighbour discovery and group membership.
LOCAL_GROUPS = ipaddress.ip_network("ff02::/16")


@dataclass(frozen=True)
class Packet:
    """One packet. protocol: arp, or the IP protocol's number; port: the destination's."""

    source: str
    target: str
    protocol: str
    port: int = 0

    @property
    def asks_names(self) -> bool:
        return self.port in NAME_PORTS

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} {self.protocol} {self.port or ''}".rstrip()


def parsed(frame: bytes) -> Packet | None:
    """An Ethernet frame; None for what has no address, such as LLDP."""
    kind = int.from_bytes(frame[12:14], "big")
    if kind == VLAN:
        frame = frame[:12] + frame[16:]
        kind = int.from_bytes(frame[12:14], "big")
    body = frame[14:]
    if kind == ARP and len(body) >= 28:
        return Packet(_ip(body[14:18]), _ip(body[24:28]), "arp")
    if kind == IPV4 and len(body) >= 20:
        header = (body[0] & 15) * 4
        return _transport(_ip(body[12:16]), _ip(body[16:20]), body[9], body[header:])
    if kind == IPV6 and len(body) >= 40:
        return _transport(_ip(body[8:24]), _ip(body[24:40]), body[6], body[40:])
    return None


def _ip(raw: bytes) -> str:
    return str(ipaddress.ip_address(raw))


def _transport(source: str, target: str, protocol: int, payload: bytes) -> Packet:
    port = int.from_bytes(payload[2:4], "big") if protocol in (TCP, UDP) else 0
    name = {TCP: "tcp", UDP: "udp"}.get(protocol, str(protocol))
    return Packet(source, target, name, port)


@dataclass
class Capture(threading.Thread):
    """All that is on a host's cable while it is open."""

    host: str
    packets: list[Packet] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._ending = threading.Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.bind((veth_of(self.host), 0))
        self._socket.settimeout(0.2)

    def run(self) -> None:
        while True:
            try:
                packet = parsed(self._socket.recv(65535))
            except TimeoutError:
                if self._ending.is_set():
                    return
                continue
            if packet is not None:
                self.packets.append(packet)

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()
        self._socket.close()

    def sent(self) -> list[Packet]:
        """By the host itself, by its address, or by IPv6 which only its kernel uses."""
        own = address_of(self.host)
        return [packet for packet in self.packets if packet.source == own or ":" in packet.source]

    def foreign(self, inventory: Iterable[str]) -> list[str]:
        """What the host sent to nobody of the inventory and not to the control machine, and every
        question for a name, whomever it asked."""
        known = {*(address_of(name) for name in inventory), BRIDGE_ADDRESS}
        return sorted(
            {
                str(packet)
                for packet in self.sent()
                if packet.asks_names or not (packet.target in known or _is_local(packet.target))
            }
        )


def _is_local(target: str) -> bool:
    address = ipaddress.ip_address(target)
    return address.version == 6 and address in LOCAL_GROUPS
