"""gateway.mode on hosts: full by default, hand-overs that cut no stream, and direct and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts import host_state
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell
from tests.hosts.service import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts.service import Service
    from tests.hosts.standin_inventory import Checkout

BOTH = (DEBIAN12, DEBIAN13)
READY = "curl -s --unix-socket /run/llm-gateway/http.sock http://gateway/ready"
# Mode direct heeds none of the service's own settings, and none may stand there.
DIRECT: dict[str, Any] = {"mode": "direct", "admission": {}}

pytestmark = pytest.mark.usefixtures("steady")


def ready(host: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell(host, READY))
    return found


def streams(service: Service, number: int = 4) -> list[Stream]:
    """Some that are under way."""
    begun = [Stream(service, 60) for _ in range(number)]
    for stream in begun:
        stream.start()
    for stream in begun:
        while not stream.events and stream.is_alive():
            stream.join(0.05)
    return begun


def assert_whole(begun: list[Stream]) -> None:
    for stream in begun:
        stream.join()
    assert [stream.error for stream in begun if not stream.finished] == []


def test_mode_full_is_the_default_and_a_second_run_changes_nothing(checkout: Checkout) -> None:
    for host in BOTH:
        found = ready(host)
        assert found["ready"], found
        assert list(found["backends"]) == ["main"]
        assert shell(host, "systemctl is-enabled llm-gateway.socket").strip() == "enabled"
        answer = checkout.service(host).request("GET", "/v1/models")
        assert answer.status == 200
        assert answer.json()["data"][0]["owned_by"] == "organization"  # the service's own list
        mode = shell(host, "stat -c '%a %U %G' /srv/llm/gateway/config.json").split()
        assert mode == ["640", "root", "llm-gateway"]
        for path in ("/ready", "/metrics", "/auth"):
            assert checkout.service(host).request("GET", path).status == 404
    before = {host: ready(host)["pid"] for host in BOTH}
    assert checkout.deploy().done().unchanged
    assert {host: ready(host)["pid"] for host in BOTH} == before


def test_a_setting_of_the_service_is_taken_up_and_cuts_no_stream(checkout: Checkout) -> None:
    before = {host: ready(host)["pid"] for host in BOTH}
    begun = streams(checkout.service(DEBIAN12))
    checkout.write(gateway={"aliases": {}, "queue": {"max_waiting": 9}})
    ran = checkout.deploy().done()
    ran.said("its configuration differs")
    assert_whole(begun)
    # Not even a hand-over: the process is the same.
    assert {host: ready(host)["pid"] for host in BOTH} == before
    checkout.write()
    checkout.deploy().done()
    assert checkout.deploy().done().unchanged


def test_a_reload_cuts_no_stream_and_refuses_nobody(
    checkout: Checkout, say: Callable[[str], None]
) -> None:
    service = checkout.service(DEBIAN13)
    before = ready(DEBIAN13)["pid"]
    begun = streams(service)
    shell(DEBIAN13, "systemctl reload llm-gateway.service")
    statuses = []
    while ready(DEBIAN13)["pid"] == before:
        statuses.append(service.request("GET", "/v1/models").status)
    statuses += [service.request("GET", "/v1/models").status for _ in range(20)]
    assert set(statuses) == {200}
    say(f"{len(statuses)} requests while the service handed over, none refused")
    assert_whole(begun)


def test_a_restart_finishes_its_answers_and_lets_who_connects_wait(checkout: Checkout) -> None:
    service = checkout.service(DEBIAN12)
    begun = streams(service)
    shell(DEBIAN12, "systemctl restart --no-block llm-gateway.service")
    assert service.request("GET", "/v1/models").status == 200
    assert_whole(begun)


def test_from_full_to_direct_and_back(checkout: Checkout) -> None:
    service = checkout.service(DEBIAN12)
    begun = streams(service)
    checkout.write(gateway=DIRECT)
    ran = checkout.deploy().done()
    ran.said("it runs as full instead of direct")
    assert_whole(begun)
    for host in BOTH:
        assert checkout.service(host).answers()
        assert shell(host, "systemctl is-active llm-gateway.socket || true").strip() == "inactive"
        assert "auth_request" in shell(host, "cat /etc/nginx/conf.d/llm-gateway.conf")
    assert checkout.deploy().done().unchanged
    begun = streams(service)
    checkout.write()
    checkout.deploy().done().said("it runs as direct instead of full")
    assert_whole(begun)
    for host in BOTH:
        assert checkout.service(host).answers()
        assert ready(host)["ready"]
    assert checkout.deploy().done().unchanged


def test_the_units_are_hardened_in_both_modes(checkout: Checkout) -> None:
    for host in BOTH:
        figures = host_state.exposures(host)
        assert figures["llm-gateway.service"] <= 2.0
