"""A small Hugging Face hub on loopback: its API as huggingface_hub 2.4 uses it, in pages."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "acme/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HuggingFace:
    """What it serves; tests change it meanwhile.

    large: paths that are in LFS. told: entries of the listing in place of the files' own. token:
    needed for everything. cdn: where files are redirected to. pages: entries a page.
    next_base: what links to the next page begin with, of a mirror the hub behind it.
    """

    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    told: list[dict[str, Any]] | None = None
    license: str | None = "apache-2.0"
    token: str | None = None
    cdn: str | None = None
    pages: int = 3
    next_base: str | None = None
    endpoint: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def entries(self) -> list[dict[str, Any]]:
        if self.told is not None:
            return self.told
        return [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": "assets"},
            *(self.entry(path) for path in sorted(self.files)),
        ]

    def entry(self, path: str) -> dict[str, Any]:
        body = self.files[path]
        pointer = b"version https://git-lfs.github.com/spec/v1\n"
        stored = pointer if path in self.large else body
        blob = hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()  # noqa: S324
        entry: dict[str, Any] = {"type": "file", "oid": blob, "size": len(body), "path": path}
        if path in self.large:
            digest = hashlib.sha256(body).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(body), "pointerSize": len(pointer)}
        return entry

    def downloads(self) -> list[str]:
        return [path.rsplit("/resolve/", 1)[1].split("/", 1)[1] for _, path, _ in self.requests
                if "/resolve/" in path]  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    hub: HuggingFace

    def log_message(self, format: str, *args: object) -> None:
        """Tests read hub.requests instead."""

    def do_GET(self) -> None:
        hub = self.hub
        hub.requests.append((self.command, self.path, dict(self.headers.items())))
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401, b'{"error": "Invalid credentials"}')
        elif parts.path in (f"/api/models/{MODEL}/revision/{name}" for name in ("main", COMMIT)):
            card = {"license": hub.license} if hub.license else {}
            self.answer(200, json.dumps({"sha": COMMIT, "cardData": card}).encode())
        elif parts.path == f"/api/models/{MODEL}/tree/{COMMIT}":
            self.page(parts.path, int(query.get("cursor", "0")))
        elif parts.path.startswith(f"/{MODEL}/resolve/{COMMIT}/"):
            self.file(urllib.parse.unquote(parts.path.split(f"/{COMMIT}/", 1)[1]))
        else:
            self.answer(404, b'{"error": "Repository not found"}')

    def page(self, path: str, start: int) -> None:
        hub = self.hub
        entries, end = hub.entries(), start + hub.pages
        headers = {}
        if end < len(entries):
            base = hub.next_base or hub.endpoint
            headers["Link"] = f'<{base}{path}?recursive=true&cursor={end}>; rel="next"'
        self.answer(200, json.dumps(entries[start:end]).encode(), headers)

    def file(self, path: str) -> None:
        if self.hub.cdn is not None:
            self.answer(302, b"", {"Location": f"{self.hub.cdn}/{urllib.parse.quote(path)}"})
        elif path in self.hub.files:
            self.answer(200, self.hub.files[path])
        else:
            self.answer(404, b"Entry not found")

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(hub: HuggingFace) -> ThreadingHTTPServer:
    """On a free loopback port, in a thread; end it with shutdown() and server_close()."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server
