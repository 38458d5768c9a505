"""Use the service as a client would: TLS, a key, an answer, a stream, and what must not pass.

Everything goes to 127.0.0.1 with the server's name in SNI and its certificate checked. The key is
the host's own (keys.py), and the burst comes from a loopback address of its own, so that no limit
that clients share is used up.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

from . import engine, events, verified, verify_full, verify_vhost
from .errors import HostError
from .https_client import Client, Reply, UnansweredError
from .verify_service import Failed, Service, chat, completion, expect

if TYPE_CHECKING:
    from collections.abc import Callable

BURST_ADDRESS = "127.7.7.7"
ANSWER_TOKENS = 16
STREAM_TOKENS = 48
# Fewer events than this say nothing about how they are spread.
MINIMUM_STREAM_EVENTS = 3
# How many events of a stream share one read at most, on average. A busy host makes Nginx pass on a
# few at once; a buffer passes on 4 KiB, which is 15 of them or more.
EVENTS_PER_READ = 4
# A busy host holds a quick stream up for a moment, and lets go of it at once. A buffer does so each
# time.
STREAM_TRIES = 3
# A key that is well-formed and that no inventory holds: 128 bits of nothing.
WRONG_KEY = "sk-hostself" + "A" * 43


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """`verify` {https_port, http_port, server_name, model, engine?, ca_pem?, burst: {requests,
    limits?}} -> {checks: [{name, ok, figures}], seconds}. HostError at the first check that fails.

    burst.requests: how many to send at most, more than the smaller burst limit; 0 leaves it out.
    burst.limits: [[per minute, burst]] of all that apply.
    vhost: {cors_origin, max_body_mb} (verify_vhost.py).
    full: {counts_tokens, max_body_bytes}, in gateway.mode full (verify_full.py).
    engine: whose release is noted as verified when every check has passed (verified.py).
    """
    service = Service(request)
    running = verified.what_runs(service.engine)
    began = time.monotonic()
    checks: list[tuple[str, Callable[[Service], dict[str, Any]]]] = [
        ("models", check_models),
        ("answer", check_answer),
        ("stream", check_stream),
        ("no key", lambda it: check_refused_key(it, None)),
        ("wrong key", lambda it: check_refused_key(it, WRONG_KEY)),
        ("unknown path", check_unknown_path),
        ("HTTP to HTTPS", check_redirect),
    ]
    if service.vhost is not None:
        checks += verify_vhost.checks(service)
    if service.full is not None:
        checks += verify_full.checks()
    if service.burst:
        checks.append(("burst", check_burst))  # last: afterwards the key's limit is used up
    done: list[dict[str, Any]] = []
    for name, check in checks:
        try:
            figures = check(service)
        except Failed as failure:
            raise _report(service, name, failure.seen, failure.look_at, failure.detail, done) from (
                failure
            )
        except UnansweredError as error:
            raise _report(service, name, str(error), error.look_at, [], done) from error
        done.append({"name": name, "ok": True, "figures": figures})
    seconds = round(time.monotonic() - began, 2)
    verified.keep(running)
    events.record("verified", checks=len(done), seconds=seconds)
    return {"checks": done, "seconds": seconds}


def _report(
    service: Service,
    name: str,
    seen: str,
    look_at: str,
    detail: list[str],
    done: list[dict[str, Any]],
) -> HostError:
    events.record("verification failed", check=name, seen=seen)
    passed = ", ".join(item["name"] for item in done) or "none"
    where = f"https://{service.server_name}:{service.https_port} on 127.0.0.1"
    return HostError(
        f"the service is not as a client needs it: check '{name}' failed",
        f"{where}: {seen}. Passed before it: {passed}.",
        look_at,
        detail,
    )


def check_models(service: Service) -> dict[str, Any]:
    """The list of models has the one that clients are told to ask for."""
    reply = service.ask("GET", "/v1/models")
    expect(reply, (200,), "See /var/log/nginx/llm-error.log and journalctl -u 'llm-engine@*'.")
    names = [str(item.get("id")) for item in reply.json().get("data", [])]
    missing = [model for model in service.models if model not in names]
    if missing:
        raise Failed(
            f"/v1/models lists {', '.join(names) or 'nothing'}, not {', '.join(missing)}",
            "Compare engine.served_model_name in the settings with what the engine runs.",
        )
    return {"models": names, "seconds": reply.seconds}


def _generate(service: Service, tokens: int, stream: bool, timeout: float) -> tuple[Reply, str]:
    """A chat answer; a completion where the model has no chat template (vLLM answers 400)."""
    path = "/v1/chat/completions"
    reply = service.ask("POST", path, chat(service, tokens, stream), timeout_seconds=timeout)
    if reply.status in (400, 404) and "template" in reply.text().lower():
        path = "/v1/completions"
        body = completion(service, tokens, stream)
        reply = service.ask("POST", path, body, timeout_seconds=timeout)
    expect(reply, (200,), "See journalctl -u 'llm-engine@*' for this request.")
    return reply, path


def check_answer(service: Service) -> dict[str, Any]:
    """One whole answer with a text in it, of each model."""
    first, *others = [_answer_of(service, model) for model in service.models]
    return first | ({"others": others} if others else {})


def _answer_of(service: Service, model: str) -> dict[str, Any]:
    if model != service.model:
        reply = service.ask("POST", "/v1/embeddings", {"model": model, "input": "1"})
        if reply.status == 200:  # a model that embeds has no text to give
            return {"model": model, "path": "/v1/embeddings", "seconds": reply.seconds}
        service = service.for_model(model)
    reply, path = _generate(service, ANSWER_TOKENS, stream=False, timeout=300.0)
    choice = (reply.json().get("choices") or [{}])[0]
    message = choice.get("message") or {}
    text = choice.get("text") or message.get("content") or message.get("reasoning_content")
    text = text or message.get("reasoning")
    if not text or not str(text).strip():
        raise Failed(
            f"{path} was answered without a text",
            "The engine runs, but says nothing: look at its log and at the model's files.",
            [reply.text()[:300]],
        )
    usage = reply.json().get("usage") or {}
    return {
        "path": path,
        "seconds": reply.seconds,
        "tokens": usage.get("completion_tokens"),
        "text": str(text)[:80],
    }


def check_stream(service: Service) -> dict[str, Any]:
    """Events arrive one after the other, not all at the end, which buffering would do."""
    for _ in range(STREAM_TRIES):
        reply, path = _generate(service, STREAM_TOKENS, stream=True, timeout=300.0)
        figures = _how_it_came(reply)
        if not _is_bunched(figures):
            return {"path": path, **figures}
    if service.engine and _is_bunched(_from_the_engine(service, path)):
        # A tiny model on a busy host has said all of it before its server sends the first event.
        return {"path": path, **figures, "bunched_by": "the engine"}
    raise Failed(
        f"the {figures['events']} events of the stream came in {figures['pieces']} piece(s), and "
        f"were bunched in {STREAM_TRIES} streams one after the other",
        "Something buffers: proxy_buffering in Nginx's configuration, or a proxy before it.",
        [json.dumps(figures)],
    )


def _is_bunched(figures: dict[str, Any]) -> bool:
    events, pieces = figures["events"], figures["pieces"]
    return bool(events < MINIMUM_STREAM_EVENTS or pieces < max(2, events / EVENTS_PER_READ))


def _from_the_engine(service: Service, path: str) -> dict[str, Any]:
    """How the same stream comes from the engine itself."""
    socket_path = str(engine.socket_path(str(service.engine)))
    client = Client(service.server_name, 0, None, tls=False, socket_path=socket_path)
    body = (chat if "chat" in path else completion)(service, STREAM_TOKENS, stream=True)
    return _how_it_came(client.request("POST", path, body, {}, 300.0))


def _how_it_came(reply: Reply) -> dict[str, Any]:
    """How the events of one stream came."""
    if not reply.headers.get("content-type", "").startswith("text/event-stream"):
        raise Failed(
            f"{reply.path} with stream answered {reply.headers.get('content-type')}",
            "Something between Nginx and the engine does not stream.",
        )
    events = [line for line in reply.lines if line.text.startswith("data:")]
    if not any(line.text.strip() == "data: [DONE]" for line in events):
        raise Failed(
            f"the stream of {reply.path} ended without [DONE], after {len(events)} events",
            "It was cut on the way: gateway.read_timeout_seconds, and the engine's log.",
        )
    pieces = len({line.read for line in events})
    gaps = [after.seconds - before.seconds for before, after in itertools.pairwise(events)]
    return {
        "events": len(events),
        "pieces": pieces,
        "first_event_seconds": round(events[0].seconds, 3),
        "last_event_seconds": round(events[-1].seconds, 3),
        "longest_gap_seconds": round(max(gaps, default=0.0), 3),
    }


def check_refused_key(service: Service, key: str | None) -> dict[str, Any]:
    """Without a good key nothing is answered, neither a list nor a generation."""
    for method, path, body in (
        ("GET", "/v1/models", None),
        ("POST", "/v1/chat/completions", chat(service, 1, stream=False)),
    ):
        reply = service.ask(method, path, body, key=key)
        if reply.status == 200:
            raise Failed(
                f"{method} {path} was answered 200 {'with a wrong' if key else 'without a'} key",
                "THE SERVICE IS OPEN. Take it off the network, then look at auth_request in "
                "Nginx's configuration ('nginx -T').",
            )
        expect(reply, (401,), "See /var/log/nginx/llm-error.log and journalctl -u llm-gateway.")
    return {"status": 401}


def check_unknown_path(service: Service) -> dict[str, Any]:
    """Only the listed paths exist: the engine's others (/metrics, /docs) must not be reached."""
    for path in ("/metrics", "/docs", "/v1/no-such-path", "/version"):
        reply = service.ask("GET", path)
        expect(reply, (404,), f"{path} of the engine can be reached: see 'nginx -T'.")
    return {"status": 404}


