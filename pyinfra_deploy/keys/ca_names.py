"""Which names the CA of an inventory may vouch for, and those of one certificate.

Clients import ca.crt as trusted. Name constraints (RFC 5280, 4.2.1.10) keep a stolen ca.key from
vouching for their bank: it can only vouch for the fleet's own names and for private addresses.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509.oid import NameOID

from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.settings.mutual_tls import internal_domain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet

# RFC 1918, 6598, 4193, 4291 and loopback: nobody outside reaches or owns these.
PRIVATE_NETWORKS = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "fc00::/7",
    "fe80::/10",
    "::1/128",
)
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
# X.520's upper bound; a longer name is in the alternatives alone.
_MAX_COMMON_NAME = 64

Alternative = x509.DNSName | x509.IPAddress


def constraints(fleet: Fleet) -> x509.NameConstraints:
    """The server names of all gateways and what is below them, host names, private addresses.

    A public address of a gateway host is permitted one by one.
    """
    gateways = [host for host in fleet.hosts.values() if "gateway" in host.groups]
    names = {internal_domain(fleet.name)}
    addresses = set(PRIVATE_NETWORKS)
    for host in gateways:
        if host.settings.gateway is not None:
            names.add(host.settings.gateway.server_name.lower())
        for candidate in (host.name, str(host.connection.get("ssh_hostname") or "")):
            address = _address(candidate)
            if address is not None and not _is_private(address):
                addresses.add(str(address))
            elif address is None and _HOST_NAME.fullmatch(candidate.lower()):
                names.add(candidate.lower())
    permitted: list[x509.GeneralName] = [x509.DNSName(name) for name in sorted(names)]
    permitted += [x509.IPAddress(ipaddress.ip_network(each)) for each in sorted(addresses)]
    return x509.NameConstraints(permitted_subtrees=permitted, excluded_subtrees=None)


def subject_alternatives(names: Sequence[str], addresses: Sequence[str]) -> list[Alternative]:
    """The names of a certificate, checked and without repetition. Raises KeysError."""
    alternatives: list[Alternative] = []
    for name in dict.fromkeys(name.lower() for name in names):
        if not _HOST_NAME.fullmatch(name) or len(name) > 253 or _address(name) is not None:
            raise _not_permitted(name, "it is not a host name")
        alternatives.append(x509.DNSName(name))
    for text in dict.fromkeys(addresses):
        address = _address(text)
        if address is None:
            raise _not_permitted(text, "it is not an IP address")
        alternatives.append(x509.IPAddress(address))
    if not alternatives:
        raise _not_permitted("nothing", "a certificate needs a name")
    return alternatives


def leaf_subject(names: Sequence[str]) -> x509.Name:
    first = names[0] if names else ""
    if not first or len(first) > _MAX_COMMON_NAME:
        return x509.Name([])
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, first.lower())])


def check_permitted(ca: x509.Certificate, path: Path, alternatives: Sequence[Alternative]) -> None:
    """Raise KeysError for a name that clients would reject under this CA."""
    permitted = _permitted(ca)
    if permitted is None:
        return
    for alternative in alternatives:
        if not any(_within(alternative, subtree) for subtree in permitted):
            raise KeysError(
                f"cannot make a certificate for {alternative.value}",
                f"{path} was made for {', '.join(permitted_names(ca))}, and clients reject "
                "anything else under it.",
                f"Correct gateway.server_name, or make a new CA: move {path.name} and its key "
                "away, run `fleet ca init`, deploy, and give every client the new ca.crt.",
            )


def permitted_names(ca: x509.Certificate) -> list[str]:
    """What a CA may vouch for, in words; the private networks as one."""
    permitted = _permitted(ca)
    if permitted is None:
        return ["any name"]
    values = [str(subtree.value) for subtree in permitted]
    rest = [value for value in values if value not in PRIVATE_NETWORKS]
    return [*rest, "private addresses"] if len(rest) < len(values) else rest


def _permitted(ca: x509.Certificate) -> Sequence[x509.GeneralName] | None:
    try:
        extension = ca.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return None
    return extension.permitted_subtrees or []


def _within(alternative: Alternative, subtree: x509.GeneralName) -> bool:
    if isinstance(alternative, x509.DNSName) and isinstance(subtree, x509.DNSName):
        name, base = alternative.value.lower(), subtree.value.lower()
        return name == base or name.endswith(f".{base}")
    if isinstance(alternative, x509.IPAddress) and isinstance(subtree, x509.IPAddress):
        network = subtree.value
        if isinstance(network, ipaddress.IPv4Network | ipaddress.IPv6Network):
            return alternative.value in network
    return False


def _is_private(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return any(address in ipaddress.ip_network(network) for network in PRIVATE_NETWORKS)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _not_permitted(name: str, why: str) -> KeysError:
    return KeysError(
        f"cannot make a certificate for {name}",
        f"{why}.",
        "Correct gateway.server_name or the host's address in the inventory.",
    )
