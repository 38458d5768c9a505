"""The whole way of gateway.mode full: a real Nginx, the real gateway service, a stub engine."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

from tests.fakes.stub_engine import StubEngine
from tests.integration.nginx.running import Gateway, wait_until

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

MODEL = "org/model"
# Of the body; Nginx's own limit in these tests is 1 MiB too.
MAX_BODY_BYTES = 1024 * 1024


class EngineThread:
    """tests/fakes/stub_engine.py in an event loop of its own, for tests that are no coroutines."""

    def __init__(self, path: Path) -> None:
        self.stub = StubEngine(path, rate=2000.0)
        self.path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._do(self.stub.start())

    def stop(self) -> None:
        self._do(self.stub.kill())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def reached(self) -> list[tuple[str, dict[str, str], Any]]:
        """(path, headers, body) of all that arrived, but for what the service asks for itself."""
        return [one for one in self.stub.requests if "x-request-id" in one[1]]


class FullGateway(Gateway):
    """`engine` is the stub of tests/fakes instead."""

    def __init__(self, directory: Path, keys: dict[str, Any], **settings: Any) -> None:
        self.admission = settings.pop("admission", {})
        super().__init__(directory, keys, **{"mode": "full"} | settings)
        self.full_engine = EngineThread(directory / "engine.sock")
        self.engine = self.full_engine  # type: ignore[assignment]  # started and stopped alike
        self.engine_drain_flag = directory / "engine-drain"

    def service_environment(self) -> dict[str, str]:
        path = self.directory / "config.json"
        path.write_text(json.dumps(self.service_configuration()))
        return {"LLM_GATEWAY_CONFIG": str(path)}

    def service_configuration(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "backends": [
                {
                    "name": "main",
                    "url": f"unix:{self.full_engine.path}",
                    "models": [MODEL],
                    "drain_flag": str(self.engine_drain_flag),
                }
            ],
            "health": {"interval_seconds": 0, "open_seconds": 0.2, "max_open_seconds": 0.2},
            "timeouts": {"first_byte_seconds": self.settings.read_timeout_seconds},
            "admission": {
                "max_body_bytes": MAX_BODY_BYTES,
                "expose_tokenize": self.settings.tokenize,
                **self.admission,
            },
        }

    def start(self) -> None:
        super().start()
        wait_until(lambda: self.request("GET", "/health").status == 200, "the service")

    def stop(self) -> None:
        super().stop()
        self.full_engine.close()


def chat(**more: Any) -> bytes:
    document = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **more}
    return json.dumps(document).encode()
