"""The vhost's certificate from an ACME authority (RFC 8555), by the distribution's certbot.

/etc/llm/acme                     certbot's own directory, ours alone: its certificates are not
                                  renewed by the distribution's timer, but by llm-acme.timer
/etc/llm/acme/live/llm-gateway/   fullchain.pem and privkey.pem, which Nginx names
/var/lib/llm-acme/webroot         what Nginx serves below /.well-known/acme-challenge/
/run/llm-acme/renewed             there is a new certificate that Nginx has not loaded yet
{llm_root}/state/acme.json        what the certificate was asked for with
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from . import durable, events, fields, layout, nginx, snapshot, systemctl
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

LINEAGE = "llm-gateway"
TIMER = "llm-acme.timer"
# An authority may take minutes to look; certbot has time-outs of its own.
TIMEOUT_SECONDS = 600.0
SHOWN_LINES = 15
# Of certbot's lines, those that say nothing of what went wrong.
CHATTER = ("Saving debug log to ", "Ask for help ")


def directory() -> Path:
    return layout.etc_root() / "llm" / "acme"


def certificate() -> Path:
    return directory() / "live" / LINEAGE / "fullchain.pem"


def state_root() -> Path:
    return layout.state_root() / "llm-acme"


def renewed_flag() -> Path:
    return layout.run_root() / "llm-acme" / "renewed"


def record_path() -> Path:
    return layout.llm_root() / "state" / "acme.json"


def obtain(asked: dict[str, Any]) -> dict[str, Any]:
    """`acme obtain` {name, directory, email, ca_file} -> {certificate}: have one issued, and have
    it renewed from now on. The operator has accepted the authority's terms (a setting).

    email, ca_file: may be null. Nginx must already serve the challenge at port 80.
    """
    wanted = {
        "name": fields.text(asked, "name"),
        "directory": fields.text(asked, "directory"),
        "email": fields.optional_text(asked, "email"),
        "ca_file": fields.optional_text(asked, "ca_file"),
    }
    before = durable.read_json(record_path())
    for place in (renewed_flag().parent, state_root() / "webroot"):
        durable.make_directories(place)
    contact = ["--email", str(wanted["email"]), "--no-eff-email"]
    if wanted["email"] is None:
        contact = ["--register-unsafely-without-email"]
    # Another name or authority under the same lineage: certbot would keep what is not ending yet.
    again = "--force-renewal" if before not in (None, wanted) else "--keep-until-expiring"
    _certbot(
        [
            *("certonly", "--agree-tos", *contact, again, "--cert-name", LINEAGE),
            *("--server", str(wanted["directory"]), "--key-type", "ecdsa"),
            *("--webroot", "--webroot-path", str(state_root() / "webroot")),
            *("--domains", str(wanted["name"]), "--deploy-hook", f"touch {renewed_flag()}"),
        ],
        wanted["ca_file"],
    )
    if not certificate().exists():
        raise HostError(
            "certbot brought no certificate",
            f"it ended well, and {certificate()} is not there.",
            "See /var/log/llm-acme/letsencrypt.log on the host.",
        )
    durable.write_json(record_path(), wanted)
    systemctl.call(["enable", "--now", "--quiet", TIMER])
    # The deploy gives Nginx the new paths and loads it itself.
    durable.remove_file(renewed_flag())
    state: dict[str, Any] = snapshot.certificate_state(str(certificate()))
    events.record("certificate obtained", not_after=state["not_after"], sans=state["sans"])
    return {"certificate": state}


def renew(_request: dict[str, Any]) -> dict[str, Any]:
    """`acme renew`, of llm-acme.service: renewed when it is due."""
    record = durable.read_object(record_path()) or {}
    _certbot(["renew", "--cert-name", LINEAGE, "--no-random-sleep-on-renew"],
             record.get("ca_file"))  # fmt: skip
    return {"renewed": renewed_flag().exists()}


def deployed(_request: dict[str, Any]) -> dict[str, Any]:
    """`acme deployed`, after a renewal: have Nginx load it. The flag goes when that was done, so
    that the next run tries again what failed."""
    if not renewed_flag().exists():
        return {"reloaded": False}
    done = subprocess.run(
        ["nginx", "-t", "-q"], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"},
    )  # fmt: skip
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise HostError(
            "Nginx cannot load the renewed certificate; the former one is served until it ends",
            f"nginx -t refuses the configuration: {lines[-1] if lines else 'without a word'}.",
            "Mend it (the deploy writes ours anew); llm-acme.timer tries again.",
            lines,
        )
    systemctl.call(["reload", "nginx.service"])
    nginx.certificates_reloaded()
    durable.remove_file(renewed_flag())
    state = snapshot.certificate_state(str(certificate()))
    events.record("certificate renewed", not_after=state["not_after"], sans=state["sans"])
    return {"reloaded": True}


def stop(_request: dict[str, Any]) -> dict[str, Any]:
    """`acme stop`: renew no more. What certbot has got stays where it is."""
    systemctl.call(["disable", "--now", "--quiet", TIMER])
    durable.remove_file(record_path())
    return {"stopped": True}


def _certbot(arguments: list[str], ca_file: str | None) -> None:
    """Run certbot; HostError with its last words."""
    places = [
        *("--config-dir", str(directory()), "--work-dir", str(state_root() / "work")),
        *("--logs-dir", str(layout.log_root() / "llm-acme")),
    ]
    environment = dict(os.environ)
    if ca_file is not None:
        # certbot speaks by python-requests, which takes its authorities from here.
        environment["REQUESTS_CA_BUNDLE"] = ca_file
    try:
        done = subprocess.run(
            ["certbot", *arguments, "--non-interactive", *places],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError("certbot could not be run", f"{error}.", "Install the package certbot.") \
            from error  # fmt: skip
    if done.returncode != 0:
        output = (done.stdout + done.stderr).splitlines()
        lines = [line for line in output if line.strip() and not line.startswith(CHATTER)]
        told = [line.strip() for line in lines if line.strip().startswith(("Detail:", "Type:"))]
        why = " ".join(told) or (lines[-1] if lines else "it printed no reason")
        raise HostError(
            "the authority issued no certificate",
            f"certbot: {why}.",
            "The name has to lead to this host, and port 80 to be open to the world: the authority "
            "asks at http://NAME/.well-known/acme-challenge/. Then run the deploy again; mind the "
            "authority's limits of failed tries.",
            lines[-SHOWN_LINES:],
        )
