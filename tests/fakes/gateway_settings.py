"""Settings of a gateway that the renderer of Nginx's configuration reads; no limits to notice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def gateway_settings(**changes: Any) -> SimpleNamespace:
    limits = {
        "ip_per_minute": 60000,
        "ip_burst": 1000,
        "key_per_minute": 60000,
        "key_burst": 1000,
    }
    settings = {
        "server_name": "llm.example.com",
        "https_port": 443,
        "http_port": 80,
        "cors_origins": ["https://app.example.com"],
        "read_timeout_seconds": 600,
        "mode": "direct",
        "tokenize": False,
    }
    auth = {
        "url": None,
        "ca_file": "/etc/ssl/certs/ca-certificates.crt",
        "connect_timeout_seconds": 2,
        "timeout_seconds": 3,
        "resolvers": (),
    }
    settings["auth"] = SimpleNamespace(**(auth | changes.pop("auth", {})))
    settings["rate_limit"] = SimpleNamespace(**(limits | changes.pop("rate_limit", {})))
    return SimpleNamespace(**(settings | changes))
