"""What Nginx does in either mode, tried as a client: /health, the largest body, CORS."""

from __future__ import annotations

from typing import Any

from . import fields
from .verify_full import Check, expect_code
from .verify_service import Failed, Service, expect

LOG = "See /var/log/nginx/llm-error.log, and journalctl -u llm-gateway -u 'llm-engine@*'."
MIB = 1 << 20


def checks(service: Service) -> list[Check]:
    """In the order in which they are to be made."""
    found: list[Check] = [
        ("health", check_health),
        ("large body", check_large_body),
        ("CORS", check_preflight),
    ]
    if service.full is None:
        found.append(("keys' models, types", left_out_in_direct))
    return found


def left_out_in_direct(_service: Service) -> dict[str, Any]:
    """403 and 415 are answers of the service that mode full has."""
    return {"left_out": "gateway.mode is direct: a key is good for all, types are the engine's"}


def check_health(service: Service) -> dict[str, Any]:
    """Without a key: a load balancer asks there whether this host takes requests."""
    reply = service.ask("GET", "/health", key=None)
    expect(reply, (200,), LOG)
    return {"status": 200}


def check_large_body(service: Service) -> dict[str, Any]:
    """One byte more than may be is refused by its announcement; none of it is sent."""
    assert service.vhost is not None
    size_bytes = fields.whole(service.vhost, "max_body_mb") * MIB + 1
    reply = service.ask(
        "POST",
        "/v1/chat/completions",
        headers={"Content-Type": "application/json", "Content-Length": str(size_bytes)},
    )
    expect_code(reply, 413, "request_too_large")
    return {"status": 413, "announced_bytes": size_bytes}


def check_preflight(service: Service) -> dict[str, Any]:
    """A browser's question before a request of a page that may call: answered without a key, also
    on errors."""
    assert service.vhost is not None
    if not service.vhost.get("cors_origin"):
        return {"left_out": "gateway.cors_origins is empty"}
    origin = str(service.vhost["cors_origin"])
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    look_at = "See the maps of $http_origin in 'nginx -T', and gateway.cors_origins."
    preflight = service.ask("OPTIONS", "/v1/chat/completions", key=None, headers=asked)
    expect(preflight, (204,), look_at)
    refused = service.ask("GET", "/v1/models", key=None, headers={"Origin": origin})
    expect(refused, (401,), look_at)
    for reply in (preflight, refused):
        allowed = reply.headers.get("access-control-allow-origin")
        if allowed != origin:
            raise Failed(
                f"{reply.method} {reply.path} answered {origin} with "
                f"Access-Control-Allow-Origin {allowed}",
                look_at,
            )
    return {"origin": origin}
