"""A client of the host's own service, as `verify` uses it: its key, its requests, what they say."""

from __future__ import annotations

import copy
import time
from typing import Any

from . import fields, gateway_service, keys, layout
from .https_client import Client, Reply

PROMPT = "Count from 1 to 20, with commas."
RETRY_LIMIT_SECONDS = 15.0
# The gateway service looks at its key files every half second.
TAKEN_UP_SECONDS = 1.2


class Failed(Exception):
    """A check saw something else than it must. seen; next: what to look at."""

    def __init__(self, seen: str, look_at: str, detail: list[str] | None = None) -> None:
        super().__init__(seen)
        self.seen = seen
        self.look_at = look_at
        self.detail = detail or []


class Service:
    """What the checks share: where the service is, and the key."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.server_name = fields.text(request, "server_name")
        self.https_port = fields.whole(request, "https_port")
        self.http_port = fields.whole(request, "http_port")
        self.model = fields.text(request, "model")
        burst = request.get("burst")
        burst = dict(burst) if isinstance(burst, dict) else {}
        self.burst = fields.whole(burst, "requests", fields.whole(burst, "n", 0))
        # Without any the burst has to be refused in any case.
        self.burst_limits = _limits(burst.get("limits")) or [(0, 0)]
        vhost = request.get("vhost")
        self.vhost: dict[str, Any] | None = dict(vhost) if isinstance(vhost, dict) else None
        full = request.get("full")
        # What only mode full has; None in mode direct.
        self.full: dict[str, Any] | None = dict(full) if isinstance(full, dict) else None
        self.key = _own_key(full=self.full is not None)
        self.engine = fields.optional_text(request, "engine")
        self.client = Client(self.server_name, self.https_port, _authority(request))
        # A gateway in front of other hosts has what their engines serve now, perhaps more than one.
        in_front = self.full is not None and self.engine is None
        self.models = (gateway_service.served_models() if in_front else []) or [self.model]
        self.model = self.models[0]

    def for_model(self, model: str) -> Service:
        """The same service, asked for another model."""
        other = copy.copy(self)
        other.model = model
        return other

    def ask(
        self, method: str, path: str, body: Any = None, key: str | None = "", **more: Any
    ) -> Reply:
        """One request with the host's key (key=None: without one), waiting out one 429, or
        one 503 of mode full.

        The host's own burst a moment ago, of an earlier run, may still count against its key.
        """
        reply = self._once(method, path, body, key, **more)
        # In mode full an engine that was just started may be unheard of for a moment.
        if reply.status == 429 or (reply.status == 503 and self.full is not None):
            wait = reply.headers.get("retry-after", "1")
            time.sleep(min(float(wait) if wait.isdigit() else 1.0, RETRY_LIMIT_SECONDS))
            reply = self._once(method, path, body, key, **more)
        return reply

    def _once(self, method: str, path: str, body: Any, key: str | None, **more: Any) -> Reply:
        used = self.key if key == "" else key
        headers = {"Authorization": f"Bearer {used}"} if used else {}
        headers |= more.pop("headers", {})
        return self.client.request(method, path, body, headers, **more)


def _limits(given: object) -> list[tuple[int, int]]:
    return [(int(one[0]), int(one[1])) for one in given] if isinstance(given, list) else []


def _own_key(*, full: bool) -> str:
    if keys.verify_key({"full": full})["changed"]:
        time.sleep(TAKEN_UP_SECONDS)
    return keys.verify_key_path().read_text().strip()


def _authority(request: dict[str, Any]) -> str | None:
    """The CA to trust: the request's, else the one installed with the certificate, else those of
    the system (a certificate of the operator's own)."""
    given = fields.optional_text(request, "ca_pem")
    installed = layout.etc_root() / "llm" / "tls" / "ca.crt"
    if given is None and installed.is_file():
        return installed.read_text()
    return given


def expect(reply: Reply, statuses: tuple[int, ...], look_at: str) -> None:
    if reply.status not in statuses:
        wanted = " or ".join(str(status) for status in statuses)
        raise Failed(
            f"{reply.method} {reply.path} was answered {reply.status}, {wanted} was expected",
            where_to_look(reply.status, look_at),
            [reply.text()[:300]],
        )


def where_to_look(status: int, otherwise: str) -> str:
    known = {
        401: "The key was refused: journalctl -u llm-gateway, and is verify-key.json readable "
        "by it?",
        403: "The key was refused: journalctl -u llm-gateway.",
        429: "A limit was hit: gateway.rate_limit in the settings, and who else uses this address.",
        503: "The engine or the auth service is away, or the engine is being drained: "
        "ls /run/llm/drain, systemctl status 'llm-*', /var/log/nginx/llm-error.log.",
        504: "The engine does not answer: journalctl -u 'llm-engine@*'.",
    }
    return known.get(status, otherwise)


def chat(service: Service, tokens: int, stream: bool) -> dict[str, Any]:
    message = {"role": "user", "content": PROMPT}
    body = {"model": service.model, "messages": [message], "max_tokens": tokens, "temperature": 0}
    # ignore_eos is vLLM's own: a stream of two tokens would not show whether it streams.
    return {**body, "stream": True, "ignore_eos": True} if stream else body


def completion(service: Service, tokens: int, stream: bool) -> dict[str, Any]:
    body = {"model": service.model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0}
    return {**body, "stream": True, "ignore_eos": True} if stream else body
