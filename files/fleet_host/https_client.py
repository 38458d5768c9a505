"""A client of the service on this host: one address, SNI, a checked certificate, arrival times.
It also asks an engine itself, through its Unix socket, to compare the two."""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from . import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer

ADDRESS = "127.0.0.1"


class UnansweredError(Exception):
    """No answer at all. look_at: where to look next."""

    def __init__(self, what: str, look_at: str) -> None:
        super().__init__(what)
        self.look_at = look_at


class Line(NamedTuple):
    """A line of an answer, when it was there, in seconds since the request was sent, and with which
    read of the socket it came."""

    text: str
    seconds: float
    read: int


@dataclass
class Reply:
    """An answer, its lines in order of arrival."""

    method: str
    path: str
    status: int
    headers: dict[str, str]
    lines: list[Line] = field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    def json(self) -> dict[str, Any]:
        """The body as an object; empty when it is none."""
        try:
            document = json.loads(self.text())
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


class _CountedReads(io.RawIOBase):
    """A socket's stream that counts its reads. One read of TLS brings one record at most, so what
    was sent in one piece comes in one read however slow this machine is, and what was sent piece
    by piece comes in as many; times alone cannot tell the two apart on a busy machine."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        self.count += 1
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **more: Any) -> None:
        super().__init__(sock, *arguments, **more)
        self.reads = _CountedReads(self.fp.detach())
        self.fp = io.BufferedReader(self.reads)


class _Connection(http.client.HTTPConnection):
    """To ADDRESS, or to a Unix socket, whatever the server is called."""

    response_class = _Response

    def __init__(self, client: Client, timeout_seconds: float) -> None:
        super().__init__(client.server_name, client.port, timeout=timeout_seconds)
        self._client = client

    def connect(self) -> None:
        if self._client.socket_path is not None:
            self.sock = probe.connected(self._client.socket_path, self.timeout)
            return
        source = (self._client.source, 0) if self._client.source else None
        self.sock = socket.create_connection((ADDRESS, self.port), self.timeout, source)
        # Without it a small request may wait for an acknowledgement, 40 ms on every one.
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._client.context is not None:
            name = self._client.server_name
            self.sock = self._client.context.wrap_socket(self.sock, server_hostname=name)


class Client:
    """authority: PEM of the CA to trust, None for the system's. source: address to call from.
    socket_path: where an engine listens itself; then without TLS and port."""

    def __init__(
        self,
        server_name: str,
        port: int,
        authority: str | None,
        *,
        tls: bool = True,
        source: str | None = None,
        socket_path: str | None = None,
    ) -> None:
        self.socket_path = socket_path
        self.server_name = server_name
        self.port = port
        self.authority = authority
        self.source = source
        self.context = ssl.create_default_context(cadata=authority) if tls else None

    @contextmanager
    def kept_open(self, timeout_seconds: float = 30.0) -> Iterator[http.client.HTTPConnection]:
        """One connection for many requests: a handshake each would be slower than a limit."""
        connection = _Connection(self, timeout_seconds)
        try:
            yield connection
        finally:
            connection.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any,
        headers: dict[str, str],
        timeout_seconds: float = 30.0,
        connection: http.client.HTTPConnection | None = None,
    ) -> Reply:
        """One request with its answer read to the end. UnansweredError.

        timeout_seconds bounds each silence, not the whole.
        """
        used = connection or _Connection(self, timeout_seconds)
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers} if data is not None else headers
        began = time.monotonic()
        try:
            used.request(method, path, data, sent)
            answer = used.getresponse()
            assert isinstance(answer, _Response)
            found = {name.lower(): value for name, value in answer.getheaders()}
            reply = Reply(method, path, answer.status, found)
            for line in answer:
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                reply.lines.append(Line(text, time.monotonic() - began, answer.reads.count))
            # Iterating stops before the answer counts as read, which a kept connection needs.
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unanswered(method, path, error) from error
        finally:
            if connection is None:
                used.close()
        reply.seconds = round(time.monotonic() - began, 3)
        return reply

    def _unanswered(self, method: str, path: str, error: Exception) -> UnansweredError:
        what = f"{method} {path}: {type(error).__name__}: {error}"
        if self.socket_path is not None:
            what = f"the engine itself, at {self.socket_path}: {what}"
            return UnansweredError(what, "See journalctl -u 'llm-engine@*'.")
        if isinstance(error, ssl.SSLCertVerificationError):
            return UnansweredError(
                f"{method} {path}: the certificate is not accepted: {error.verify_message}",
                f"Does the certificate name {self.server_name}, is it still valid, is it from the "
                "CA that clients know? See: openssl x509 -text -in /etc/llm/tls/server.crt. After "
                "a new one Nginx has to be reloaded.",
            )
        if isinstance(error, ConnectionRefusedError):
            return UnansweredError(
                f"nobody listens on {ADDRESS}:{self.port}",
                "systemctl status nginx; ss -ltnp. Is another port configured?",
            )
        if isinstance(error, TimeoutError):
            return UnansweredError(
                what, "Nobody spoke for too long: journalctl -u 'llm-engine@*' and its load."
            )
        return UnansweredError(what, "See /var/log/nginx/llm-error.log and systemctl status nginx.")
