"""A tiny in-process ModelScope hub with faults, and models to serve from it."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OWNER_NAME = "Qwen/Tiny"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def safetensors(payload: bytes, name: str = "w") -> bytes:
    """A valid safetensors file with one U8 tensor."""
    tensor = {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]}
    header = json.dumps({"__metadata__": {"format": "pt"}, name: tensor}).encode()
    return len(header).to_bytes(8, "little") + header + payload


def tiny_model() -> dict[str, bytes]:
    """A model of two shards, with a file in a directory and a dot-file."""
    weight_map = {"a": FIRST, "b": SECOND}
    return {
        "config.json": b'{"model_type": "qwen3"}',
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        FIRST: safetensors(b"\x01" * 300_000, "a"),
        SECOND: safetensors(b"\x02" * 200_000, "b"),
        "assets/tokenizer.json": b"{}",
        ".gitattributes": b"*.safetensors filter=lfs\n",
    }


def entry_of(path: str, body: bytes) -> dict[str, Any]:
    return {
        "Path": path,
        "Name": path.rsplit("/", 1)[-1],
        "Type": "blob",
        "Size": len(body),
        "Sha256": hashlib.sha256(body).hexdigest(),
        "Revision": "f" * 40,
        "IsLFS": path.endswith(".safetensors"),
    }


@dataclass
class FakeHub:
    """State of the hub; tests change it while it serves.

    corrupt: path -> how often its body is served with a wrong byte. entries: overrides the listing.
    statuses: (part of the path, status) answered instead, as often as they are in the list.
    client_statuses: the same, of the client's requests alone, whatever they are for.
    """

    files: dict[str, bytes] = field(default_factory=tiny_model)
    entries: list[dict[str, Any]] | None = None
    revisions: tuple[str, ...] = ("master", "v1.0")
    corrupt: dict[str, int] = field(default_factory=dict)
    statuses: list[tuple[str, int]] = field(default_factory=list)
    client_statuses: list[int] = field(default_factory=list)
    redirect_to: str | None = None
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    endpoint: str = ""

    def listing(self) -> list[dict[str, Any]]:
        if self.entries is not None:
            return self.entries
        directory = {"Path": "assets", "Name": "assets", "Type": "tree", "Size": 0, "Sha256": ""}
        return [directory, *(entry_of(path, body) for path, body in self.files.items())]

    def downloads(self, path: str) -> int:
        """How often a file's content was asked for by a client (not by the job itself)."""
        wanted = f"FilePath={urllib.parse.quote(path, safe='')}"
        return sum(
            1
            for url, headers in self.requests
            if wanted in url and headers.get("User-Agent") != "fleet-host"
        )


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        """Tests read hub.requests instead."""

    def do_GET(self) -> None:
        hub = self.hub
        hub.requests.append((self.path, dict(self.headers.items())))
        if hub.client_statuses and self.headers.get("User-Agent") == "fake-client":
            self.answer(hub.client_statuses.pop(0), b"fault")
            return
        for fault in hub.statuses:
            if fault[0] in self.path:
                hub.statuses.remove(fault)
                self.answer(fault[1], b"fault")
                return
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        base = f"/api/v1/models/{OWNER_NAME}"
        if parts.path == f"{base}/revisions":
            branches = [{"Revision": name, "CreatedAt": 1} for name in hub.revisions]
            self.data({"RevisionMap": {"Branches": branches, "Tags": None}})
        elif parts.path == f"{base}/repo/files":
            self.data({"Files": hub.listing(), "LatestCommitter": {"Id": "c0ffee"}})
        elif parts.path == f"{base}/repo" and query.get("FilePath") in hub.files:
            self.file(query["FilePath"])
        else:
            self.answer(404, b'{"Code": 10010205001, "Message": "not found"}')

    do_HEAD = do_GET  # noqa: N815 - the name that http.server asks for

    def file(self, path: str) -> None:
        hub = self.hub
        if hub.redirect_to is not None and "cdn" not in self.path:
            self.send_response(302)
            self.send_header("Location", f"{hub.redirect_to}{self.path}&cdn=1")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = hub.files[path]
        if hub.corrupt.get(path, 0) > 0 and self.command == "GET":
            hub.corrupt[path] -= 1
            body = body[:-1] + bytes([body[-1] ^ 0xFF])
        self.answer(200, body)

    def data(self, data: object) -> None:
        self.answer(200, json.dumps({"Code": 200, "Success": True, "Data": data}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def serve(hub: FakeHub) -> ThreadingHTTPServer:
    """Serve the hub on a free loopback port in a thread; shut it down with server.shutdown()."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server
