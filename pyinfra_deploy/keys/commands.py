"""`fleet keys ...` and `fleet ca ...`."""

from __future__ import annotations

import functools
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.keys import ca, ca_names, keyfile, push
from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.settings.fleet import load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyinfra_deploy.settings.fleet import Fleet

_INVENTORY = "prod, inventories/prod.py or inventories/prod/hosts.yml"


def register(commands: Any) -> None:
    """Add `keys` and `ca`; `commands` is argparse's object for subcommands."""
    _add_keys(commands)
    _add_ca(commands)


def _add_keys(commands: Any) -> None:
    group = commands.add_parser("keys", help="create, list, rotate and revoke API keys")
    actions = group.add_subparsers(required=True, metavar="ACTION")

    create = actions.add_parser(
        "create", help="make a key, show it once, and put its digest on all gateway hosts"
    )
    create.add_argument("inventory", help=_INVENTORY)
    create.add_argument("name", help="who uses it, for example chat-backend")
    create.add_argument(
        "--expires", metavar="WHEN", help="last day (2026-12-31, UTC), a time, or days (90d)"
    )
    create.add_argument(
        "--out", type=Path, metavar="FILE", help="write the key there, mode 0600, not to stdout"
    )
    create.add_argument("--tier", help="of gateway.mode: full; default: the gateway's default tier")
    create.add_argument(
        "--model",
        action="append",
        dest="models",
        metavar="NAME",
        help="a model or alias that it may use, may be repeated; default: all",
    )
    create.add_argument("--requests-per-minute", type=positive, metavar="N")
    create.add_argument(
        "--tokens-per-minute", type=positive, metavar="N", help="of prompts and answers together"
    )
    _add_no_push(create)
    create.set_defaults(run=_reported(_create))

    listing = actions.add_parser("list", help="the keys of keys.json; it has no secret")
    listing.add_argument("inventory", help=_INVENTORY)
    listing.add_argument("--json", action="store_true", help="for programs")
    listing.set_defaults(run=_reported(_list))

    show = actions.add_parser("show", help="all that is known of one key; never the key itself")
    show.add_argument("inventory", help=_INVENTORY)
    show.add_argument("key", help="its id or its name, as `fleet keys list` prints them")
    show.add_argument("--json", action="store_true", help="for programs")
    show.set_defaults(run=_reported(_show_one))

    revoke = actions.add_parser("revoke", help="withdraw a key on all gateway hosts")
    revoke.add_argument("inventory", help=_INVENTORY)
    revoke.add_argument("key", help="its id or its name, as `fleet keys list` prints them")
    _add_no_push(revoke)
    revoke.set_defaults(run=_reported(_revoke))

    rotate = actions.add_parser(
        "rotate", help="a new key of the same name and limits; the old one is good a while longer"
    )
    rotate.add_argument("inventory", help=_INVENTORY)
    rotate.add_argument("key", help="its id or its name, as `fleet keys list` prints them")
    rotate.add_argument(
        "--keep", metavar="WHEN", default="7d", help="until when the old one is good; default: 7d"
    )
    rotate.add_argument("--out", type=Path, metavar="FILE", help="as for create")
    _add_no_push(rotate)
    rotate.set_defaults(run=_reported(_rotate))

    again = actions.add_parser("push", help="bring keys.json to all gateway hosts once more")
    again.add_argument("inventory", help=_INVENTORY)
    again.set_defaults(run=_reported(_push_again))


def _add_ca(commands: Any) -> None:
    group = commands.add_parser("ca", help="the certificate authority of an inventory")
    actions = group.add_subparsers(required=True, metavar="ACTION")
    init = actions.add_parser("init", help="make it, unless it is there (the deploy does so too)")
    init.add_argument("inventory", help=_INVENTORY)
    init.set_defaults(run=_reported(_ca_init))
    show = actions.add_parser("show", help="its fingerprint, its end and its names")
    show.add_argument("inventory", help=_INVENTORY)
    show.set_defaults(run=_reported(_ca_show))


def _add_no_push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-push", action="store_true", help="only edit keys.json; hosts keep what they have"
    )


