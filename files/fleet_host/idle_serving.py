"""A server of files for other hosts that ends by itself, when nobody asks any more."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .status import Progress


class IdleServer(http.server.ThreadingHTTPServer):
    """asked_at: monotonic time of the last request's begin or end; busy: requests under way, both
    kept by the handler; refused: addresses that were turned away."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: Any, port: int, handler: Any) -> None:
        self.address_family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        self.asked_at = time.monotonic()
        self.busy = 0
        self.served_bytes = 0
        self.refused: set[str] = set()
        self.counting = threading.Lock()
        super().__init__((str(address), port), handler)

    def serve_until_idle(self, idle_seconds: float, progress: Progress) -> None:
        """Serve, in a thread, until nobody has asked for idle_seconds; then close."""
        threading.Thread(target=self.serve_forever, args=(0.2,), daemon=True).start()
        try:
            while self.busy or time.monotonic() - self.asked_at < idle_seconds:
                progress.advance(self.served_bytes)
                time.sleep(min(1.0, idle_seconds / 4))
        finally:
            self.shutdown()
            self.server_close()
