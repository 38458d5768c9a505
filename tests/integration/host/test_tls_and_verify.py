"""TLS keys, key files and `verify`, the last against a small TLS service that can misbehave."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import keys, snapshot, tls, verify
from fleet_host.errors import HostError, SpecError

from pyinfra_deploy.planning.verification import unverified_reason
from tests.fakes.engine_host import FakeHost

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def test_a_key_is_made_once_and_never_leaves(host: FakeHost, authority: Path) -> None:
    first = tls.request({"names": [NAME], "addresses": ["10.0.0.1"]})
    key = host.root / "etc/llm/tls/server.key"
    before = key.read_bytes()
    assert first["key_created"] is True
    assert key.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in json.dumps(first)
    assert tls.request({"names": [NAME], "addresses": []})["key_created"] is False
    assert key.read_bytes() == before


def test_a_certificate_for_the_key_is_installed_once(host: FakeHost, authority: Path) -> None:
    csr = tls.request({"names": [NAME], "addresses": ["10.0.0.1"]})["csr"]
    chain = sign(authority, csr)
    result = tls.install({"certificate_chain": chain})
    assert result["changed"] is True
    assert result["certificate"]["sans"] == [NAME, "10.0.0.1"]
    assert result["certificate"]["issuer"] == "Test CA"
    assert tls.install({"certificate_chain": chain})["changed"] is False
    path = str(host.root / "etc/llm/tls/server.crt")
    assert snapshot.certificate_state(path) == result["certificate"]


def test_a_certificate_for_another_key_is_refused(host: FakeHost, authority: Path) -> None:
    csr = tls.request({"names": [NAME], "addresses": []})["csr"]
    chain = sign(authority, csr)
    (host.root / "etc/llm/tls/server.key").unlink()
    tls.request({"names": [NAME], "addresses": []})
    with pytest.raises(HostError, match="not for this host's key"):
        tls.install({"certificate_chain": chain})
    with pytest.raises(HostError, match="reading the certificate failed"):
        tls.install({"certificate_chain": "nonsense"})
    assert not (host.root / "etc/llm/tls/server.crt").exists()


@pytest.mark.parametrize("name", ["a b", "x/CN=evil", "x,DNS:evil", "", "-x"])
def test_a_name_cannot_smuggle_anything_into_a_request(host: FakeHost, name: str) -> None:
    with pytest.raises(SpecError):
        tls.request({"names": [name], "addresses": []})


class Service:
    """An HTTPS service like the gateway's, with faults that a test switches on."""

    def __init__(self, host: FakeHost) -> None:
        self.fault = ""
        self.limit = 8
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
        if it.path not in ("/v1/models", "/v1/chat/completions", "/v1/completions") and not (
            self.fault == "metrics" and it.path == "/metrics"
        ):
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
            return self.send(it, 200, {"data": [{"id": "m"}]})
        if self.fault == "no template" and "chat" in it.path:
            return self.send(it, 400, {"message": "... does not define a chat template"})
        if body.get("stream"):
            return self.stream(it)
        text = "" if self.fault == "silent" else "1, 2"
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


@pytest.fixture
def service(host: FakeHost, installed: Path) -> Iterator[Service]:
    shutil.copytree(installed, host.root / "etc/llm/tls")
    running = Service(host)
    yield running
    for server in (running.https, running.http):
        server.shutdown()
        server.server_close()


