"""A page in headless Chromium that asks a gateway of another origin and reads its stream.

The certificate is checked as anywhere: the CA is in the NSS database of the browser's own home.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.clients.clients import Heard

if TYPE_CHECKING:
    from tests.clients.clients import Vhost

PAGE = Path(__file__).parent / "page.html"


def lacks_browser() -> str | None:
    """Why there can be no browser here; None when there can."""
    for name, package in (("chromium", "chromium"), ("certutil", "libnss3-tools")):
        if shutil.which(name) is None:
            return f"{name} is not installed (apt-get install {package})"
    return None


class PageServer:
    """Serves the page, its settings, and takes what it saw. Origin: http://HOST:port."""

    def __init__(self) -> None:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = {
                    "/": (PAGE.read_bytes(), "text/html"),
                    "/settings.json": (json.dumps(server.settings).encode(), "application/json"),
                }.get(self.path)
                body, kind = found or (b"", "text/plain")
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                server.seen = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(204)
                self.end_headers()
                server.told.set()

            def log_message(self, *_: Any) -> None:
                pass

        self.settings: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}
        self.told = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def origin(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}"


def make_home(directory: Path, ca: Path) -> Path:
    """A home directory whose browser trusts this CA, for servers, and no other of ours."""
    database = directory / ".pki" / "nssdb"
    database.mkdir(parents=True)
    where = ["-d", f"sql:{database}"]
    subprocess.run(["certutil", *where, "-N", "--empty-password"], check=True)
    add = ["certutil", *where, "-A", "-t", "C,,", "-n", "the gateway's CA", "-i", str(ca)]
    subprocess.run(add, check=True)
    return directory


def with_chromium(vhost: Vhost, home: Path, pages: PageServer, host: str = "127.0.0.1") -> Heard:
    """Open the page as http://HOST:port/. more: status, request_id, done, refused, error.

    Once more where the machine's addresses have changed meanwhile, as when a lab host boots:
    Chromium breaks off every connection then (ERR_NETWORK_CHANGED), whoever it is to.
    """
    while True:
        before = addresses()
        heard = _open(vhost, home, pages, host)
        if heard.more["error"] is None or addresses() == before:
            return heard


def addresses() -> str:
    """Of this machine, by interface."""
    return subprocess.run(
        ["ip", "-brief", "addr"], check=True, capture_output=True, text=True
    ).stdout


def _open(vhost: Vhost, home: Path, pages: PageServer, host: str) -> Heard:
    pages.settings, pages.seen = vhost.settings(), {}
    pages.told.clear()
    command = [
        *("chromium", "--headless=new", "--disable-gpu", "--no-first-run"),
        # Root has no other way; the page is ours.
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"),
        f"--user-data-dir={home / 'profile'}",
        # As DNS would; TLS goes on checking the name.
        f"--host-resolver-rules=MAP {vhost.server_name} {vhost.address}",
        f"{pages.origin(host)}/",
    ]
    with (home / "chromium.log").open("ab") as log:
        browser = subprocess.Popen(
            command,
            env=os.environ | {"HOME": str(home)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while not pages.told.wait(0.5):
            assert browser.poll() is None, (home / "chromium.log").read_text()[-3000:]
    finally:
        # With its renderers and helpers: they are of its process group.
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
    found = dict(pages.seen)
    return Heard(found.pop("seconds"), found.pop("text"), found)


def lacks_chromium() -> str | None:
    """Why no page can be opened here; None when one can."""
    if shutil.which("chromium") is None:
        return "chromium is not installed (apt-get install chromium)"
    return None


def dumped(page: Path, home: Path) -> str:
    """The document as it is when a page, a file, has been loaded and everything on it has run."""
    done = subprocess.run(
        [
            *("chromium", "--headless=new", "--disable-gpu", "--no-first-run"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync"),
            *(f"--user-data-dir={home / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"),
            page.as_uri(),
        ],
        env=os.environ | {"HOME": str(home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
