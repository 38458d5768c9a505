"""A host's service as a client sees it: HTTPS to its address, the name and the CA checked."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.plan import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

UNREACHABLE = 0


@dataclass(frozen=True)
class Answer:
    """status 0: no connection. Header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Service:
    """host: the lab host; ca: PEM file to trust; key: API key."""

    host: str
    server_name: str
    ca: Path
    key: str = field(repr=False)
    model: str

    def connect(self, timeout_seconds: float = 60.0) -> http.client.HTTPConnection:
        context = ssl.create_default_context(cafile=str(self.ca))
        connection = http.client.HTTPConnection(self.server_name, timeout=timeout_seconds)
        # Connected by hand: the name is for the certificate, the lab has no DNS.
        connection.sock = context.wrap_socket(
            socket.create_connection((address_of(self.host), 443), timeout=timeout_seconds),
            server_hostname=self.server_name,
        )
        return connection

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """key: "" for the service's own, None for none. headers: more of them."""
        try:
            connection = self.connect()
        except OSError:
            return Answer(UNREACHABLE, {}, b"")
        try:
            content, own = self._content(body, key)
            connection.request(method, path, content, {**own, **(headers or {})})
            response = connection.getresponse()
            given = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, given, response.read())
        except (OSError, http.client.HTTPException):
            return Answer(UNREACHABLE, {}, b"")
        finally:
            connection.close()

    def _content(self, body: Any, key: str | None) -> tuple[str | None, dict[str, str]]:
        used = self.key if key == "" else key
        headers = {"Authorization": f"Bearer {used}"} if used else {}
        if body is None:
            return None, headers
        return json.dumps(body), {**headers, "Content-Type": "application/json"}

    def chat_body(self, tokens: int, *, stream: bool = False) -> dict[str, Any]:
        message = {"role": "user", "content": "Count to ten."}
        return {
            "model": self.model, "messages": [message], "max_tokens": tokens, "stream": stream,
        }  # fmt: skip

    def answers(self) -> bool:
        """Whether a completion comes back with a text in it."""
        answer = self.request("POST", "/v1/chat/completions", self.chat_body(4))
        return answer.status == 200 and bool(
            answer.json()["choices"][0]["message"]["content"].strip()
        )

    def wait(self, seconds: float) -> float:
        """Until it answers; how long that took. AssertionError after `seconds`."""
        began = time.monotonic()
        while not self.answers():
            waited = time.monotonic() - began
            assert waited < seconds, f"{self.host} did not answer within {seconds:.0f} s"
            time.sleep(0.25)
        return time.monotonic() - began


@dataclass
class Stream(threading.Thread):
    """A streamed chat completion in the background. events: when each came (time.monotonic)."""

    service: Service
    tokens: int
    events: list[float] = field(default_factory=list)
    finished: bool = False
    error: str = ""

    def __hash__(self) -> int:
        return id(self)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        try:
            connection = self.service.connect()
            body = self.service.chat_body(self.tokens, stream=True)
            connection.request("POST", "/v1/chat/completions", *self.service._content(body, ""))
            response = connection.getresponse()
            if response.status != 200:
                self.error = f"status {response.status}"
                return
            for line in response:
                if line.startswith(b"data: [DONE]"):
                    self.finished = True
                elif line.startswith(b"data: "):
                    self.events.append(time.monotonic())
        except (OSError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"


class Streaming(threading.Thread):
    """One stream after the other while it is open; `streams` are those that were let in, `refused`
    the others."""

    def __init__(self, service: Service, tokens: int) -> None:
        super().__init__(daemon=True)
        self.service = service
        self.tokens = tokens
        self.streams: list[Stream] = []
        self.refused: list[Stream] = []
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(0.2):
            stream = Stream(self.service, self.tokens)
            stream.run()
            (self.streams if stream.events else self.refused).append(stream)

    def __enter__(self) -> Streaming:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()


class Asking(threading.Thread):
    """One short answer after the other while it is open."""

    def __init__(self, service: Service, tokens: int) -> None:
        super().__init__(daemon=True)
        self.service = service
        self.tokens = tokens
        self.answers: list[Answer] = []
        self._ending = threading.Event()

    def run(self) -> None:
        body = self.service.chat_body(self.tokens)
        while not self._ending.wait(0.3):
            self.answers.append(self.service.request("POST", "/v1/chat/completions", body))

    def __enter__(self) -> Asking:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()


class Poll(threading.Thread):
    """Asks a service for two tokens again and again, and remembers each status with its time. Not
    for its models: the gateway tells them by itself."""

    def __init__(self, service: Service, pause_seconds: float = 0.15) -> None:
        super().__init__(daemon=True)
        self.service = service
        self.pause_seconds = pause_seconds
        self.seen: list[tuple[float, int, dict[str, str]]] = []
        self._ending = threading.Event()

    def run(self) -> None:
        body = self.service.chat_body(2)
        while not self._ending.wait(self.pause_seconds):
            answer = self.service.request("POST", "/v1/chat/completions", body)
            self.seen.append((time.monotonic(), answer.status, answer.headers))

    def __enter__(self) -> Poll:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()

    @property
    def down(self) -> list[float]:
        """The moments at which no good answer came."""
        return [moment for moment, status, _ in self.seen if status != 200]

    def statuses(self) -> set[int]:
        return {status for _, status, _ in self.seen}