def _reported(
    run: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """An operator's mistake is a message on stderr and exit code 1, not a traceback."""

    @functools.wraps(run)
    def wrapper(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except KeysError as error:
            print(error, file=sys.stderr)
            return 1

    return wrapper


def _create(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    path = keyfile.keys_path(fleet)
    expires = parse_expiry(arguments.expires, datetime.now(UTC)) if arguments.expires else None
    limits = keyfile.Limits(
        tier=arguments.tier,
        models=tuple(arguments.models) if arguments.models else None,
        requests_per_minute=arguments.requests_per_minute,
        tokens_per_minute=arguments.tokens_per_minute,
    )
    created = keyfile.create(path, arguments.name, expires, out=arguments.out, limits=limits)
    if arguments.tier and (tier := _tier(fleet, created.record)) != arguments.tier:
        _say(f"Its tier is {tier}.")
    _warn_of_direct_mode(fleet, limits)
    until = f", until {created.record.expires}" if created.record.expires else ""
    _say(f"Created key {created.record.id} ({created.record.name}){until}.")
    _show(created, arguments.out)
    return _push(fleet, arguments, "Clients cannot use the key there yet.")


def _warn_of_direct_mode(fleet: Fleet, limits: keyfile.Limits) -> None:
    """Say which gateways heed none of a key's limits."""
    if limits == keyfile.NO_LIMITS:
        return
    direct = sorted(
        host.name
        for host in fleet.hosts.values()
        if host.settings.gateway is not None and host.settings.gateway.mode == "direct"
    )
    if direct:
        _say(
            f"ITS TIER, MODELS AND LIMITS COUNT FOR NOTHING on {', '.join(direct)}: in "
            "gateway.mode direct a key is good for everything. Use mode full there."
        )


def _list(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    path = keyfile.keys_path(fleet)
    content = keyfile.read(path)
    if arguments.json:
        print(
            json.dumps(
                {"serial": content.serial, "keys": [keyfile.to_entry(k) for k in content.keys]}
            )
        )
        return 0
    now = datetime.now(UTC)
    print(f"{path}: serial {content.serial}, {len(content.keys)} keys")
    for key in content.keys:
        end = "never expires"
        if key.expires is not None:
            over = keyfile.parse_time(key.expires, "expires") <= now
            end = f"{'EXPIRED' if over else 'expires'} {key.expires}"
        print(f"{key.id}  created {key.created}  {end}  {key.name}{_limits(key)}")
    return 0


def _show_one(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    path = keyfile.keys_path(fleet)
    key = keyfile.find(path, arguments.key)
    if arguments.json:
        print(json.dumps(keyfile.to_entry(key)))
        return 0
    over = key.expires is not None and (
        keyfile.parse_time(key.expires, "expires") <= datetime.now(UTC)
    )
    told = {
        "id": f"{key.id}  (key_id in the access log; the key begins with sk-{key.id})",
        "name": key.name,
        "created": key.created,
        "expires": f"{key.expires or 'never'}{'  EXPIRED' if over else ''}",
        "tier": _tier(fleet, key),
        "models": ", ".join(key.models) if key.models else "all",
        "requests": f"{key.requests_per_minute or 'no limit'} per minute, at each gateway",
        "tokens": f"{key.tokens_per_minute or 'no limit'} per minute, at each gateway",
        "sha256": key.sha256,
    }
    for name, value in told.items():
        print(f"{name + ':':<10}{value}")
    return 0


def _tier(fleet: Fleet, key: keyfile.KeyRecord) -> str:
    """Which tier is in force for a key, as the gateways' settings have it now."""
    full = [
        host.settings.gateway
        for host in fleet.hosts.values()
        if host.settings.gateway is not None and host.settings.gateway.mode == "full"
    ]
    if not full:
        return f"{key.tier or 'none'} (heeded in gateway.mode full alone)"
    if key.tier is not None and all(key.tier in (t.name for t in one.tiers) for one in full):
        return key.tier
    default = ", ".join(sorted({one.default_tier or one.tiers[0].name for one in full}))
    lacking = f"; gateway.tiers has no {key.tier}" if key.tier else ""
    return f"{default} (the default{lacking})"


def _limits(key: keyfile.KeyRecord) -> str:
    """`  (tier batch, 60 requests/min)`, or nothing for a key without limits."""
    told = [
        f"tier {key.tier}" if key.tier else "",
        f"models {', '.join(key.models)}" if key.models else "",
        f"{key.requests_per_minute} requests/min" if key.requests_per_minute else "",
        f"{key.tokens_per_minute} tokens/min" if key.tokens_per_minute else "",
    ]
    text = ", ".join(part for part in told if part)
    return f"  ({text})" if text else ""


def positive(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _revoke(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    gone = keyfile.revoke(keyfile.keys_path(fleet), arguments.key)
    _say(f"Revoked key {gone.id} ({gone.name}) in {keyfile.keys_path(fleet)}.")
    return _push(fleet, arguments, "THE KEY STILL WORKS THERE.")


def _rotate(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    keep = parse_expiry(arguments.keep, datetime.now(UTC))
    created, former = keyfile.rotate(
        keyfile.keys_path(fleet), arguments.key, keep, out=arguments.out
    )
    _say(f"Created key {created.record.id} ({created.record.name}).")
    _say(f"The old key {former.id} is good until {former.expires}; to end it now, revoke its id.")
    _show(created, arguments.out)
    return _push(fleet, arguments, "Clients cannot use the new key there yet.")


def _show(created: keyfile.NewKey, out: Path | None) -> None:
    if out:
        _say(f"The key is in {out} (mode 0600); it can never be shown again.")
        return
    _say("The key, which can never be shown again:")
    # Before the push: were that to fail, the key would be in the file and nobody would have it.
    print(created.plaintext, flush=True)


def _push_again(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    content = keyfile.read(keyfile.keys_path(fleet))
    if content.serial == 0:
        raise KeysError(
            f"nothing to push for {fleet.name}",
            f"{keyfile.keys_path(fleet)} does not exist: no key was ever created.",
            f"fleet keys create {arguments.inventory} NAME",
        )
    _say(f"Pushing serial {content.serial} with {len(content.keys)} keys.")
    return _push(fleet, arguments, "These hosts still go by the keys they had.")


def _push(fleet: Fleet, arguments: argparse.Namespace, consequence: str) -> int:
    again = f"fleet keys push {arguments.inventory}"
    if getattr(arguments, "no_push", False):
        _say(f"No host knows of it yet (--no-push). To bring it to the hosts: {again}")
        return 0
    _say("Pushing to the gateway hosts ...")
    pushed = push.push(fleet)
    _say(push.report(pushed))
    if not pushed.missed:
        _say("Commit keys.json, so that everybody deploys the same keys.")
        return 0
    _say(f"{consequence} keys.json has the change: mend the hosts, then run: {again}")
    return 1


def _ca_init(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    authority = ca.ensure_ca(fleet)
    if authority.created:
        print(f"Made the CA of {fleet.name}. Commit both files:")
        print(f"  {authority.certificate_path}  (give it to clients)")
        print(f"  {authority.key_path}  (secret)")
    else:
        print(f"The CA of {fleet.name} is there already; nothing was changed.")
    _describe(authority)
    return 0


def _ca_show(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.inventory)
    authority = ca.load_ca(fleet)
    if authority is None:
        raise KeysError(
            f"the inventory {fleet.name} has no CA",
            f"{ca.ca_paths(fleet)[0]} does not exist.",
            f"fleet ca init {arguments.inventory} (the deploy makes it too, when it needs one)",
        )
    _describe(authority)
    return 0


def _describe(authority: ca.CertificateAuthority) -> None:
    fingerprint = authority.fingerprint.upper()
    pairs = ":".join(fingerprint[index : index + 2] for index in range(0, len(fingerprint), 2))
    print(f"subject:  {authority.subject}")
    print(f"SHA-256:  {pairs}")
    print(f"ends:     {authority.certificate.not_valid_after_utc:%Y-%m-%d}")
    print(f"may sign: {', '.join(ca_names.permitted_names(authority.certificate))}")


def parse_expiry(text: str, now: datetime) -> datetime:
    """`90d` from now, the end of the day `2026-12-31` in UTC, or a time with its zone."""
    try:
        if re.fullmatch(r"[0-9]{1,5}d", text):
            return now + timedelta(days=int(text[:-1]))
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=1)
        return keyfile.parse_time(text, "--expires")
    except (ValueError, OverflowError):
        raise KeysError(
            f"cannot read --expires {text}",
            "it is neither a day, nor a time with its zone, nor a number of days.",
            "Write for example 2026-12-31, 2026-12-31T18:00:00+08:00 or 90d.",
        ) from None


def _say(text: str) -> None:
    """To stderr: stdout is for the key alone, so that it can be piped."""
    print(text, file=sys.stderr, flush=True)
