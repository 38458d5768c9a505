"""Whether a gateway's certificate has to be issued anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.settings.schema import Settings

RENEW_BEFORE = timedelta(days=30)


def parse_openssl_time(text: str) -> datetime:
    """`Nov 30 07:02:26 2026 GMT`, as OpenSSL and Python's ssl module print it, in UTC."""
    return datetime.strptime(text, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)


def certificate_reason(
    settings: Settings,
    seen: Mapping[str, Any] | None,
    ca_subject: str | None,
    now: datetime,
) -> str:
    """Why a new certificate is needed, empty when the one on the host is good.

    Only for certificates of the inventory's own CA; an operator's own files are theirs to renew.
    """
    assert settings.gateway is not None
    if settings.gateway.tls.source != "own_ca":
        return ""
    return own_certificate_reason([settings.gateway.server_name], seen, ca_subject, now)


def own_certificate_reason(
    names: Sequence[str], seen: Mapping[str, Any] | None, ca_subject: str | None, now: datetime
) -> str:
    """Why a certificate of the inventory's CA for these names is needed, empty when it is there."""
    if not seen:
        return "there is none yet"
    if "error" in seen:
        return f"the present one cannot be read ({seen['error']})"
    missing = [name for name in names if name not in seen.get("sans", [])]
    if missing:
        return f"the present one is not for {', '.join(missing)}"
    if ca_subject is not None and seen.get("issuer") != ca_subject:
        return "the present one is not from this inventory's CA"
    not_after = parse_openssl_time(str(seen["not_after"]))
    if not_after - now < RENEW_BEFORE:
        return f"the present one ends on {not_after:%Y-%m-%d}"
    return ""