def failure(service: Service, **more: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        verify.verify(service.request(**more))
    return caught.value


def test_a_good_service_passes_every_check(service: Service) -> None:
    checks = {item["name"]: item for item in verify.verify(service.request())["checks"]}
    assert list(checks) == [
        "models", "answer", "stream", "no key", "wrong key", "unknown path", "HTTP to HTTPS",
        "burst",
    ]  # fmt: skip
    assert all(item["ok"] for item in checks.values())
    stream = checks["stream"]["figures"]
    assert (stream["events"], stream["pieces"]) == (6, 6)
    assert stream["last_event_seconds"] > stream["first_event_seconds"]
    assert checks["burst"]["figures"]["let_through"] == service.limit
    assert checks["answer"]["figures"]["path"] == "/v1/chat/completions"


def test_what_has_passed_is_noted_as_the_plan_compares_it(service: Service, host: FakeHost) -> None:
    facts = {
        host.root / "run/llm-engine-main/started.json": {"release": "r1", "binding": "b"},
        host.root / "run/llm-gateway/started.json": {"environment": "gateway-1", "shape": "full"},
        host.llm_root / "gateway/config.json": {"schema": 1},
        host.llm_root / "state/nginx.json": {"files": {}, "loaded": "n", "certificates": {}},
    }
    for path, document in facts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
    seen: dict[str, Any] = {
        "engines": {"main": {"started": {"release": "r1", "binding": "b"}}},
        "gateway": {
            "started": {"environment": "gateway-1", "shape": "full"},
            "configuration": hashlib.sha256(b'{"schema": 1}').hexdigest(),
            "nginx_loaded": "n",
            "certificate": snapshot.certificate_state(str(host.root / "etc/llm/tls/server.crt")),
        },
    }

    def plan_says() -> str:
        state = snapshot.state_section({"llm_root": str(host.llm_root)})
        return unverified_reason({**seen, "state": state}, "main")

    service.fault = "silent"
    failure(service, engine="main")
    assert plan_says() == "what runs has not been verified yet"
    service.fault = ""
    verify.verify(service.request(engine="main"))
    assert plan_says() == ""
    seen["gateway"]["nginx_loaded"] = "m"
    assert "the gateway has not been verified" in plan_says()
    seen["engines"]["main"]["started"]["release"] = "r2"
    assert plan_says() == "release r2 has not been verified since it was started"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("open", "'no key' failed"),
        ("metrics", "'unknown path' failed"),
        ("redirect", "'HTTP to HTTPS' failed"),
        ("silent", "'answer' failed"),
        ("cut", "'stream' failed"),
        ("buffered", "'stream' failed"),
        ("no limit", "'burst' failed"),
        ("no retry-after", "'burst' failed"),
    ],
)
def test_each_fault_is_found_by_its_check(service: Service, fault: str, said: str) -> None:
    service.fault = fault
    error = failure(service)
    assert said in error.what
    assert error.fix


def test_a_stream_that_a_busy_host_held_up_is_no_buffering(service: Service) -> None:
    service.fault = "held up once"
    checks = {item["name"]: item["figures"] for item in verify.verify(service.request())["checks"]}
    assert checks["stream"]["pieces"] == 6


def engine_that_streams(host: FakeHost, pieces: list[bytes]) -> threading.Thread:
    """One answer on the socket of engine main, sent in these pieces."""
    path = host.root / "run/llm-engine-main/http.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def answer() -> None:
        with server, server.accept()[0] as peer:
            # All of it: a socket that is closed with something unread resets the connection.
            with peer.makefile("rb") as asked:
                head = b"".join(iter(asked.readline, b"\r\n")).lower()
                asked.read(int(head.split(b"content-length:")[1].split()[0]))
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            for piece in pieces:
                time.sleep(0.05)
                peer.sendall(piece)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


EVENTS = [b"data: {}\n\n"] * 5 + [b"data: [DONE]\n\n"]


def test_an_engine_that_says_all_at_once_is_no_buffering(service: Service, host: FakeHost) -> None:
    """A random model of a few MB on a busy host: 50 events within a millisecond, seen."""
    service.fault = "buffered"
    engine = engine_that_streams(host, [b"".join(EVENTS)])
    done = verify.verify(service.request(engine="main"))["checks"]
    engine.join()
    checks = {item["name"]: item["figures"] for item in done}
    assert checks["stream"]["bunched_by"] == "the engine"


def test_what_the_engine_sends_piece_by_piece_must_not_be_bunched(
    service: Service, host: FakeHost
) -> None:
    service.fault = "buffered"
    engine = engine_that_streams(host, EVENTS)
    assert "'stream' failed" in failure(service, engine="main").what
    engine.join()


def test_an_open_service_is_said_loudly(service: Service) -> None:
    service.fault = "open"
    assert "THE SERVICE IS OPEN" in failure(service).fix


def test_a_model_without_a_chat_template_is_asked_for_completions(service: Service) -> None:
    service.fault = "no template"
    checks = {item["name"]: item["figures"] for item in verify.verify(service.request())["checks"]}
    assert checks["answer"]["path"] == "/v1/completions"
    assert checks["stream"]["path"] == "/v1/completions"


def test_a_certificate_for_another_name_is_not_accepted(service: Service) -> None:
    error = failure(service, server_name="other.example.com")
    assert "the certificate is not accepted" in error.why


def test_a_certificate_of_an_unknown_authority_is_not_accepted(
    service: Service, host: FakeHost
) -> None:
    (host.root / "etc/llm/tls/ca.crt").unlink()
    assert "the certificate is not accepted" in failure(service).why


def test_another_model_is_told(service: Service) -> None:
    assert "lists m, not other" in failure(service, model="other").why


def test_nobody_listening_is_told(service: Service) -> None:
    error = failure(service, https_port=1)
    assert "nobody listens on 127.0.0.1:1" in error.why
    assert "nginx" in error.fix
