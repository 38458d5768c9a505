"""A real Nginx, the real auth service and a stub engine as ordinary processes on loopback.

Nothing of the machine's own /etc/nginx is read: the prefix, the main file, the logs and the sockets
are in one temporary directory, whose path is short because a Unix socket's may have 107 bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from pyinfra_deploy.planning.nginx import NginxHost, render
from pyinfra_deploy.planning.nginx_build import parse_nginx_build
from tests.fakes.gateway_settings import gateway_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
CHUNK_GAP_SECONDS = 0.15
CHUNKS = 6


def nginx_build() -> tuple[str, str | None]:
    output = subprocess.run(["nginx", "-V"], capture_output=True, text=True, check=True)
    return parse_nginx_build(output.stderr)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        values = self.all(name)
        assert len(values) <= 1, f"{name} appears {len(values)} times: {values}"
        return values[0] if values else None

    def error_code(self) -> str:
        """The code of an error in OpenAI's shape, having checked that it is one."""
        assert self.header("Content-Type") == "application/json"
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["code"])


@dataclass
class StubEngine:
    """What vLLM looks like to Nginx: uvicorn on a Unix socket. Keeps what it was sent."""

    path: Path
    seen: list[dict[str, Any]] = field(default_factory=list)
    silent_seconds: float = 0.0
    disconnected: int = 0
    sent: list[float] = field(default_factory=list)  # when each chunk of the last stream was sent
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
        target = scope["raw_path"].decode() + (
            "?" + scope["query_string"].decode() if scope["query_string"] else ""
        )
        self.seen.append(
            {"method": scope["method"], "target": target, "headers": headers, "bytes": len(body)}
        )
        answer = [
            (b"access-control-allow-origin", b"*"),
            (b"x-request-id", b"the engine's own"),
            (b"x-accel-redirect", b"/_llm/auth"),
        ]
        if b'"stream": true' in body:
            await self._stream(receive, send, answer)
            return
        if b'"hang"' in body:
            await asyncio.sleep(self.silent_seconds)
        if b'"fail"' in body:
            await _send(send, 400, answer, b'{"error":{"message":"of the engine"}}')
            return
        await _send(send, 200, answer, json.dumps({"path": scope["path"]}).encode())

    async def _stream(self, receive: Any, send: Any, answer: list[tuple[bytes, bytes]]) -> None:
        gone = asyncio.create_task(receive())
        answer.append((b"content-type", b"text/event-stream"))
        await send({"type": "http.response.start", "status": 200, "headers": answer})
        self.sent = []
        for number in range(CHUNKS):
            chunk = f"data: {number}\n\n".encode()
            self.sent.append(time.monotonic())
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.wait({gone}, timeout=CHUNK_GAP_SECONDS)
            if gone.done():
                self.disconnected += 1
                return
        gone.cancel()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def start(self) -> None:
        config = uvicorn.Config(self, uds=str(self.path), log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: bool(self._server and self._server.started), "the stub engine")

    def stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(10)


