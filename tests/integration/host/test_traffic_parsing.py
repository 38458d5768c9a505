"""The reading of frames by which tests/hosts finds what a host sends."""

from __future__ import annotations

import socket

from tests.hosts.traffic import Packet, parsed

ETHERNET = bytes(12)


def ipv4(target: str, protocol: int, port: int, source: str = "10.213.77.10") -> bytes:
    header = bytes([0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0])
    ports = (40000).to_bytes(2, "big") + port.to_bytes(2, "big") + bytes(4)
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    return ETHERNET + b"\x08\x00" + header + addresses + ports


def test_ports_and_addresses() -> None:
    assert parsed(ipv4("192.0.2.1", 6, 443)) == Packet("10.213.77.10", "192.0.2.1", "tcp", 443)
    question = parsed(ipv4("10.213.77.1", 17, 53))
    assert question is not None
    assert question.asks_names
    assert str(question) == "10.213.77.10 -> 10.213.77.1 udp 53"


def test_a_tag_does_not_hide_a_packet() -> None:
    frame = ipv4("192.0.2.1", 1, 0)
    tagged = frame[:12] + b"\x81\x00\x00\x07" + frame[12:]
    assert parsed(tagged) == parsed(frame) == Packet("10.213.77.10", "192.0.2.1", "1", 0)


def test_ipv6_and_arp() -> None:
    addresses = socket.inet_pton(socket.AF_INET6, "fe80::1")
    addresses += socket.inet_pton(socket.AF_INET6, "2001:db8::2")
    body = bytes([0x60, 0, 0, 0, 0, 8, 17, 64]) + addresses + bytes([1, 2, 0, 53, 0, 8, 0, 0])
    found = parsed(ETHERNET + b"\x86\xdd" + body)
    assert found == Packet("fe80::1", "2001:db8::2", "udp", 53)
    arp = bytes(14) + socket.inet_aton("10.213.77.10") + bytes(6) + socket.inet_aton("10.213.77.9")
    assert parsed(ETHERNET + b"\x08\x06" + arp) == Packet("10.213.77.10", "10.213.77.9", "arp")


def test_what_has_no_address_is_nothing() -> None:
    assert parsed(ETHERNET + b"\x88\xcc" + bytes(40)) is None
    assert parsed(ETHERNET + b"\x08\x00") is None
