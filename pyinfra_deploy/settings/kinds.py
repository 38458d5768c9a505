# ruff: noqa: TC003 -- pydantic evaluates the annotations
"""The kinds of text a setting can be: each with its pattern, and words for what is allowed.

The same words stand in error messages and in docs/settings.md.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

WRONG = "setting"


def refuse(message: str, fix: str = "") -> PydanticCustomError:
    """An error of ours inside pydantic's: `message` and `fix` reach the operator as they are."""
    context = {"message": message, "fix": fix}
    return PydanticCustomError(WRONG, "{message}", context)


def refuse_each(wrong: dict[str, tuple[str, str]]) -> PydanticCustomError:
    """Several errors of one mapping: its key -> (message, fix)."""
    return PydanticCustomError(WRONG, "{keys}", {"keys": ", ".join(wrong), "each": wrong})


@dataclass(frozen=True)
class Words:
    """Marks a text type: what is allowed, an optional pattern, and an optional finer check."""

    allowed: str
    pattern: str | None = None
    check: Callable[[str], str | None] | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.validate, handler(source))

    def validate(self, value: str) -> str:
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise refuse(f"must be {self.allowed}.")
        if self.check is not None and (reason := self.check(value)):
            raise refuse(reason)
        return value


class GpuWords(Words):
    """Marks the choice of an engine's GPUs: a word or a list, which no single type describes."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.choose)

    def choose(self, value: Any) -> Any:
        if value == "all":
            return value
        if not isinstance(value, list | tuple) or not value:
            raise refuse(f"must be {self.allowed}.", "write all, or a list: [0, 1, 2, 3]")
        for item in value:
            number = isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 64
            if not number and not (isinstance(item, str) and re.fullmatch(_GPU_UUID, item)):
                raise refuse(
                    f"has {item!r}, and must be {self.allowed}.",
                    "write numbers without quotes, and UUIDs whole, as nvidia-smi -L prints them.",
                )
        twice = sorted({str(item) for item in value if value.count(item) > 1})
        if twice:
            raise refuse(f"names {', '.join(twice)} twice.", "name each GPU once.")
        return tuple(value)


_GPU_UUID = r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

# Service units run with ProtectHome and PrivateTmp; the rest is the kernel's or emptied at boot.
_UNFIT_ROOTS = ("home", "root", "run", "tmp", "var/tmp", "proc", "sys", "dev", "boot")


def _fit_for_data(value: str) -> str | None:
    if value == "/" or value.endswith("/") or "//" in value or ".." in value.split("/"):
        return "must be a plain absolute path, without a slash at its end and without '..'."
    for unfit in (f"/{name}" for name in _UNFIT_ROOTS):
        if value == unfit or value.startswith(unfit + "/"):
            return (
                f"must not lie in {unfit}: services cannot see it, or it does not outlive a reboot."
            )
    return None


def _inside_repository(value: str) -> str | None:
    if value.startswith("/") or ".." in value.split("/"):
        return "must be a path inside the repository, relative to its root."
    return None


def _host_name(value: str) -> str | None:
    if len(value) > 253:
        return "is longer than a host name can be (253 characters)."
    if re.fullmatch(r"[0-9.]+", value):
        return (
            "is an IP address; the certificate and the vhost need a host name "
            "(an entry in /etc/hosts of the clients is enough)."
        )
    return None


def _without_password(value: str) -> str | None:
    authority = value.split("://", 1)[1].split("/", 1)[0]
    if "@" in authority:
        return (
            "must not carry a user or password: it would be readable in process lists and logs. "
            "Put them into the host's netrc, or use a mirror inside your network."
        )
    return None


def _host_address(value: str) -> str | None:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return "is no IP address."
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        return "is not the address of one host that others could reach."
    return None


def _unambiguous(value: str) -> str | None:
    owner = value.split("/")[0]
    if "--" in owner:
        return "has '--' in its owner, which stands for the slash in directory names on the host."
    return None


AbsolutePath = Annotated[
    str,
    Words("an absolute path (letters, digits, . _ - and /)", r"/[A-Za-z0-9._/-]*"),
]
DataPath = Annotated[
    str,
    Words(
        "an absolute path (letters, digits, . _ - and /), not in /home, /root, /tmp or /run",
        r"/[A-Za-z0-9._/-]*",
        _fit_for_data,
    ),
]
RepositoryPath = Annotated[
    str,
    Words(
        "a path inside the repository, relative to its root",
        r"[A-Za-z0-9._/-]+",
        _inside_repository,
    ),
]
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
HostName = Annotated[
    str,
    Words(
        "a host name in lower case, such as llm.example.com (no https://, no port)",
        rf"{_LABEL}(?:\.{_LABEL})*",
        _host_name,
    ),
]
MailAddress = Annotated[
    str, Words("a mail address, such as ops@example.com", r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+")
]
HostAddress = Annotated[
    str, Words("an IP address, such as 10.20.0.11", r"[0-9A-Fa-f.:]+", _host_address)
]
Url = Annotated[
    str,
    Words("a URL that begins with http:// or https://", r"https?://[^\s/]\S*", _without_password),
]
Origin = Annotated[
    str,
    Words(
        "an origin as browsers send it: https://app.example.com, with no path and no *",
        rf"https?://{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?",
    ),
]
ProxyException = Annotated[
    str,
    Words("a host name, a domain that begins with a dot, or an address", r"\.?[A-Za-z0-9][\w.:-]*"),
]
Slug = Annotated[
    str,
    Words(
        "lower case letters, digits and dashes, at most 32, beginning with a letter",
        r"[a-z](?:[a-z0-9-]{0,30}[a-z0-9])?",
    ),
]
ModelId = Annotated[
    str,
    Words(
        "owner/name as on the hub",
        r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*",
        _unambiguous,
    ),
]
Revision = Annotated[
    str, Words("a branch, tag or commit of the hub, without slashes", r"[A-Za-z0-9][A-Za-z0-9._-]*")
]
ModelName = Annotated[
    str, Words("letters, digits and . _ - : / only", r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
]
ParameterName = Annotated[
    str, Words("a name of letters, digits, _ and -", r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
]
VllmVersion = Annotated[
    str,
    Words(
        'one exact version in quotes, such as "0.33.0"',
        r"[0-9]+\.[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?",
    ),
]
PythonVersion = Annotated[str, Words('3.N in quotes, such as "3.12"', r"3\.(?:9|[1-9][0-9])")]
EnvironmentValue = Annotated[
    str, Words("one line of text, in quotes if it looks like a number or true", r"[^\n\r\0]*")
]
PipArgument = Annotated[
    str, Words("one argument of the installer, such as --no-cache", r"\S(?:[^\n\r\0]*\S)?")
]
# Debian Policy 5.6.7.
PackageName = Annotated[
    str,
    Words(
        "the name of a Debian package, without a version",
        r"[a-z0-9][a-z0-9+.-]+",
    ),
]

GpuChoice = Annotated[
    Literal["all"] | tuple[int | str, ...],
    GpuWords("all, or a list of GPUs, each a number or a UUID as nvidia-smi -L prints them"),
]

FindingId = Annotated[
    str,
    Words(
        "the id of a finding, such as gpu.pcie-width", r"[a-z][a-z0-9-]*(?:\.[a-z0-9][a-z0-9-]*)+"
    ),
]
HostPattern = Annotated[
    str, Words("a host of the inventory, * and ? for parts of it", r"[A-Za-z0-9._*?-]+")
]
OneLine = Annotated[
    str, Words("one line of text that is not empty", r"[^\s\0](?:[^\n\r\0]*[^\s\0])?")
]

Seconds = Annotated[int, Field(ge=1, le=604_800)]
Port = Annotated[int, Field(ge=1, le=65_535)]
PerMinute = Annotated[int, Field(ge=1, le=1_000_000)]
Burst = Annotated[int, Field(ge=0, le=1_000_000)]