async def _send(send: Any, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def wait_until(condition: Any, what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come up in {seconds} s"
        time.sleep(0.02)


class Gateway:
    """Nginx with the rendered configuration, the auth service and the stub engine."""

    def __init__(self, directory: Path, keys: dict[str, Any], **settings: Any) -> None:
        self.directory = directory
        self.replacements: dict[str, str] = {}  # in the configuration, to break it on purpose
        self.https_port, self.http_port = free_port(), free_port()
        self.engine = StubEngine(directory / "engine.sock")
        self.keys_file = directory / "keys.json"
        self.keys_file.write_text(json.dumps(keys))
        self.drain_flag = directory / "drain"
        self.name_servers: tuple[str, ...] = ()
        self.settings = gateway_settings(
            https_port=self.https_port, http_port=self.http_port, **settings
        )
        self._auth: subprocess.Popen[bytes] | None = None
        self._nginx: subprocess.Popen[bytes] | None = None

    @property
    def access_log(self) -> Path:
        return self.directory / "access.log"

    @property
    def error_log(self) -> Path:
        return self.directory / "llm-error.log"

    def start(self) -> None:
        write_configuration(self.directory, self.configuration())
        self.engine.start()
        self.start_auth()
        self._nginx = subprocess.Popen(nginx_command(self.directory))
        wait_until(lambda: _connects(self.https_port), "nginx")

    def configuration(self) -> str:
        version, openssl = nginx_build()
        host = NginxHost(
            nginx_version=version,
            openssl_version=openssl,
            engine_socket=str(self.engine.path),
            auth_socket=str(self.directory / "auth.sock"),
            service_socket=str(self.directory / "auth.sock"),
            name_servers=self.name_servers,
            certificate=str(self.directory / "tls.crt"),
            certificate_key=str(self.directory / "tls.key"),
            drain_flag=str(self.drain_flag),
            max_body_mb=1,
            access_log=str(self.access_log),
            error_log=str(self.error_log),
            ipv6=has_ipv6(),
        )
        (text,) = render(self.settings, host).files.values()
        for right, wrong in self.replacements.items():
            assert right in text
            text = text.replace(right, wrong)
        return on_loopback(text)

    def start_auth(self) -> None:
        path = self.directory / "auth.sock"
        path.unlink(missing_ok=True)
        self._auth = subprocess.Popen(
            [sys.executable, "-m", "llm_gateway", "--socket", str(path)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT / "gateway"),
                "LLM_GATEWAY_KEYS": f"{self.keys_file}:{self.directory / 'verify-key.json'}",
                **self.service_environment(),
            },
            stderr=(self.directory / "auth.log").open("ab"),
        )
        # The socket is there before it listens.
        wait_until(lambda: _accepts(path), "the auth service")

    def service_environment(self) -> dict[str, str]:
        return {}

    def stop_auth(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self._auth is not None
        self._auth.send_signal(how)
        self._auth.wait(10)

    def stop(self) -> None:
        for process in (self._nginx, self._auth):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(10)
        self.engine.stop()

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        address: str = "127.0.0.1",
    ) -> Answer:
        connection = http.client.HTTPSConnection(
            address, self.https_port, timeout=10, context=tls()
        )
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read())
        finally:
            connection.close()

    def raw(self, request: bytes, *, plain: bool = False) -> Answer:
        """Send bytes as they are, for what no client library would send."""
        port = self.http_port if plain else self.https_port
        with contextlib.ExitStack() as stack:
            channel = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            if not plain:
                channel = stack.enter_context(
                    tls().wrap_socket(channel, server_hostname="llm.example.com")
                )
            channel.sendall(request)
            response = http.client.HTTPResponse(channel, method=request.split(b" ")[0].decode())
            response.begin()
            return Answer(response.status, response.getheaders(), response.read())

    def stream(
        self, headers: dict[str, str], body: bytes = b'{"stream": true}'
    ) -> Iterator[tuple[float, bytes]]:
        """A streamed completion: when it was here (monotonic) and a line, for each event."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.https_port, timeout=20, context=tls()
        )
        try:
            connection.request("POST", "/v1/chat/completions", body, headers)
            response = connection.getresponse()
            assert response.status == 200
            assert response.getheader("Content-Type", "").startswith("text/event-stream")
            for line in response:
                if line.strip():
                    yield time.monotonic(), line.strip()
        finally:
            connection.close()

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.access_log.read_text().splitlines()]


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def _connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def tls() -> ssl.SSLContext:
    # Not create_default_context(), which reads the machine's authorities each time.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def on_loopback(configuration: str) -> str:
    """The same servers, but not reachable from outside this machine."""
    text, count = re.subn(r"listen (\d+)", r"listen 127.0.0.1:\1", configuration)
    assert count == 2
    return text.replace("listen [::]:", "listen [::1]:")


def write_configuration(
    directory: Path, configuration: str, extra: str = "", connections: int = 256
) -> None:
    """A main file as small as it can be, around the file under test (and another one)."""
    (directory / "llm-gateway.conf").write_text(configuration)
    (directory / "other.conf").write_text(extra)
    paths = "".join(
        f"{name}_temp_path {directory}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(
        f"""{user}
worker_processes 1;
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log info;
events {{ worker_connections {connections}; }}
http {{
{paths}
types {{ text/html html; }}
gzip on;
access_log off;
include {directory}/llm-gateway.conf;
include {directory}/other.conf;
}}
"""
    )


def nginx_command(directory: Path, *arguments: str) -> list[str]:
    main = directory / "nginx.conf"
    error_log = directory / "error.log"
    return ["nginx", "-p", str(directory), "-e", str(error_log), "-c", str(main), *arguments]
