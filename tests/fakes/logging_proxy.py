"""An HTTP proxy on loopback that remembers what it was asked for."""

from __future__ import annotations

import threading
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class LoggingProxy:
    url: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def logging_proxy() -> Iterator[LoggingProxy]:
    made = LoggingProxy()
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            headers = dict(self.headers.items())
            sent = urllib.request.Request(self.path, headers=headers)  # noqa: S310 - a test's own
            with straight.open(sent, timeout=10) as answer:
                body = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Tests read `asked`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()
