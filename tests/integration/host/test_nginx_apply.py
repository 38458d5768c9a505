"""`nginx apply` with the real nginx, in a directory of its own and on ports of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import nginx, nginx_process, snapshot
from fleet_host.errors import HostError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin") is None,
    reason="needs the package nginx",
)

MAIN = """
worker_processes 1;
pid {root}/nginx.pid;
error_log {root}/log/nginx/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {root}/body;
    proxy_temp_path {root}/proxy;
    fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi;
    scgi_temp_path {root}/scgi;
    include {root}/etc/nginx/conf.d/*.conf;
    include {root}/etc/nginx/sites-enabled/*;
}}
"""
SITE = """
server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {root}/crt;
    ssl_certificate_key {root}/key;
    location = /health {{ return {status} "{word}"; }}
}}
"""
SYSTEMCTL = """
while :; do case $1 in --no-*) shift ;; *) break ;; esac; done
echo "$*" >> {root}/calls
pid=$(cat {root}/nginx.pid 2> /dev/null)
case $1 in
show)
    if [ -n "$pid" ] && kill -0 $pid 2> /dev/null; then echo ActiveState=active; else
        echo ActiveState=inactive; fi
    echo UnitFileState=$(cat {root}/enabled 2> /dev/null || echo enabled)
    echo MainPID=$pid ;;
enable) echo enabled > {root}/enabled ;;
start) nginx -c {root}/etc/nginx/nginx.conf -e {root}/log/nginx/error.log ;;
reload) kill -HUP $pid ;;
stop) [ -z "$pid" ] || kill -QUIT $pid ;;
esac
"""


class Site:
    def __init__(self, root: Path) -> None:
        self.root = root
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = int(server.getsockname()[1])
        self.path = str(root / "etc/nginx/conf.d/llm-gateway.conf")

    def text(self, word: str, status: int = 200, port: int | None = None) -> str:
        return SITE.format(root=self.root, port=port or self.port, status=status, word=word)

    def request(self, text: str, **more: Any) -> dict[str, Any]:
        probe = {"port": self.port, "server_name": "llm.example.com", "path": "/health"}
        return {"files": {self.path: text}, "remove": [], "probe": probe, **more}

    def calls(self) -> list[str]:
        path = self.root / "calls"
        lines = path.read_text().split("\n") if path.exists() else []
        return [line for line in lines if line and not line.startswith("show")]

    def answer(self) -> str:
        done = subprocess.run(
            ["curl", "-sk", f"https://127.0.0.1:{self.port}/health"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "9", "-keyout", place / "key", "-out", place / "crt", "-subj", "/CN=x"],
        check=True, capture_output=True,
    )  # fmt: skip
    return place


@pytest.fixture
def site(tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("key", "crt"):
        shutil.copy(certificate / name, tmp_path / name)
    for name in ("etc/nginx/conf.d", "etc/nginx/sites-enabled", "etc/nginx/sites-available",
                 "log/nginx", "srv/llm/state", "bin"):  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/nginx/nginx.conf").write_text(MAIN.format(root=tmp_path))
    program = tmp_path / "bin/systemctl"
    program.write_text("#!/bin/sh\n" + SYSTEMCTL.format(root=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}:/usr/sbin")
    monkeypatch.setenv("FLEET_ETC_ROOT", str(tmp_path / "etc"))
    monkeypatch.setenv("FLEET_LOG_ROOT", str(tmp_path / "log"))
    monkeypatch.setenv("FLEET_LLM_ROOT", str(tmp_path / "srv/llm"))
    monkeypatch.setattr(nginx_process, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(nginx_process, "LOAD_SECONDS", 0.8)
    monkeypatch.setattr(nginx_process, "POLL_SECONDS", 0.01)
    yield Site(tmp_path)
    pid = tmp_path / "nginx.pid"
    if pid.exists() and pid.read_text().strip():
        os.kill(int(pid.read_text()), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while pid.exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def refused(site: Site, text: str, **more: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        nginx.apply(site.request(text, **more))
    return caught.value


def test_it_starts_then_reloads_then_leaves_alone(site: Site) -> None:
    first = nginx.apply(site.request(site.text("one")))
    assert (first["changed"], first["started"], first["reloaded"]) == (True, True, False)
    assert site.answer() == "one"
    second = nginx.apply(site.request(site.text("two")))
    assert (second["changed"], second["started"], second["reloaded"]) == (True, False, True)
    assert site.answer() == "two"
    calls = site.calls()
    assert nginx.apply(site.request(site.text("two")))["changed"] is False
    assert site.calls() == calls
    assert json.loads((site.root / "srv/llm/state/nginx.json").read_text())["loaded"] == (
        nginx.digest_of({site.path: site.text("two")})
    )


def test_a_certificate_that_changed_on_disk_is_loaded_whoever_changed_it(site: Site) -> None:
    """A run that died after installing it, an operator's own file: no text of ours differs."""
    state = site.root / "srv/llm/state/nginx.json"

    def plan_sees() -> str | None:
        return snapshot.nginx_loaded(json.loads(state.read_text()))

    request = site.request(site.text("one"))
    nginx.apply(request)
    assert plan_sees() == nginx.digest_of({site.path: site.text("one")})
    with (site.root / "crt").open("a") as certificate:
        certificate.write("\n")
    assert plan_sees() == ""
    assert nginx.apply(request)["reloaded"] is True
    assert plan_sees() == nginx.digest_of({site.path: site.text("one")})
    assert nginx.apply(request)["changed"] is False
    # certbot's renewal has had it loaded itself.
    with (site.root / "crt").open("a") as certificate:
        certificate.write("\n")
    nginx.certificates_reloaded()
    assert plan_sees() != ""
    assert nginx.apply(request)["changed"] is False


def test_it_comes_back_at_each_boot(site: Site) -> None:
    """Somebody has disabled it: a converge says so and mends it, with or without another change."""
    switch = site.root / "enabled"
    switch.write_text("disabled\n")
    nginx.apply(site.request(site.text("one")))
    assert switch.read_text() == "enabled\n"
    switch.write_text("disabled\n")
    again = nginx.apply(site.request(site.text("one")))
    assert (again["changed"], again["started"], again["reloaded"]) == (True, False, False)
    assert switch.read_text() == "enabled\n"


def test_a_bad_file_is_never_written_and_the_line_is_shown(site: Site) -> None:
    nginx.apply(site.request(site.text("one")))
    calls = site.calls()
    bad = site.text("two").replace("ssl_certificate_key", "ssl_certificate_kee")
    error = refused(site, bad)
    assert f'unknown directive "ssl_certificate_kee" in {site.path}, line 5' in error.why
    assert any(line.startswith(">    5") and "kee" in line for line in error.detail)
    assert "llm-nginx-" not in " ".join([error.why, *error.detail])
    assert Path(site.path).read_text() == site.text("one")
    assert site.calls() == calls
    assert site.answer() == "one"


def test_somebody_else_s_broken_file_is_named_as_theirs(site: Site) -> None:
    other = site.root / "etc/nginx/sites-available/other"
    other.write_text("server {\n  nonsense;\n}\n")
    (site.root / "etc/nginx/sites-enabled/other").symlink_to(other)
    error = refused(site, site.text("one"))
    assert f"{site.root}/etc/nginx/sites-enabled/other, line 2" in error.why
    assert "not one of ours" in error.why
    assert not Path(site.path).exists()


def test_a_configuration_that_answers_wrongly_is_taken_back(site: Site) -> None:
    nginx.apply(site.request(site.text("one")))
    error = refused(site, site.text("two", status=500))
    assert "gave 500, 200 was expected" in error.why
    assert Path(site.path).read_text() == site.text("one")
    deadline = time.monotonic() + 5
    while site.answer() != "one":
        assert time.monotonic() < deadline
    assert not (site.root / "srv/llm/state/nginx-before.json").exists()
    assert nginx.apply(site.request(site.text("three")))["changed"] is True


def test_a_taken_port_is_told_although_reload_says_nothing(site: Site) -> None:
    nginx.apply(site.request(site.text("one")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        both = site.text("two") + site.text("x", port=port)
        error = refused(site, both)
        # Nginx tries again for two seconds (ngx_open_listening_sockets), and may get it in between.
        time.sleep(3)
    assert "bind()" in error.why
    assert f"127.0.0.1:{port}" in error.why
    assert Path(site.path).read_text() == site.text("one")
    assert site.answer() == "one"


def test_a_first_start_that_fails_leaves_nginx_as_it_was(site: Site) -> None:
    with socket.create_server(("127.0.0.1", site.port)):
        error = refused(site, site.text("one"))
    assert "did not start" in error.what
    assert "bind()" in error.why
    assert not Path(site.path).exists()


def test_a_removed_site_comes_back_when_the_change_fails(site: Site) -> None:
    stock = site.root / "etc/nginx/sites-enabled/default"
    (site.root / "etc/nginx/sites-available/default").write_text("# stock\n")
    stock.symlink_to("../sites-available/default")
    nginx.apply(site.request(site.text("one")))
    refused(site, site.text("two", status=500), remove=[str(stock)])
    assert str(stock.readlink()) == "../sites-available/default"
    result = nginx.apply(site.request(site.text("two"), remove=[str(stock)]))
    assert str(stock) in result["files"]
    assert not os.path.lexists(stock)


def test_a_reload_that_was_lost_is_made_up_for(site: Site) -> None:
    nginx.apply(site.request(site.text("one")))
    # As a power cut right after the files were written leaves it.
    before = {site.path: {"text": site.text("one")}}
    (site.root / "srv/llm/state/nginx-before.json").write_text(json.dumps(before))
    Path(site.path).write_text(site.text("two"))
    result = nginx.apply(site.request(site.text("two")))
    assert result["reloaded"] is True
    assert site.answer() == "two"


def test_a_new_certificate_is_loaded_on_request(site: Site) -> None:
    nginx.apply(site.request(site.text("one")))
    assert nginx.apply(site.request(site.text("one"), reload=True))["reloaded"] is True


def test_only_nginx_s_own_files_may_be_written(site: Site) -> None:
    request = site.request("x")
    for path in ("/etc/passwd", f"{site.root}/etc/nginx/../passwd"):
        with pytest.raises(SpecError):
            nginx.apply({**request, "files": {path: "x"}})