def check_redirect(service: Service) -> dict[str, Any]:
    """Plain HTTP only points to HTTPS."""
    plain = Client(service.server_name, service.http_port, None, tls=False)
    reply = plain.request("GET", "/v1/models", None, {})
    look_at = "See the server for gateway.http_port in 'nginx -T'."
    expect(reply, (301, 308), look_at)
    location = reply.headers.get("location", "")
    port = "" if service.https_port == 443 else f":{service.https_port}"
    if not location.startswith(f"https://{service.server_name}{port}/"):
        raise Failed(f"HTTP points to {location or 'nowhere'}", look_at)
    return {"status": reply.status, "location": location}


def check_burst(service: Service) -> dict[str, Any]:
    """Too many at once get 429 with Retry-After, from an address that no client has."""
    client = Client(
        service.server_name, service.https_port, service.client.authority, source=BURST_ADDRESS
    )
    headers = {"Authorization": f"Bearer {service.key}"}
    began = time.monotonic()
    with client.kept_open() as connection:
        let_through = 0
        for _ in range(service.burst):
            reply = client.request("GET", "/v1/models", None, headers, connection=connection)
            if reply.status == 429:
                break
            let_through += 1
        else:
            seconds = time.monotonic() - began
            if all(
                service.burst <= burst + 1 + per_minute * seconds / 60
                for per_minute, burst in service.burst_limits
            ):
                # Nothing of a limit is to be seen: it lets more through than one client can send.
                return {
                    "left_out": f"the limits allow all of {service.burst} requests in "
                    f"{seconds:.1f} s",
                    "let_through": let_through,
                }
            raise Failed(
                f"{service.burst} requests in {seconds:.1f} s were all let through",
                "Compare gateway.rate_limit in the settings with limit_req in 'nginx -T'.",
            )
    if not reply.headers.get("retry-after", "").isdigit():
        raise Failed(
            "429 came without Retry-After, so clients do not know when to come back",
            "See add_header Retry-After in 'nginx -T'.",
        )
    return {
        "let_through": let_through,
        "retry_after_seconds": int(reply.headers["retry-after"]),
        "seconds": round(time.monotonic() - began, 2),
    }
