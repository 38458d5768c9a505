"""The door of an engine's host: a real Nginx, certificates of a real CA, the real service."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pyinfra_deploy.keys import ca
from pyinfra_deploy.planning.engine_door import DoorHost, render_door
from pyinfra_deploy.settings.mutual_tls import common_name, host_identity
from tests.fakes.key_fleet import fleet_at
from tests.integration.gateway.running import MODEL, world
from tests.integration.nginx.full_mode import EngineThread
from tests.integration.nginx.running import (
    free_port,
    has_ipv6,
    nginx_build,
    nginx_command,
    wait_until,
    write_configuration,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEET = "prod"
DOOR = host_identity("gpu01", "engine", FLEET)
GATEWAY = host_identity("gw01", "gateway", FLEET)


class Authority:
    """The inventory's CA, as the deploy uses it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.ca = ca.ensure_ca(fleet_at(directory, FLEET))
        self.path = self.ca.certificate_path

    def issue(self, place: Path, identity: str, *, for_client: bool, days: int = 90) -> Path:
        """host.key and host.crt in `place`."""
        place.mkdir(exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        csr = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        certificate = ca.sign_leaf(
            self.ca, csr, [identity], days=days, for_client=for_client,
            subject=common_name(identity),
        )  # fmt: skip
        (place / "host.crt").write_text(certificate)
        (place / "host.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return place


class Door:
    """Nginx as an engine's host has it, before the stub engine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "ca")
        self.stranger = Authority(directory / "other")
        self.port = free_port()
        self.engine = EngineThread(directory / "engine.sock")
        self.drain_flag = directory / "drain"
        self.authority.issue(directory, DOOR, for_client=False)
        self.gateway = self.authority.issue(directory / "gw", GATEWAY, for_client=True)
        self._nginx: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        version, openssl = nginx_build()
        (text,) = render_door(
            DoorHost(
                nginx_version=version,
                openssl_version=openssl,
                engine_socket=str(self.engine.path),
                drain_flag=str(self.drain_flag),
                door_name=DOOR,
                port=self.port,
                gateways=[GATEWAY],
                max_body_mb=1,
                read_timeout_seconds=5,
                certificate=str(self.directory / "host.crt"),
                certificate_key=str(self.directory / "host.key"),
                client_ca=str(self.authority.path),
                access_log=str(self.directory / "access.log"),
                error_log=str(self.directory / "llm-error.log"),
                ipv6=has_ipv6(),
            )
        ).files.values()
        text = text.replace(f"listen {self.port}", f"listen 127.0.0.1:{self.port}")
        write_configuration(self.directory, text.replace("listen [::]:", "listen [::1]:"))
        self.engine.start()
        self._nginx = subprocess.Popen(nginx_command(self.directory))
        wait_until(self._connects, "nginx")

    def stop(self) -> None:
        if self._nginx is not None:
            self._nginx.terminate()
            self._nginx.wait(10)
        self.engine.close()

    def _connects(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def context(self, place: Path | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if place is not None:
            context.load_cert_chain(place / "host.crt", place / "host.key")
        return context

    def ask(
        self, place: Path | None, method: str = "GET", path: str = "/ready", body: Any = None
    ) -> tuple[int, Any]:
        """The status and the JSON that somebody with the certificate in `place` gets."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as raw:
            channel = self.context(place).wrap_socket(raw, server_hostname=DOOR)
            content = b"" if body is None else json.dumps(body).encode()
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: engine\r\nX-Request-Id: {'7' * 32}\r\n"
                "Authorization: Bearer secret\r\nX-data-parallel-rank: 3\r\nCookie: a=b\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
            )
            channel.sendall(head.encode() + content)
            response = http.client.HTTPResponse(channel)
            response.begin()
            found = response.read()
            is_json = (response.getheader("Content-Type") or "").startswith("application/json")
            return response.status, json.loads(found) if is_json else found


@pytest.fixture(scope="module")
def door(nginx: str) -> Iterator[Door]:
    directory = Path(tempfile.mkdtemp(prefix="door"))
    made = Door(directory)
    made.start()
    yield made
    made.stop()
    shutil.rmtree(directory)


def test_a_gateway_comes_through(door: Door) -> None:
    status, document = door.ask(
        door.gateway, "POST", "/v1/chat/completions", {"model": MODEL, "messages": []}
    )
    assert status == 200
    assert document["choices"]
    path, headers, _ = door.engine.stub.requests[-1]
    assert path == "/v1/chat/completions"
    assert headers["x-request-id"] == "7" * 32
    assert not {"authorization", "cookie", "x-data-parallel-rank"} & set(headers)
    log_file = door.directory / "access.log"
    wait_until(lambda: "/v1/chat/completions" in log_file.read_text(), "the log")
    log = log_file.read_text()
    assert json.loads(log.splitlines()[-1])["gateway"] == GATEWAY
    assert "secret" not in log


def test_what_gateways_ask_for(door: Door) -> None:
    assert door.ask(door.gateway, "POST", "/tokenize", {"prompt": "a b"})[1]["count"] == 2
    assert door.ask(door.gateway, "GET", "/metrics")[0] == 200
    for path in ("/v1/models", "/version", "/", "/_llm/alive", "//metrics", "/metrics?x=1"):
        assert door.ask(door.gateway, "GET", path)[0] == 404, path
    assert door.ask(door.gateway, "GET", "/v1/completions")[0] == 405


def strangers(door: Door) -> Iterator[tuple[str, Path | None]]:
    place = door.directory
    yield "no certificate", None
    yield "another CA's", door.stranger.issue(place / "s1", GATEWAY, for_client=True)
    # The CA's own, but not to come as a client with: a vhost's, an engine's.
    yield "a server's", door.authority.issue(place / "s2", GATEWAY, for_client=False)
    other = host_identity("gw02", "gateway", FLEET)
    yield "a gateway that is gone", door.authority.issue(place / "s3", other, for_client=True)
    engine = host_identity("gpu02", "engine", FLEET)
    yield "an engine's", door.authority.issue(place / "s4", engine, for_client=True)


def test_nobody_else_comes_through(door: Door) -> None:
    before = len(door.engine.stub.requests)
    tried = 0
    for who, place in strangers(door):
        for method, path in [
            ("GET", "/ready"), ("GET", "/metrics"), ("GET", "/health"), ("GET", "/nowhere"),
            ("POST", "/v1/completions"), ("POST", "/tokenize"), ("OPTIONS", "/v1/completions"),
        ]:  # fmt: skip
            try:
                status, document = door.ask(place, method, path, {} if method == "POST" else None)
            except (ssl.SSLError, ConnectionError):
                continue
            finally:
                tried += 1
            assert status == 403, (who, path)
            assert document["error"]["code"] == "no_gateway"
    assert tried == 35
    assert len(door.engine.stub.requests) == before
    # The same request with a gateway's certificate does arrive.
    assert door.ask(door.gateway, "GET", "/metrics")[0] == 200
    assert len(door.engine.stub.requests) == before + 1


def test_plain_http_is_refused(door: Door) -> None:
    before = len(door.engine.stub.requests)
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=10)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 400
    connection.close()
    assert len(door.engine.stub.requests) == before


