"""Whether a gateway's certificate has to be issued anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.settings.schema import Settings

RENEW_BEFORE = timedelta(days=30)
# certbot renews a third of a certificate's life before its end; of one that is left with less than
# this the renewals have failed for weeks.
ACME_LATE = timedelta(days=14)


def parse_openssl_time(text: str) -> datetime:
    """`Nov 30 07:02:26 2026 GMT`, as OpenSSL and Python's ssl module print it, in UTC."""
    return datetime.strptime(text, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)


def certificate_reason(
    settings: Settings,
    seen: Mapping[str, Any] | None,
    ca_subject: str | None,
    now: datetime,
    *,
    acme_certificate: bool = False,
) -> str:
    """Why a new certificate is needed, empty when the one on the host is good.

    Only for certificates of the inventory's own CA; an operator's own files are theirs to renew.
    With ACME one of ours is served until the first of the authority's is there.
    """
    assert settings.gateway is not None
    source = settings.gateway.tls.source
    if source == "files" or (source == "acme" and acme_certificate):
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


def acme_reason(
    settings: Settings, gateway: Mapping[str, Any], timer: Mapping[str, Any], now: datetime
) -> str:
    """Why certbot has to be asked for a certificate; "stop" where it renews one that is not wanted
    any more; empty when all is well. gateway: the snapshot's section. timer: llm-acme.timer's."""
    assert settings.gateway is not None
    tls, record = settings.gateway.tls, gateway.get("acme")
    if tls.source != "acme":
        return ACME_STOP if timer.get("enabled") == "enabled" else ""
    seen = gateway.get("other_certificate")
    if not seen or "error" in seen:
        return "there is none of the authority's yet"
    if record != acme_request(settings):
        return "another one is asked for than the present one"
    if parse_openssl_time(str(seen["not_after"])) - now < ACME_LATE:
        return "the present one ends soon and was not renewed"
    return "" if timer.get("enabled") == "enabled" else "it would not be renewed"


ACME_STOP = "stop"


def acme_in_words(reason: str) -> str:
    """A line of the plan."""
    if reason == ACME_STOP:
        return "renew the certificate of an ACME authority no more"
    return f"ask the ACME authority for a certificate: {reason}"


def acme_request(settings: Settings) -> dict[str, Any]:
    """What `fleet-host acme obtain` is asked for, and what it records."""
    assert settings.gateway is not None
    tls = settings.gateway.tls
    return {
        "name": settings.gateway.server_name,
        "directory": tls.acme_directory,
        "email": tls.acme_email,
        "ca_file": tls.acme_ca_file,
    }


def expiry_findings(
    host: str, settings: Settings, gateway: Mapping[str, Any], now: datetime
) -> tuple[Finding, ...]:
    """A warning for a certificate that nobody here renews, or that was not renewed in time."""
    assert settings.gateway is not None
    tls, seen = settings.gateway.tls, gateway.get("other_certificate")
    if tls.source == "own_ca" or not isinstance(seen, dict) or "error" in seen:
        return ()
    ends = parse_openssl_time(str(seen["not_after"]))
    if ends - now >= (RENEW_BEFORE if tls.source == "files" else ACME_LATE):
        return ()
    fix = "put a new one in its place on the host and reload Nginx"
    if tls.source == "acme":
        fix = "see journalctl -u llm-acme.service on the host; the deploy asks for a new one"
    ended = "has ended" if ends <= now else "ends"
    return (
        Finding(
            "gateway.certificate-ends",
            "warn",
            host,
            "gateway.tls",
            f"the certificate {seen.get('path')} {ended} on {ends:%Y-%m-%d}: from then on clients "
            "refuse the gateway",
            fix,
        ),
    )
