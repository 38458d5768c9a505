"""`verify` in gateway.mode full, against a small TLS service that can misbehave."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import keys, verify, verify_service

from tests.integration.host import https_service as direct

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

ORIGIN = "https://chat.example.com"
LIMIT = 64
FULL = {"counts_tokens": True, "max_body_bytes": 1 << 20}
VHOST = {"cors_origin": ORIGIN, "max_body_mb": 1}

_own_group, authority, installed = direct._own_group, direct.authority, direct.installed


class Service(direct.Service):
    """As gateway.mode full answers; fault names the check that is to fail."""

    def answer(self, it: BaseHTTPRequestHandler, secure: bool, body: Any) -> None:
        if not secure or self.from_burst_address:
            return super().answer(it, secure, body)
        cors = {"Access-Control-Allow-Origin": ORIGIN} if it.headers.get("Origin") else {}
        key = (it.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.fault == "CORS" and it.command != "OPTIONS":
            cors = {}
        if it.path == "/health":
            return self.send(it, 401 if self.fault == "health" else 200, {})
        if it.command == "OPTIONS":
            return self.send(it, 204, {}, cors)
        if body == direct.TOO_LARGE:
            return self.refuse(it, 200 if self.fault == "large body" else 413, "request_too_large")
        if key.startswith("sk-hostdeny"):
            assert hashlib.sha256(key.encode()).hexdigest() == self.denied()["sha256"]
            wrong = self.fault == "model not allowed"
            return self.refuse(it, 401 if wrong else 403, "model_not_allowed")
        if body is not None and it.headers["Content-Type"] == "text/plain":
            wrong = self.fault == "content type"
            return self.refuse(it, 400 if wrong else 415, "unsupported_media_type")
        if body is not None and body["model"] != "m":
            code = "other" if self.fault == "unknown model" else "model_not_found"
            return self.refuse(it, 404, code)
        if body is not None and len(json.dumps(body).split()) > LIMIT:
            more = {"limit": LIMIT, "prompt_tokens": 99, "cut_tokens": 35}
            if self.fault == "long prompt":
                del more["cut_tokens"]
            return self.refuse(it, 413, "context_length_exceeded", **more)
        own = hashed(key) == self.digest and it.client_address[0] != verify.BURST_ADDRESS
        if it.path == "/v1/models" and own:
            return self.send(it, 200, {"data": [{"id": "m", "max_model_len": LIMIT}]})
        if it.path == "/v1/models" and hashed(key) != self.digest:
            return self.send(it, 401, {}, cors)
        return super().answer(it, secure, body)

    def refuse(self, it: BaseHTTPRequestHandler, status: int, code: str, **more: Any) -> None:
        self.send(it, status, {"error": {"code": code, **more}})

    def denied(self) -> dict[str, Any]:
        entries: list[dict[str, Any]] = json.loads(keys.verify_file_path().read_text())["keys"]
        return entries[1]


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def service(host: FakeHost, installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(verify_service, "TAKEN_UP_SECONDS", 0.0)
    shutil.copytree(installed, host.root / "etc/llm/tls")
    running = Service(host)
    yield running
    for server in (running.https, running.http):
        server.shutdown()
        server.server_close()


def passed(service: Service, **full: Any) -> dict[str, Any]:
    asked = service.request(full={**FULL, **full}, vhost=VHOST)
    found = verify.verify(asked)["checks"]
    return {item["name"]: item["figures"] for item in found}


def test_a_good_service_passes_every_check(service: Service) -> None:
    checks = passed(service)
    assert list(checks)[7:] == [
        "health", "large body", "CORS", "model not allowed", "unknown model", "content type",
        "long prompt", "burst",
    ]  # fmt: skip
    assert checks["long prompt"] == {
        "status": 413, "limit": LIMIT, "prompt_tokens": 99, "cut_tokens": 35,
    }  # fmt: skip
    entry = service.denied()
    assert (entry["id"], entry["models"]) == ("hostdeny", [keys.NO_MODEL])
    # Without mode full there is no second key, which would be as good as the first there.
    keys.verify_key({})
    assert len(json.loads(keys.verify_file_path().read_text())["keys"]) == 1


@pytest.mark.parametrize(
    "fault",
    [
        "health",
        "large body",
        "model not allowed",
        "unknown model",
        "content type",
        "long prompt",
        "CORS",
    ],
)
def test_each_fault_is_found_by_its_check(service: Service, fault: str) -> None:
    service.fault = fault
    error = direct.failure(service, full=FULL, vhost=VHOST)
    assert f"'{fault}' failed" in error.what
    assert error.fix


def test_what_cannot_be_tried_says_so(service: Service) -> None:
    assert "count_tokens" in passed(service, counts_tokens=False)["long prompt"]["left_out"]
    service.from_burst_address = 0
    assert "max_body_mb" in passed(service, max_body_bytes=99)["long prompt"]["left_out"]
    service.from_burst_address = 0
    service.from_burst_address = 0
    asked = service.request(vhost={**VHOST, "cors_origin": None})
    checks = {item["name"]: item["figures"] for item in verify.verify(asked)["checks"]}
    assert "cors_origins" in checks["CORS"]["left_out"]
    # In mode direct: nobody there refuses a model or a type.
    assert "direct" in checks["keys' models, types"]["left_out"]


def test_limits_that_one_client_cannot_reach_are_left_out(service: Service) -> None:
    service.fault = "no limit"
    limits = [[1_000_000, 10], [1_000_000, 50]]
    asked = service.request(burst={"requests": 12, "limits": limits})
    checks = {item["name"]: item["figures"] for item in verify.verify(asked)["checks"]}
    assert "limits allow all of 12 requests" in checks["burst"]["left_out"]
    limits[0][0] = 1
    error = direct.failure(service, burst={"requests": 12, "limits": limits})
    assert "'burst' failed" in error.what
