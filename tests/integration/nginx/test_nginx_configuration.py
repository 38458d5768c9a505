"""The rendered file before any request: nginx -t accepts it, and says so when it cannot."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.integration.nginx.running import Gateway, nginx_command, write_configuration

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def stopped(prefix: Path) -> Gateway:
    return Gateway(prefix, {})


def check(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        nginx_command(directory, "-t"), capture_output=True, text=True, check=False
    )


def test_accepted_without_a_warning(prefix: Path, stopped: Gateway) -> None:
    write_configuration(prefix, stopped.configuration())
    result = check(prefix)
    assert result.returncode == 0, result.stderr
    assert "[warn]" not in result.stderr


def test_accepted_with_many_long_origins(prefix: Path) -> None:
    origins = [f"https://{'very-' * 12}long-{n}.example.com:8443" for n in range(200)]
    gateway = Gateway(prefix, {}, cors_origins=origins, server_name="a" * 60 + ".example.com")
    write_configuration(prefix, gateway.configuration())
    result = check(prefix)
    assert result.returncode == 0, result.stderr


def test_a_second_default_server_is_named(prefix: Path, stopped: Gateway) -> None:
    other = f"server {{ listen 127.0.0.1:{stopped.http_port} default_server; }}"
    write_configuration(prefix, stopped.configuration(), extra=other)
    result = check(prefix)
    assert result.returncode != 0
    assert f"a duplicate default server for 127.0.0.1:{stopped.http_port}" in result.stderr
    assert "other.conf:1" in result.stderr


def test_the_check_fails_without_a_certificate(prefix: Path, stopped: Gateway) -> None:
    text = stopped.configuration().replace("tls.crt", "absent.crt")
    write_configuration(prefix, text)
    result = check(prefix)
    assert result.returncode != 0
    assert "absent.crt" in result.stderr
