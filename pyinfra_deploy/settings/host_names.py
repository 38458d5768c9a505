"""Which texts can be a host's name, its address, or a user to log in as.

They reach ssh's options, a ProxyCommand's shell, the resolver and files' names: what none of these
takes is refused before any of them sees it. Each function gives (what is wrong, the fix), or None.
"""

from __future__ import annotations

import ipaddress
import re

_LONGEST_NAME = 253  # RFC 1035, 2.3.4: 255 octets, in text without the root's length and dot
_LONGEST_LABEL = 63
# useradd of Debian takes 32 characters at most, directories (LDAP, AD) more.
_LONGEST_USER = 256
_NUMBERS = re.compile(r"[0-9.]+")
_SCOPE = re.compile(r"[A-Za-z0-9._-]+")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]")
# What a shell would read, since ssh puts the user into a ProxyCommand (%r) as it is.
_NOT_IN_A_USER = re.compile(r"""[^!-~]|['"`;&<>|(){}]""")

_ADDRESS_FIX = "write an address (10.0.0.11), a host name, or an alias of ~/.ssh/config."
_USER_FIX = "write the name alone, as `id -un` prints it on the host."


def wrong_address(value: object) -> tuple[str, str] | None:
    """An IP address, a host name, or an alias of ~/.ssh/config."""
    if not isinstance(value, str):
        return "must be text: an address or a name.", _ADDRESS_FIX
    if _is_ip_address(value):
        return None
    if _NUMBERS.fullmatch(value):
        return "is no IP address.", "four numbers from 0 to 255, for example 10.0.0.11."
    return wrong_name(value)


def wrong_name(value: str) -> tuple[str, str] | None:
    """A host name or an alias; underscores are no part of DNS's names, but of aliases."""
    if not value:
        return "is empty.", _ADDRESS_FIX
    if not value.isascii():
        return _international(value)
    if odd := _NOT_IN_A_NAME.search(value):
        return (
            f"has {odd[0]!r}, and no address or host name has: letters, digits, dots, dashes and "
            "underscores are allowed.",
            _ADDRESS_FIX,
        )
    if value.startswith("-"):
        return "begins with a dash, which would make it an option of ssh.", _ADDRESS_FIX
    if len(value) > _LONGEST_NAME:
        return f"is longer than a host name can be ({_LONGEST_NAME} characters).", _ADDRESS_FIX
    labels = value.removesuffix(".").split(".")
    if not all(1 <= len(label) <= _LONGEST_LABEL for label in labels):
        return (
            f"has a part between dots that is empty or longer than {_LONGEST_LABEL} characters.",
            _ADDRESS_FIX,
        )
    return None


def wrong_user(value: object) -> tuple[str, str] | None:
    """A user of a host; those of a directory too, such as ops@example.com and EXAMPLE\\ops."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return "must be the name of a user.", _USER_FIX
    text = str(value)
    if not text:
        return "is empty.", _USER_FIX
    if text.startswith("-"):
        return "begins with a dash, which would make it an option.", _USER_FIX
    if odd := _NOT_IN_A_USER.search(text):
        return f"has {odd[0]!r}, which no user's name has.", _USER_FIX
    if len(text) > _LONGEST_USER:
        return f"is longer than {_LONGEST_USER} characters.", _USER_FIX
    return None


def port_of(value: object) -> int | None:
    """1 to 65535, as a number or as digits; None for anything else."""
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,5}", str(value)):
        return None
    port = int(str(value))
    return port if 1 <= port <= 65_535 else None


def _is_ip_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    # Of a scope (fe80::1%eth0) ipaddress takes anything.
    _, has_scope, scope = value.partition("%")
    return not has_scope or _SCOPE.fullmatch(scope) is not None


def _international(value: str) -> tuple[str, str]:
    message = "has characters outside ASCII, which ssh and the resolver may read differently."
    try:
        return message, f"write it as DNS has it: {value.encode('idna').decode()}"
    except UnicodeError:
        return message, _ADDRESS_FIX