def test_a_body_that_is_too_large(door: Door) -> None:
    status, document = door.ask(door.gateway, "POST", "/v1/completions", {"p": "x" * 1_048_576})
    assert status == 413
    assert document["error"]["code"] == "request_too_large"


def test_ready_draining_and_down(door: Door) -> None:
    assert door.ask(door.gateway) == (200, {"ready": True, "draining": False})
    door.drain_flag.touch()
    try:
        assert door.ask(door.gateway) == (200, {"ready": False, "draining": True})
        status, document = door.ask(door.gateway, "POST", "/v1/completions", {"prompt": "x"})
        assert (status, document["error"]["code"]) == (503, "engine_draining")
        assert door.ask(door.gateway, "GET", "/metrics")[0] == 200
    finally:
        door.drain_flag.unlink()
    door.engine.stop()
    try:
        assert door.ask(door.gateway) == (503, {"ready": False, "draining": False})
        status, document = door.ask(door.gateway, "POST", "/v1/completions", {"prompt": "x"})
        assert (status, document["error"]["code"]) == (503, "engine_unavailable")
    finally:
        door.engine.start()
    assert door.ask(door.gateway)[0] == 200


def test_ready_says_what_is_served_only_while_it_is(door: Door) -> None:
    told: dict[str, Any] = {
        "ready": True,
        "draining": False,
        "serves": {"release": "r1", "model": "org/next"},
    }
    path = door.engine.path.with_name("ready.json")
    path.write_text(json.dumps(told))
    try:
        assert door.ask(door.gateway) == (200, told)
        assert door.ask(None)[0] == 403
        assert door.ask(door.gateway, path="/ready.json")[0] == 404
        door.drain_flag.touch()
        assert door.ask(door.gateway) == (200, {"ready": False, "draining": True})
        door.drain_flag.unlink()
        door.engine.stop()
        assert door.ask(door.gateway) == (503, {"ready": False, "draining": False})
        door.engine.start()
        told["serves"]["release"] = "r2"
        path.with_suffix(".new").write_text(json.dumps(told))
        path.with_suffix(".new").replace(path)
        assert door.ask(door.gateway) == (200, told)
    finally:
        path.unlink()
    assert door.ask(door.gateway) == (200, {"ready": True, "draining": False})


def test_the_gateway_service_through_the_door(door: Door) -> None:
    """The way of a request between two hosts: service, mutual TLS, door, engine."""
    backend = {
        "name": "gpu01-main",
        "url": f"https://127.0.0.1:{door.port}",
        "models": [MODEL],
        "ready_path": "/ready",
        "tls": {
            "ca": str(door.authority.path),
            "certificate": str(door.gateway / "host.crt"),
            "key": str(door.gateway / "host.key"),
            "server_name": DOOR,
        },
    }

    async def scenario() -> None:
        async with world(backends=[backend]) as w:
            assert (await w.post()).status == 200
            async with w.stream() as response:
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
            door.drain_flag.touch()
            try:

                async def drained() -> bool:
                    return bool((await w.ready())["backends"]["gpu01-main"]["draining"])

                await w.until(drained)
                assert (await w.post()).status == 503
            finally:
                door.drain_flag.unlink()

            async def answered() -> bool:
                return (await w.post()).status == 200

            await w.until(answered)

    asyncio.run(scenario())
