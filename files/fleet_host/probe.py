"""HTTP to an engine through its Unix socket: one real completion, and how many requests run.

/health is no proof: it stays 200 while inference is stuck and while draining (seen on vLLM 0.32).
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

# Gauges in every sampled version of vLLM, one sample an engine core (data parallel ranks).
LOAD = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.M)

# As many clients ask: with all of them vLLM runs every part of its sampler.
SAMPLED = {"temperature": 1.0, "top_p": 0.9, "top_k": 50}


class NotReadyError(Exception):
    """No answer yet: no socket, nobody listening, or an error that may pass (5xx)."""


class RejectedError(Exception):
    """An answer that waiting will not change, such as 404 for the model's name."""


@dataclass(frozen=True)
class Probe:
    """The request that proves an engine: a completion of a few tokens."""

    path: str
    model: str
    prompt: str
    max_tokens: int


def connected(path: str, timeout_seconds: float | None) -> socket.socket:
    """A connection to a Unix socket."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout_seconds)
    made.connect(path)
    return made


class UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket; the host name only fills the Host header."""

    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = connected(self._path, self.timeout)


def request(
    path: Path, method: str, target: str, body: Any = None, timeout_seconds: float = 10.0
) -> tuple[int, bytes]:
    """One request, (status, body). NotReadyError when there is no whole answer in time.

    timeout_seconds bounds each wait for bytes, not the whole.
    """
    connection = UnixConnection(path, timeout_seconds)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    data = json.dumps(body).encode() if body is not None else None
    try:
        connection.request(method, target, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (FileNotFoundError, ConnectionRefusedError) as error:
        # The socket is made at the end of loading; one of a dead engine refuses.
        raise NotReadyError(f"nothing listens on {path.name} yet") from error
    except (OSError, http.client.HTTPException) as error:
        raise NotReadyError(f"{method} {target}: {type(error).__name__}: {error}") from error
    finally:
        connection.close()


def completion(path: Path, probe: Probe, timeout_seconds: float) -> str:
    """The text of one real completion, never empty, after a sampled one has come too.
    NotReadyError, RejectedError.

    Greedy decoding, whose text can be judged, does not run the sampler: that compiles code of its
    own on its first use, and an engine that cannot (no C++ compiler, seen with vLLM 0.28 on CPUs)
    dies of the first client who does not ask for temperature 0.
    """
    _generated(path, probe, SAMPLED, timeout_seconds)
    text = _generated(path, probe, {"temperature": 0}, timeout_seconds)
    if not text.strip():
        raise NotReadyError(f"POST {probe.path} was answered with an empty text")
    return text


def _generated(path: Path, probe: Probe, how: dict[str, float], timeout_seconds: float) -> str:
    body = {
        "model": probe.model,
        "prompt": probe.prompt,
        "max_tokens": probe.max_tokens,
        **how,
        # vLLM's own: a model that would stop at once must still say something.
        "ignore_eos": True,
    }
    status, answer = request(path, "POST", probe.path, body, timeout_seconds)
    shown = answer[:500].decode("utf-8", "replace")
    if 400 <= status < 500 and status not in (408, 429):
        raise RejectedError(f"POST {probe.path} was answered {status}: {shown}")
    if status != 200:
        raise NotReadyError(f"POST {probe.path} was answered {status}: {shown}")
    try:
        choice = json.loads(answer)["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise RejectedError(
            f"POST {probe.path} did not answer with a completion: {shown}"
        ) from error
    return text if isinstance(text, str) else ""


def load(path: Path) -> float | None:
    """Requests that run or wait; None when the engine publishes no such metric.

    NotReadyError when it does not answer. `--disable-log-stats` removes every vllm: metric.
    """
    status, answer = request(path, "GET", "/metrics")
    if status != 200:
        raise NotReadyError(f"GET /metrics was answered {status}")
    samples = LOAD.findall(answer.decode("utf-8", "replace"))
    return sum(float(sample) for sample in samples) if samples else None
