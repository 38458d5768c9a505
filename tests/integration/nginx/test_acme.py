"""certbot between a host's program and a real Nginx; certbot and systemd are stand-ins."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import acme
from fleet_host.errors import HostError

from pyinfra_deploy.planning.nginx import NginxHost, render
from tests.fakes.gateway_settings import gateway_settings
from tests.integration.nginx.conftest import write_certificate
from tests.integration.nginx.running import (
    free_port,
    has_ipv6,
    nginx_build,
    nginx_command,
    on_loopback,
    wait_until,
    write_configuration,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "llm.example.com"
CERTBOT = Path(__file__).with_name("certbot_standin.py")
ASKED = {
    "name": NAME,
    "directory": "https://acme.example.com/directory",
    "email": "ops@example.com",
    "ca_file": "/etc/ssl/certs/corporate-ca.pem",
}


class World:
    """A host's directories, Nginx with the vhost for ACME, and the stand-ins in PATH."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.port = free_port()
        write_certificate(place)
        for name in ("ETC", "RUN", "LOG", "STATE"):
            (place / name.lower()).mkdir()
            monkeypatch.setenv(f"FLEET_{name}_ROOT", str(place / name.lower()))
        monkeypatch.setenv("FLEET_LLM_ROOT", str(place / "llm"))
        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        (place / "llm/state").mkdir(parents=True)
        (place / "bin").mkdir()
        self.program("certbot", f'exec {sys.executable} {CERTBOT} {place} {self.port} "$@"')
        self.program("systemctl", f'echo "$@" >> {place}/systemctl')
        self.program("nginx", f"test ! -e {place}/bad || {{ echo 'nginx: bad' >&2; exit 1; }}")
        monkeypatch.setenv("PATH", f"{place}/bin:{os.environ['PATH']}")

    def program(self, name: str, text: str) -> None:
        path = self.place / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def calls(self) -> list[tuple[list[str], str | None]]:
        lines = (self.place / "calls").read_text().splitlines()
        return [(words, bundle) for words, bundle in map(json.loads, lines)]

    @property
    def systemctl(self) -> str:
        return (self.place / "systemctl").read_text()

    def configuration(self, build: tuple[str, str | None]) -> str:
        host = NginxHost(
            nginx_version=build[0],
            openssl_version=build[1],
            engine_socket="/run/none.sock",
            certificate=str(self.place / "tls.crt"),
            certificate_key=str(self.place / "tls.key"),
            drain_flag="/run/none",
            max_body_mb=1,
            access_log=str(self.place / "access.log"),
            error_log=str(self.place / "llm-error.log"),
            ipv6=has_ipv6(),
            acme_webroot=str(acme.state_root() / "webroot"),
        )
        settings = gateway_settings(mode="full", http_port=self.port, https_port=free_port())
        (text,) = render(settings, host).files.values()
        return on_loopback(text)

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            return self.get("/")[0] == 308
        except OSError:
            return False


@pytest.fixture
def world(nginx: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    import tempfile

    build = nginx_build()
    # Not below pytest's own directory, which Nginx's workers may not enter.
    place = Path(tempfile.mkdtemp(prefix="acme"))
    place.chmod(0o755)
    made = World(place, monkeypatch)
    write_configuration(place, made.configuration(build))
    running = subprocess.Popen([nginx, *nginx_command(place)[1:]])
    wait_until(made.answers, "nginx")
    yield made
    running.terminate()
    running.wait(10)
    shutil.rmtree(place)


def obtain(**change: Any) -> dict[str, Any]:
    return acme.obtain(ASKED | change)


def test_a_certificate_is_obtained_through_nginx(world: World) -> None:
    answer = obtain()
    assert answer["certificate"]["sans"] == [NAME]
    ((words, bundle),) = world.calls()
    assert words[0] == "certonly"
    assert {"--agree-tos", "--non-interactive", "--webroot", "--keep-until-expiring"} <= set(words)
    assert words[words.index("--domains") + 1] == NAME
    assert words[words.index("--server") + 1] == ASKED["directory"]
    assert words[words.index("--email") + 1] == "ops@example.com"
    assert words[words.index("--config-dir") + 1] == str(world.place / "etc/llm/acme")
    assert bundle == ASKED["ca_file"]
    assert json.loads((world.place / "llm/state/acme.json").read_text()) == ASKED
    assert "enable --now --quiet llm-acme.timer" in world.systemctl
    assert not acme.renewed_flag().exists()


def test_another_authority_is_asked_anew(world: World) -> None:
    obtain()
    obtain()
    obtain(directory="https://other.example.com/", email=None, ca_file=None)
    first, second, third = (words for words, _ in world.calls())
    assert "--force-renewal" not in first + second
    assert "--force-renewal" in third
    assert "--register-unsafely-without-email" in third
    assert world.calls()[2][1] is None


def test_a_refusal_is_told_in_the_authoritys_words(world: World) -> None:
    (world.place / "fail").touch()
    with pytest.raises(HostError) as caught:
        obtain()
    assert "Invalid response" in caught.value.why
    assert "port 80" in caught.value.fix
    assert not (world.place / "llm/state/acme.json").exists()


def test_a_renewal_is_loaded_and_only_then(world: World) -> None:
    obtain()
    assert acme.renew({}) == {"renewed": False}
    assert acme.deployed({}) == {"reloaded": False}
    assert "reload" not in world.systemctl
    (world.place / "due").touch()
    assert acme.renew({}) == {"renewed": True}
    assert world.calls()[-1][1] == ASKED["ca_file"]
    (world.place / "bad").touch()
    with pytest.raises(HostError, match="cannot load the renewed certificate"):
        acme.deployed({})
    assert acme.renewed_flag().exists(), "what failed is to be tried again"
    (world.place / "bad").unlink()
    assert acme.deployed({}) == {"reloaded": True}
    assert "reload nginx.service" in world.systemctl
    assert not acme.renewed_flag().exists()


def test_renewals_end(world: World) -> None:
    obtain()
    acme.stop({})
    assert "disable --now --quiet llm-acme.timer" in world.systemctl
    assert not (world.place / "llm/state/acme.json").exists()


def test_nothing_else_is_served_from_files(world: World) -> None:
    webroot = acme.state_root() / "webroot"
    challenge = webroot / ".well-known/acme-challenge"
    challenge.mkdir(parents=True)
    (webroot / "outside").write_text("a secret")
    (challenge / "good").write_text("answer")
    (challenge / "link").symlink_to(webroot / "outside")
    assert world.get("/.well-known/acme-challenge/good") == (200, b"answer")
    for path in (
        "/outside", "/.well-known/outside", "/.well-known/acme-challenge/",
        "/.well-known/acme-challenge/link", "/.well-known/acme-challenge/../../outside",
        "/.well-known/acme-challenge/%2e%2e/%2e%2e/outside", "/.well-known/acme-challenge/none",
    ):  # fmt: skip
        status, content = world.get(path)
        assert status in (308, 403, 404), path
        assert b"a secret" not in content, path
