"""`verify`, against a small TLS service that can misbehave."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import gateway_service, probe, snapshot, verify, verify_full

from pyinfra_deploy.planning.verification import unverified_reason
from tests.integration.host import https_service
from tests.integration.host.https_service import Service, failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

_own_group, authority = https_service._own_group, https_service.authority
installed = https_service.installed


@pytest.fixture
def service(host: FakeHost, installed: Path) -> Iterator[Service]:
    shutil.copytree(installed, host.root / "etc/llm/tls")
    running = Service(host)
    yield running
    for server in (running.https, running.http):
        server.shutdown()
        server.server_close()


def test_a_good_service_passes_every_check(service: Service) -> None:
    checks = {item["name"]: item for item in verify.verify(service.request())["checks"]}
    assert list(checks) == [
        "models", "answer", "stream", "no key", "wrong key", "unknown path", "HTTP to HTTPS",
        "burst",
    ]  # fmt: skip
    assert all(item["ok"] for item in checks.values())
    stream = checks["stream"]["figures"]
    assert (stream["events"], stream["pieces"]) == (6, 6)
    assert stream["last_event_seconds"] > stream["first_event_seconds"]
    assert checks["burst"]["figures"]["let_through"] == service.limit
    assert checks["answer"]["figures"]["path"] == "/v1/chat/completions"


def test_what_has_passed_is_noted_as_the_plan_compares_it(service: Service, host: FakeHost) -> None:
    facts = {
        host.root / "run/llm-engine-main/started.json": {"release": "r1", "binding": "b"},
        host.root / "run/llm-gateway/started.json": {"environment": "gateway-1", "shape": "full"},
        host.llm_root / "gateway/config.json": {"schema": 1},
        host.llm_root / "state/nginx.json": {"files": {}, "loaded": "n", "certificates": {}},
    }
    for path, document in facts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
    seen: dict[str, Any] = {
        "engines": {"main": {"started": {"release": "r1", "binding": "b"}}},
        "gateway": {
            "started": {"environment": "gateway-1", "shape": "full"},
            "configuration": hashlib.sha256(b'{"schema": 1}').hexdigest(),
            "nginx_loaded": "n",
            "certificate": snapshot.certificate_state(str(host.root / "etc/llm/tls/server.crt")),
        },
    }

    def plan_says() -> str:
        state = snapshot.state_section({"llm_root": str(host.llm_root)})
        return unverified_reason({**seen, "state": state}, "main")

    service.fault = "silent"
    failure(service, engine="main")
    assert plan_says() == "what runs has not been verified yet"
    service.fault = ""
    verify.verify(service.request(engine="main"))
    assert plan_says() == ""
    seen["gateway"]["nginx_loaded"] = "m"
    assert "the gateway has not been verified" in plan_says()
    seen["engines"]["main"]["started"]["release"] = "r2"
    assert plan_says() == "release r2 has not been verified since it was started"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("open", "'no key' failed"),
        ("metrics", "'unknown path' failed"),
        ("redirect", "'HTTP to HTTPS' failed"),
        ("silent", "'answer' failed"),
        ("cut", "'stream' failed"),
        ("buffered", "'stream' failed"),
        ("no limit", "'burst' failed"),
        ("no retry-after", "'burst' failed"),
    ],
)
def test_each_fault_is_found_by_its_check(service: Service, fault: str, said: str) -> None:
    service.fault = fault
    error = failure(service)
    assert said in error.what
    assert error.fix


def test_a_stream_that_a_busy_host_held_up_is_no_buffering(service: Service) -> None:
    service.fault = "held up once"
    checks = {item["name"]: item["figures"] for item in verify.verify(service.request())["checks"]}
    assert checks["stream"]["pieces"] == 6


def engine_that_streams(host: FakeHost, pieces: list[bytes]) -> threading.Thread:
    """One answer on the socket of engine main, sent in these pieces."""
    path = host.root / "run/llm-engine-main/http.sock"
    path.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def answer() -> None:
        with server, server.accept()[0] as peer:
            # All of it: a socket that is closed with something unread resets the connection.
            with peer.makefile("rb") as asked:
                head = b"".join(iter(asked.readline, b"\r\n")).lower()
                asked.read(int(head.split(b"content-length:")[1].split()[0]))
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            for piece in pieces:
                time.sleep(0.05)
                peer.sendall(piece)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


EVENTS = [b"data: {}\n\n"] * 5 + [b"data: [DONE]\n\n"]


def test_an_engine_that_says_all_at_once_is_no_buffering(service: Service, host: FakeHost) -> None:
    """A random model of a few MB on a busy host: 50 events within a millisecond, seen."""
    service.fault = "buffered"
    engine = engine_that_streams(host, [b"".join(EVENTS)])
    done = verify.verify(service.request(engine="main"))["checks"]
    engine.join()
    checks = {item["name"]: item["figures"] for item in done}
    assert checks["stream"]["bunched_by"] == "the engine"


def test_what_the_engine_sends_piece_by_piece_must_not_be_bunched(
    service: Service, host: FakeHost
) -> None:
    service.fault = "buffered"
    engine = engine_that_streams(host, EVENTS)
    assert "'stream' failed" in failure(service, engine="main").what
    engine.join()


def test_an_open_service_is_said_loudly(service: Service) -> None:
    service.fault = "open"
    assert "THE SERVICE IS OPEN" in failure(service).fix


def test_a_model_without_a_chat_template_is_asked_for_completions(service: Service) -> None:
    service.fault = "no template"
    checks = {item["name"]: item["figures"] for item in verify.verify(service.request())["checks"]}
    assert checks["answer"]["path"] == "/v1/completions"
    assert checks["stream"]["path"] == "/v1/completions"


def test_a_certificate_for_another_name_is_not_accepted(service: Service) -> None:
    error = failure(service, server_name="other.example.com")
    assert "the certificate is not accepted" in error.why


def test_a_certificate_of_an_unknown_authority_is_not_accepted(
    service: Service, host: FakeHost
) -> None:
    (host.root / "etc/llm/tls/ca.crt").unlink()
    assert "the certificate is not accepted" in failure(service).why


def test_another_model_is_told(service: Service) -> None:
    assert "lists m, not other" in failure(service, model="other").why


def test_nobody_listening_is_told(service: Service) -> None:
    error = failure(service, https_port=1)
    assert "nobody listens on 127.0.0.1:1" in error.why
    assert "nginx" in error.fix


def test_a_gateway_in_front_of_others_answers_with_each_of_its_models(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_service, "served_models", lambda: ["m", "n", "vectors"])
    monkeypatch.setattr(verify_full, "checks", list)
    service.models, service.talk = ["m", "n", "vectors"], {"m", "n"}
    done = verify.verify(service.request(model="of the settings", full={}))["checks"]
    answer = {item["name"]: item["figures"] for item in done}["answer"]
    assert [one["path"] for one in (answer, *answer["others"])] == [
        "/v1/chat/completions", "/v1/chat/completions", "/v1/embeddings",
    ]  # fmt: skip
    service.models = ["m", "vectors"]
    assert "lists m, vectors, not n" in failure(service, full={}).why
    service.models, service.talk = ["m", "n", "vectors"], {"m", "n"}
    service.mute = {"n"}
    error = failure(service, full={})
    assert "check 'answer' failed" in error.what


def test_what_a_gateway_serves_is_asked_of_itself(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backend(model: str, draining: bool = False) -> dict[str, Any]:
        return {"models": [model], "draining": draining}

    backends = {"a": backend("m"), "b": backend("n", True), "c": backend("m"), "d": backend("o")}
    document = json.dumps({"backends": backends}).encode()
    monkeypatch.setattr(probe, "request", lambda *_, **__: (503, document))
    assert gateway_service.served_models() == ["m", "o"]
    assert gateway_service.answers()
