"""A gateway on a host of its own, before the engine of another: the door, drains, a reboot."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from lab.plan import address_of
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, wait_for
from tests.hosts.service import UNREACHABLE, Stream
from tests.hosts.standin_inventory import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.service import Service
    from tests.hosts.standin_inventory import Checkout

ENGINE, GATEWAY = DEBIAN12, DEBIAN13
DOOR_PORT = 8443
MEMBERS: dict[str, tuple[str, ...]] = {"gpu": (ENGINE,), "gateway": (GATEWAY,)}
READY = "curl -s --unix-socket /run/llm-gateway/http.sock http://gateway/ready"


@pytest.fixture(scope="module", autouse=True)
def two_tiers(steady: Checkout) -> Iterator[Checkout]:
    """Until now both hosts were both. A run later nothing is left to change."""
    steady.write(members=MEMBERS)
    steady.deploy().done()
    yield steady
    # The next file's `steady` deploys them as they were.
    steady.write()


@pytest.fixture(scope="module")
def service(two_tiers: Checkout) -> Service:
    return replace(two_tiers.service(GATEWAY), model=MODELS[ENGINE])


def backend() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell(GATEWAY, READY))["backends"]
    assert list(found) == [f"{ENGINE}-main"]
    one: dict[str, Any] = found[f"{ENGINE}-main"]
    return one


def listeners(host: str) -> dict[int, str]:
    """Port -> program, of all that other hosts can reach."""
    found = {}
    for line in shell(host, "ss -Hltnp").splitlines():
        address, _, port = line.split()[3].rpartition(":")
        if address.strip("[]").split("%")[0] in ("::1", "::ffff:127.0.0.1"):
            continue
        if not address.startswith("127."):
            found[int(port)] = line.split('(("')[1].split('"')[0]
    return found


def test_a_second_run_changes_nothing(two_tiers: Checkout) -> None:
    assert two_tiers.deploy().done().unchanged


def test_an_engines_host_has_two_ports_open(service: Service) -> None:
    found = listeners(ENGINE)
    assert set(found) == {22, DOOR_PORT}
    assert found[DOOR_PORT] == "nginx"
    assert found[22] in ("sshd", "systemd")
    assert "nginx" in {program for port, program in listeners(GATEWAY).items() if port == 443}


def test_answers_and_streams_come_through(service: Service) -> None:
    assert service.answers()
    stream = Stream(service, 40)
    stream.start()
    stream.join()
    assert stream.finished, stream.error
    # Spread over the 0.8 s in which the engine makes it.
    assert stream.events[-1] - stream.events[0] > 0.4


@pytest.mark.parametrize("path", ["/v1/models", "/ready", "/metrics", "/nowhere"])
def test_nobody_comes_in_without_a_gateways_certificate(service: Service, path: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        address_of(ENGINE), DOOR_PORT, timeout=10, context=context
    )
    connection.request("GET", path, headers={"Authorization": f"Bearer {service.key}"})
    answer = connection.getresponse()
    assert answer.status == 403
    assert json.loads(answer.read())["error"]["code"] == "no_gateway"
    connection.close()


def test_an_engine_that_is_killed_is_503_until_it_is_back(
    service: Service, say: Callable[[str], None]
) -> None:
    shell(ENGINE, "systemctl kill -s KILL llm-engine@main.service")
    began, refused = time.monotonic(), 0
    while not refused or not service.answers():
        answer = service.request("POST", "/v1/chat/completions", service.chat_body(2))
        assert answer.status in (200, 503), answer
        if answer.status == 503:
            refused += 1
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] in ("engine_unavailable", "engine_lost")
        assert time.monotonic() - began < 90
        time.sleep(0.3)
    say(f"{refused} answers 503, back after {time.monotonic() - began:.1f} s")
    wait_for(lambda: bool(backend()["breaker"] == "closed"), 30)


def test_an_engine_that_drains_gets_nothing_new_and_keeps_its_stream(service: Service) -> None:
    stream = Stream(service, 150)
    stream.start()
    while not stream.events and stream.is_alive():
        stream.join(0.05)
    shell(ENGINE, "mkdir -p /run/llm/drain && touch /run/llm/drain/main")
    try:
        wait_for(lambda: bool(backend()["draining"]), 10)
        answer = service.request("POST", "/v1/chat/completions", service.chat_body(2))
        assert (answer.status, answer.json()["error"]["code"]) == (503, "engine_draining")
        stream.join()
        assert stream.finished, stream.error
    finally:
        shell(ENGINE, "rm -f /run/llm/drain/main")
    wait_for(service.answers, 10)


def test_a_reboot_of_the_gateways_host_drains_it_first(
    service: Service, say: Callable[[str], None]
) -> None:
    stream = Stream(service, 400)
    stream.start()
    while not stream.events and stream.is_alive():
        stream.join(0.05)
    hosts.run(GATEWAY, ["sudo", "-n", "systemctl", "reboot"])
    seen = set()
    while stream.is_alive():
        answer = service.request("GET", "/health")
        seen.add(answer.status)
        stream.join(0.2)
    assert stream.finished, stream.error
    assert 503 in seen, seen
    # Nginx goes after the service, and the host after both.
    wait_for(lambda: service.request("GET", "/health").status == UNREACHABLE, 60)
    say(f"it served again {service.wait(120):.0f} s after it was gone")
