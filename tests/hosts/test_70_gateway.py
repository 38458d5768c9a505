"""Nginx among other people's things, and keys that come and go."""

from __future__ import annotations

import json
import re
import stat
import time
from typing import TYPE_CHECKING

import pytest

from lab import hosts
from tests.hosts import host_state, pyinfra_run
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell
from tests.hosts.pyinfra_run import BIN
from tests.hosts.standin_inventory import NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import CompletedProcess

    from tests.hosts.service import Service
    from tests.hosts.standin_inventory import Checkout

BOTH = (DEBIAN12, DEBIAN13)
ORIGIN = "https://console.example.com"

pytestmark = pytest.mark.usefixtures("steady")


@pytest.mark.parametrize("port", [443, 80])
def test_a_port_that_is_taken_is_refused_before_any_change(checkout: Checkout, port: int) -> None:
    shell(
        DEBIAN13,
        "systemctl stop nginx && "
        f"systemd-run -q --unit=squatter-{port} python3 -m http.server {port} && sleep 0.5",
    )
    before = host_state.tree(DEBIAN13)
    ran = checkout.deploy()
    assert ran.code == 1
    assert ran.failed == {DEBIAN13}
    assert ran.finished(DEBIAN12)
    ran.said(f"port {port} is taken by squatter-{port}.service", "so Nginx could not listen there")
    assert host_state.differences(before, host_state.tree(DEBIAN13)) == []
    shell(DEBIAN13, f"systemctl stop squatter-{port}")
    checkout.deploy().done()
    assert checkout.service(DEBIAN13).answers()


def assert_origins_and_size_are_limited(service: Service) -> None:
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    preflight = service.request("OPTIONS", "/v1/chat/completions", key=None, headers=asked)
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    other = service.request("GET", "/v1/models", headers={"Origin": "https://other.example.com"})
    assert other.status == 200
    assert "access-control-allow-origin" not in other.headers
    # Refused by its announced length, before a byte of it.
    too_large = {"Content-Length": str((17 << 20) + 1)}
    assert service.request("POST", "/v1/chat/completions", headers=too_large).status == 413


def test_somebody_elses_bad_vhost_costs_nothing(checkout: Checkout) -> None:
    """The new configuration is refused with the line that is wrong; the old one goes on."""
    shell(DEBIAN12, "printf 'server {\\n  bogus_directive on;\\n}\\n' > /etc/nginx/conf.d/zz.conf")
    before = shell(DEBIAN12, "cat /etc/nginx/conf.d/llm-gateway.conf")
    checkout.write(gateway={"max_body_mb": 17, "cors_origins": [ORIGIN]})
    ran = checkout.deploy()
    assert ran.code == 1
    assert ran.failed == {DEBIAN12}
    assert ran.finished(DEBIAN13)
    ran.said(
        "Nginx refuses the new configuration; the old one runs on",
        'unknown directive "bogus_directive" in /etc/nginx/conf.d/zz.conf, line 2',
        "not one of ours",
    )
    assert shell(DEBIAN12, "cat /etc/nginx/conf.d/llm-gateway.conf") == before
    assert checkout.service(DEBIAN12).answers()
    shell(DEBIAN12, "rm /etc/nginx/conf.d/zz.conf")
    checkout.deploy().done()
    assert "17m" in shell(DEBIAN12, "cat /etc/nginx/conf.d/llm-gateway.conf")
    for host in BOTH:  # Nginx 1.22 and 1.26; more of it in tests/integration/nginx
        assert_origins_and_size_are_limited(checkout.service(host))
    assert re.search(rf"\[{DEBIAN13}\] +verify: burst: .*let_through", ran.log)
    checkout.write()
    checkout.deploy().done()


def fleet(checkout: Checkout, *words: str) -> CompletedProcess[str]:
    return pyinfra_run.run([str(BIN / "fleet"), *words], root=checkout.root)


def test_keys_come_and_go_within_seconds(checkout: Checkout, say: Callable[[str], None]) -> None:
    services = {host: checkout.service(host) for host in BOTH}

    def status(host: str, key: str) -> int:
        return services[host].request("GET", "/v1/models", key=key).status

    out = checkout.root / "chat.key"
    began = time.monotonic()
    made = fleet(checkout, "keys", "create", NAME, "chat", "--out", str(out))
    assert made.returncode == 0, made.stderr
    key = out.read_text().strip()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert key not in made.stdout + made.stderr
    assert {host: status(host, key) for host in BOTH} == dict.fromkeys(BOTH, 200)
    say(f"a new key was in force on two hosts after {time.monotonic() - began:.1f} s")
    listed = fleet(checkout, "keys", "list", NAME)
    assert " chat" in listed.stdout
    assert key not in listed.stdout

    with_key = (checkout.inventory / "keys.json").read_text()
    hosts.cut(DEBIAN13)
    try:
        revoked = fleet(checkout, "keys", "revoke", NAME, "chat")
    finally:
        hosts.heal(DEBIAN13)
    assert revoked.returncode == 1
    assert f"NOT in force on: {DEBIAN13}" in revoked.stderr
    assert f"In force on: {DEBIAN12}" in revoked.stderr
    assert "THE KEY STILL WORKS THERE" in revoked.stderr
    assert (status(DEBIAN12, key), status(DEBIAN13, key)) == (401, 200)
    pushed = fleet(checkout, "keys", "push", NAME)
    assert pushed.returncode == 0, pushed.stderr
    assert {host: status(host, key) for host in BOTH} == dict.fromkeys(BOTH, 401)

    # An old checkout must not bring a revoked key back.
    (checkout.inventory / "keys.json").write_text(with_key)
    older = fleet(checkout, "keys", "push", NAME)
    assert older.returncode == 1
    assert "older" in older.stderr or "newer" in older.stderr, older.stderr
    assert {host: status(host, key) for host in BOTH} == dict.fromkeys(BOTH, 401)
    serial = json.loads(with_key)["serial"] + 1
    without = {**json.loads(with_key), "serial": serial}
    without["keys"] = [entry for entry in without["keys"] if entry["name"] != "chat"]
    (checkout.inventory / "keys.json").write_text(json.dumps(without))
    out.unlink()
    assert checkout.deploy().done().unchanged
