"""A package index on loopback with small real wheels, which counts what it is asked and fails on
demand; and a host's directories to install on."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import os
import subprocess
import threading
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import wheel_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


UPLOADED = "2026-01-01T00:00:00Z"


def wheel_bytes(
    name: str, version: str = "1.0", size_bytes: int = 1000, needs: tuple[str, ...] = ()
) -> bytes:
    """A wheel of one module. Its content does not compress, so that it has about that size."""
    requires = "".join(f"Requires-Dist: {one}\n" for one in needs)
    info = f"{name}-{version}.dist-info"
    filler = hashlib.shake_256(name.encode()).digest(size_bytes).hex()[:size_bytes]
    files = {
        f"{name}/__init__.py": f"NAME = {name!r}\n".encode(),
        f"{name}/data.txt": filler.encode(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@dataclass
class Index:
    """files: name -> bytes that are served. asked: paths of requests. cut_after: of a file, how
    many bytes come before the connection ends, once."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    cut_after: dict[str, int] = field(default_factory=dict)
    hold: dict[str, threading.Event] = field(default_factory=dict)
    with_hashes: bool = True
    # When a file was uploaded, where it matters: UPLOADED otherwise.
    uploaded: dict[str, str] = field(default_factory=dict)
    as_json: bool = False
    url: str = ""
    # What is served where it differs from what the pages say: a tampered file.
    changed: dict[str, bytes] = field(default_factory=dict)

    def add(
        self,
        name: str,
        version: str = "1.0",
        size_bytes: int = 1000,
        needs: tuple[str, ...] = (),
    ) -> str:
        """Serve a wheel; its file name."""
        file = f"{name}-{version}-py3-none-any.whl"
        self.files[file] = wheel_bytes(name, version, size_bytes, needs)
        return file

    def rows(self, *, sizes: bool = True) -> list[dict[str, Any]]:
        """The wheels as a job's spec names them."""
        return [
            {
                "file": file,
                "sha256": hashlib.sha256(content).hexdigest(),
                "size_bytes": len(content) if sizes else None,
            }
            for file, content in sorted(self.files.items())
        ]

    def lock(self) -> str:
        lines = []
        for row in self.rows():
            name, version = row["file"].split("-")[:2]
            lines.append(f"{name}=={version} \\\n    --hash=sha256:{row['sha256']}\n")
        return "".join(lines)

    def downloads(self, file: str) -> int:
        return self.asked.count(f"/files/{file}")

    def page(self, name: str) -> tuple[str, str]:
        found = [row for row in self.rows() if row["file"].split("-")[0].replace("_", "-") == name]
        if self.as_json:
            files = [
                {
                    "filename": row["file"],
                    "url": f"../../files/{row['file']}",
                    "hashes": {"sha256": row["sha256"]} if self.with_hashes else {},
                    "size": row["size_bytes"],
                    "upload-time": self.uploaded.get(row["file"], UPLOADED),
                }
                for row in found
            ]
            document = {"meta": {"api-version": "1.1"}, "name": name, "files": files}
            return json.dumps(document), "application/vnd.pypi.simple.v1+json"
        anchors = []
        for row in found:
            fragment = f"#sha256={row['sha256']}" if self.with_hashes else ""
            anchors.append(f'<a href="../../files/{row["file"]}{fragment}">{row["file"]}</a>')
        return "<!DOCTYPE html>" + "\n".join(anchors), "text/html"


class Handler(http.server.BaseHTTPRequestHandler):
    index: Index
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.index.asked.append(self.path)
        kind, _, rest = self.path.strip("/").partition("/")
        if kind == "simple":
            text, content_type = self.index.page(rest.strip("/"))
            self._send(200, text.encode(), content_type)
        elif kind == "files" and rest in self.index.files:
            self._file(rest)
        else:
            self._send(404, b"no", "text/plain")

    def do_HEAD(self) -> None:
        """uv asks whether it may read parts; it may not, and reads the whole."""
        content = self.index.files.get(self.path.rsplit("/", 1)[-1])
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()

    def _file(self, file: str) -> None:
        content = self.index.changed.get(file, self.index.files[file])
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if asked:
            self.index.ranges.append(f"{file} {start}")
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.index.cut_after.pop(file, None)
        if cut is not None:
            self.wfile.write(content[start : start + cut])
            self.wfile.flush()
            if file in self.index.hold:
                self.index.hold[file].wait(30)
            self.close_connection = True
            return
        self.wfile.write(content[start:])

    def _send(self, code: int, body: bytes, content_type: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    made = Index()
    handler = type("Bound", (Handler,), {"index": made})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def write_wheels(index: Index, directory: Path) -> Path:
    """A wheelhouse with all of the index's wheels, pages too."""
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in index.files.items():
        (directory / file).write_bytes(content)
    wheel_pages.write_pages(directory, {row["file"]: row["sha256"] for row in index.rows()})
    return directory


def small_disk(path: Path, size_kib: int) -> Iterator[Path]:
    """A tmpfs of that size at the path; the test is skipped without root."""
    if os.geteuid() != 0:
        pytest.skip("a small file system needs root (mount)")
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
