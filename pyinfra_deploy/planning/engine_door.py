"""The door of an engine's host: Nginx with mutual TLS, for the inventory's gateways alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyinfra_deploy.planning import nginx
from pyinfra_deploy.planning.nginx_build import (
    HOST_NAME,
    STOCK_SITE,
    Log,
    NginxFiles,
    NginxInputError,
    build_of,
    check_numbers,
    check_paths,
    fill_in,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIGURATION = nginx.DOOR_CONFIGURATION
PLACE = "/etc/llm-gateway/mtls"
CA, CERTIFICATE, KEY = f"{PLACE}/ca.crt", f"{PLACE}/host.crt", f"{PLACE}/host.key"


@dataclass(frozen=True)
class DoorHost:
    """What has to be known of the host. port: to listen on. read_timeout_seconds: the longest
    silence within an answer. max_body_mb: the largest request. gateways: common names of the
    certificates that are let in. The rest as in nginx.NginxHost."""

    nginx_version: str
    engine_socket: str
    drain_flag: str
    door_name: str
    port: int
    gateways: Sequence[str]
    max_body_mb: int
    read_timeout_seconds: int
    openssl_version: str | None = None
    certificate: str = CERTIFICATE
    certificate_key: str = KEY
    client_ca: str = CA
    access_log: str = "/var/log/nginx/llm-access.log"
    error_log: str = "/var/log/nginx/llm-error.log"
    ipv6: bool = True


@dataclass(frozen=True)
class DoorEndpoint:
    """A path that gateways need. drained: not passed while the engine is drained."""

    path: str
    method: str
    drained: bool = True


# What the gateway service asks a remote engine for (gateway/llm_gateway): requests and their
# counts, its cache's use. /ready is the door's own answer.
ENDPOINTS = (
    *(
        DoorEndpoint(one.path, one.method)
        for one in (nginx.CHAT, nginx.COMPLETIONS, nginx.EMBEDDINGS, nginx.RESPONSES)
    ),
    DoorEndpoint("/tokenize", "POST", drained=False),
    DoorEndpoint("/health", "GET", drained=False),
    DoorEndpoint("/metrics", "GET", drained=False),
)


def render_door(host: DoorHost) -> NginxFiles:
    """The configuration of an engine's door. Raises NginxInputError."""
    names = (
        *("engine_socket", "drain_flag", "certificate", "certificate_key", "client_ca"),
        *("access_log", "error_log"),
    )
    check_paths({name: str(getattr(host, name)) for name in names})
    check_numbers(
        {
            "gateway.engine_port": host.port,
            "gateway.read_timeout_seconds": host.read_timeout_seconds,
            "gateway.max_body_mb": host.max_body_mb,
        }
    )
    for name in (host.door_name, *host.gateways):
        if not HOST_NAME.fullmatch(name):
            raise NginxInputError(f"{name!r} cannot be a host's name in a certificate")
    values = {
        **build_of(host.nginx_version, host.openssl_version),
        "host": host,
        "engine_port": host.port,
        "engine_directory": host.engine_socket.rpartition("/")[0],
        "gateways": list(host.gateways),
        "endpoints": ENDPOINTS,
        "listed_paths": [endpoint.path for endpoint in ENDPOINTS],
        "max_body_mb": host.max_body_mb,
        "read_timeout_seconds": host.read_timeout_seconds,
        "upstream_timeout_seconds": host.read_timeout_seconds,
        "log": Log("llm_door", "gateway", "$llm_door_gateway", "$llm_door_request_id"),
        "session_cache": "llm_door_tls",
    }
    text = fill_in("llm-engine-door.conf.j2", values)
    return NginxFiles({CONFIGURATION: text}, remove=(nginx.CONFIGURATION, STOCK_SITE))
