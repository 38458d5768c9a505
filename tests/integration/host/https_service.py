"""A small TLS service that can misbehave, for `verify`, and the certificates it has."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import keys, tls, verify
from fleet_host.errors import HostError

from tests.fakes.engine_host import FakeHost

if TYPE_CHECKING:
    from pathlib import Path

NAME = "llm.example.com"
TOO_LARGE = {"model": "too large"}


@pytest.fixture(autouse=True)
def _own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test need not be root: the group of the socket's users is not on this machine."""
    monkeypatch.setattr(keys, "reader_gid", os.getgid)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ca")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "9", "-keyout", place / "ca.key", "-out", place / "ca.crt",
         "-subj", "/CN=Test CA", "-addext", "keyUsage=critical,keyCertSign"],
        check=True, capture_output=True,
    )  # fmt: skip
    return place


def sign(authority: Path, csr: str) -> str:
    """What the control side does with a request."""
    request, extensions = authority / "csr", authority / "extensions"
    request.write_text(csr)
    extensions.write_text("subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n")
    done = subprocess.run(
        ["openssl", "x509", "-req", "-in", request, "-CA", authority / "ca.crt",
         "-CAkey", authority / "ca.key", "-days", "5", "-copy_extensions", "copyall",
         "-extfile", extensions],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


def install(authority: Path, name: str = NAME) -> dict[str, Any]:
    csr = tls.request({"names": [name], "addresses": ["127.0.0.1"]})["csr"]
    ca = (authority / "ca.crt").read_text()
    return tls.install({"certificate_chain": sign(authority, csr), "ca": ca})


@pytest.fixture(scope="module")
def installed(authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/etc/llm/tls with a key and a certificate, made once: openssl takes its time."""
    place = FakeHost(tmp_path_factory.mktemp("installed"))
    place.prepare()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in place.environment().items():
            patch.setenv(key, value)
        install(authority)
    return place.root / "etc/llm/tls"


class Service:
    """An HTTPS service like the gateway's, with faults that a test switches on."""

    def __init__(self, host: FakeHost) -> None:
        self.fault = ""
        self.limit = 8
        # Those with a text in their answers; what is listed.
        self.talk, self.models = {"m"}, ["m"]
        self.mute: set[str] = set()
        self.from_burst_address = 0
        place = host.root / "etc/llm/tls"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place / "server.crt", place / "server.key")
        keys.verify_key({})
        self.digest = hashlib.sha256(keys.verify_key_path().read_bytes().strip()).hexdigest()
        self.https = self._server(secure=True)
        self.https.socket = context.wrap_socket(self.https.socket, server_side=True)
        self.http = self._server(secure=False)
        for server in (self.https, self.http):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def _server(self, secure: bool) -> ThreadingHTTPServer:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *arguments: Any) -> None:
                return

            def do_GET(self) -> None:
                service.answer(self, secure, None)

            def do_OPTIONS(self) -> None:
                service.answer(self, secure, None)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                if length > 1 << 20:  # announced only, as Nginx sees it
                    service.answer(self, secure, TOO_LARGE)
                    self.close_connection = True
                    return
                service.answer(self, secure, json.loads(self.rfile.read(length)))

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        return server

    def answer(self, it: BaseHTTPRequestHandler, secure: bool, body: Any) -> None:
        if not secure:
            location = f"https://{NAME}:{self.https.server_port}{it.path}"
            where = "http://evil.example" if self.fault == "redirect" else location
            return self.send(it, 308, {}, {"Location": where})
        paths = ["/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
        if it.path not in paths and not (self.fault == "metrics" and it.path == "/metrics"):
            return self.send(it, 404, {})
        if it.client_address[0] == verify.BURST_ADDRESS:
            self.from_burst_address += 1
            if self.from_burst_address > self.limit and self.fault != "no limit":
                header = {} if self.fault == "no retry-after" else {"Retry-After": "3"}
                return self.send(it, 429, {}, header)
        key = (it.headers.get("Authorization") or "").removeprefix("Bearer ")
        good = hashlib.sha256(key.encode()).hexdigest() == self.digest
        if not good and self.fault != "open":
            return self.send(it, 401, {})
        if body is None:
            return self.send(it, 200, {"data": [{"id": one} for one in self.models]})
        if it.path == "/v1/embeddings":
            return self.send(it, 404 if body["model"] in self.talk else 200, {})
        if body["model"] not in self.talk:
            return self.send(it, 404, {"message": "no such model"})
        if self.fault == "no template" and "chat" in it.path:
            return self.send(it, 400, {"message": "... does not define a chat template"})
        if body.get("stream"):
            return self.stream(it)
        text = "" if self.fault == "silent" or body["model"] in self.mute else "1, 2"
        choice = {"message": {"content": text}} if "chat" in it.path else {"text": text}
        return self.send(it, 200, {"choices": [choice], "usage": {"completion_tokens": 3}})

    def send(self, it: BaseHTTPRequestHandler, status: int, body: Any, more: Any = None) -> None:
        data = json.dumps(body).encode()
        it.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(more or {})}.items():
            it.send_header(name, value)
        it.end_headers()
        it.wfile.write(data)

    def stream(self, it: BaseHTTPRequestHandler) -> None:
        it.send_response(200)
        it.send_header("Content-Type", "text/event-stream")
        it.send_header("Transfer-Encoding", "chunked")
        it.end_headers()
        events = [f'data: {{"n": {number}}}\n\n'.encode() for number in range(5)]
        events += [] if self.fault == "cut" else [b"data: [DONE]\n\n"]
        if self.fault in ("buffered", "held up once"):
            events = [b"".join(events)]
        if self.fault == "held up once":
            self.fault = ""
        for event in events:
            it.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            it.wfile.flush()
            time.sleep(0.01)
        it.wfile.write(b"0\r\n\r\n")

    def request(self, **more: Any) -> dict[str, Any]:
        return {
            "https_port": self.https.server_port,
            "http_port": self.http.server_port,
            "server_name": NAME,
            "model": "m",
            "burst": {"requests": 20},
            **more,
        }


def failure(service: Service, **more: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        verify.verify(service.request(**more))
    return caught.value
