"""What a host needs to know of this machine to install packages as the machine does.

Everything is read when the lab runs, from the machine it runs on. Nothing of it is written into
the repository.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
EXTRA_CAS = "usr/local/share/ca-certificates"
# Programs that bring their own list of CAs (requests, uv, node) are told by these to use the
# system's; OPENBLAS_* work around CPUs on which older OpenBLAS builds compute wrong results.
CA_VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
CPU_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True)
class FileCopy:
    """A file to write into every host."""

    data: bytes
    mode: int = 0o644


@dataclass
class PassedOn:
    """Files (by absolute path), directories to bind read-only, environment; and warnings."""

    files: dict[str, FileCopy] = field(default_factory=dict)
    binds: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def digest(self) -> str:
        """12 hex digits over everything that ends up in a host's image."""
        hasher = hashlib.sha256()
        for path, copy in sorted(self.files.items()):
            hasher.update(f"{path}\0{copy.mode:o}\0{len(copy.data)}\0".encode() + copy.data)
        hasher.update(repr(sorted(self.environment.items())).encode())
        return hasher.hexdigest()[:12]


def copy_file(result: PassedOn, root: Path, path: str, mode: int = 0o644) -> None:
    """Pass on a file of the machine (rooted at `root`) at its own path; a warning if absent."""
    source = root / path.lstrip("/")
    try:
        result.files[path] = FileCopy(source.read_bytes(), mode)
    except OSError as error:
        result.warnings.append(f"{path} is configured on this machine but unreadable: {error}")


def extra_cas(result: PassedOn, root: Path) -> bool:
    """Pass on CAs an administrator added (Debian's place for them). True if there are any."""
    directory = root / EXTRA_CAS
    found = sorted(directory.rglob("*.crt")) if directory.is_dir() else []
    for certificate in found:
        copy_file(result, root, f"/{certificate.relative_to(root)}")
    return bool(found)


def environment_from(
    result: PassedOn, root: Path, environ: Mapping[str, str], network: str, has_extra_cas: bool
) -> None:
    """CA, proxy and CPU variables, as the machine has them, for logins and for services."""
    values = {name: environ[name] for name in (*CA_VARIABLES, *CPU_VARIABLES) if environ.get(name)}
    if has_extra_cas:
        # Without these requests and uv trust only the list they bring with them.
        values.setdefault("SSL_CERT_FILE", SYSTEM_BUNDLE)
        values.setdefault("REQUESTS_CA_BUNDLE", SYSTEM_BUNDLE)
    for name in CA_VARIABLES:
        path = values.get(name)
        if path and path != SYSTEM_BUNDLE and (root / path.lstrip("/")).is_file():
            copy_file(result, root, path)
    proxies = {}
    for name in PROXY_VARIABLES:
        value = environ.get(name) or environ.get(name.upper())
        if value:
            proxies[name] = value
    if any(name != "no_proxy" for name in proxies):
        proxies["no_proxy"] = ",".join(filter(None, (proxies.get("no_proxy"), network)))
        if any("127.0.0.1" in value or "localhost" in value for value in proxies.values()):
            result.warnings.append(
                "a proxy variable names this machine's loopback, which lab hosts cannot reach"
            )
    else:
        proxies = {}
    result.environment = {**values, **proxies}


def environment_files(environment: Mapping[str, str]) -> dict[str, FileCopy]:
    """The same variables for PAM logins, for systemd services and through sudo."""
    if not environment:
        return {}
    lines = "".join(f'{name}="{value}"\n' for name, value in sorted(environment.items()))
    words = " ".join(
        '"' + f"{name}={value}".replace("%", "%%").replace('"', '\\"') + '"'
        for name, value in sorted(environment.items())
    )
    names = " ".join(sorted(environment))
    return {
        "/etc/environment": FileCopy(lines.encode()),
        "/etc/systemd/system.conf.d/10-fleet-lab.conf": FileCopy(
            f"[Manager]\nDefaultEnvironment={words}\n".encode()
        ),
        "/etc/sudoers.d/fleet-lab-environment": FileCopy(
            f'Defaults env_keep += "{names}"\n'.encode(), 0o440
        ),
    }


def resolv_conf(root: Path) -> tuple[str, list[str]]:
    """The text of resolv.conf for hosts, and warnings.

    systemd-resolved's stub listens on the machine's loopback, so its upstream list is used instead:
    resolved.conf(5), /run/systemd/resolve/resolv.conf.
    """
    candidates = (root / "etc/resolv.conf", root / "run/systemd/resolve/resolv.conf")
    text = ""
    for candidate in candidates:
        try:
            text = candidate.read_text()
        except OSError:
            continue
        servers = [line.split()[1] for line in text.splitlines() if line[:11] == "nameserver "]
        if servers and not all(server.startswith(("127.", "::1")) for server in servers):
            return text, []
    return text, [
        "this machine's name servers listen on its loopback, which lab hosts cannot reach: "
        "names will not resolve in them (put a reachable nameserver into /etc/resolv.conf)"
    ]
