"""When a gateway's certificate is issued anew, and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyinfra_deploy.planning.certificate import certificate_reason, parse_openssl_time
from tests.unit.planning import worlds

GOOD = {
    "sans": ["llm.example.com", "10.0.0.1"],
    "issuer": worlds.CA_SUBJECT,
    "not_after": "Nov 30 07:02:26 2027 GMT",
}
FILES = {"source": "files", "certificate": "/etc/ssl/a.pem", "key": "/etc/ssl/a.key"}


def reason(seen: Any, ca: str | None = worlds.CA_SUBJECT, **gateway: Any) -> str:
    settings = worlds.settings_with({"gateway": gateway})
    return certificate_reason(settings, seen, ca, worlds.NOW)


def ending_in(**after: float) -> dict[str, Any]:
    end = worlds.NOW + timedelta(**after)
    return {**GOOD, "not_after": f"{end:%b %d %H:%M:%S %Y} GMT"}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (GOOD, ""),
        (None, "there is none yet"),
        ({}, "there is none yet"),
        ({"error": "PEM lib"}, "the present one cannot be read (PEM lib)"),
        ({**GOOD, "sans": ["old.example.com"]}, "the present one is not for llm.example.com"),
        ({**GOOD, "sans": []}, "the present one is not for llm.example.com"),
        ({**GOOD, "issuer": "Other CA"}, "the present one is not from this inventory's CA"),
        (ending_in(days=30, seconds=1), ""),
        (ending_in(days=29, hours=23), "the present one ends on 2026-12-30"),
        (ending_in(days=-1), "the present one ends on 2026-11-29"),
    ],
)
def test_reasons(seen: Any, expected: str) -> None:
    assert reason(seen) == expected


def test_a_ca_that_is_yet_to_be_made_blames_no_certificate() -> None:
    assert reason({**GOOD, "issuer": "whoever"}, ca=None) == ""


@pytest.mark.parametrize("seen", [None, {"error": "x"}, {**GOOD, "sans": []}, ending_in(days=1)])
def test_an_operators_own_files_are_theirs_to_renew(seen: Any) -> None:
    assert reason(seen, tls=FILES) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Nov 30 07:02:26 2026 GMT", datetime(2026, 11, 30, 7, 2, 26, tzinfo=UTC)),
        # OpenSSL pads the day with a blank.
        ("Jan  1 00:00:00 2050 GMT", datetime(2050, 1, 1, tzinfo=UTC)),
    ],
)
def test_openssls_times(text: str, expected: datetime) -> None:
    assert parse_openssl_time(text) == expected


def test_a_time_of_another_shape_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="does not match"):
        parse_openssl_time("2026-11-30")
