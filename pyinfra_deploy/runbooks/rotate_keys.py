"""A new API key for a client in the place of its old one."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError


def old(scene: Scene) -> None:
    wanted = scene.options.get("key", "")
    keys = json.loads(scene.run_fleet("keys", "list", scene.fleet.name, "--json"))["keys"]
    found = [key for key in keys if wanted in (key["id"], key["name"])]
    if not wanted or not found:
        names = ", ".join(key["name"] for key in keys)
        raise StopError(f"there is no key {wanted!r}", f"--set key=NAME, one of {names}")
    scene.seen["old"] = found[0]
    day = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    name = scene.options.get("name") or f"{found[0]['name']}-{day}"
    scene.seen["name"] = name
    # A second run, after the client has the new one, only revokes.
    scene.seen["made"] = any(key["name"] == name for key in keys)


def place(scene: Scene) -> None:
    out = scene.options.get("out")
    if scene.seen["made"]:
        scene.say(f"  {scene.seen['name']} is there already, and is not made again")
    elif not out:
        raise StopError("it is not said where the new key goes", "--set out=FILE (mode 0600)")
    elif Path(out).exists():
        raise StopError(f"{out} exists already", "name another file: a key is never overwritten")


def create(scene: Scene) -> None:
    if not scene.seen["made"]:
        name, out = scene.seen["name"], scene.options["out"]
        scene.run_fleet("keys", "create", scene.fleet.name, name, "--out", out)


def revoke(scene: Scene) -> None:
    found = scene.seen["old"]
    now = scene.options.get("revoke") == "now" or (
        not scene.yes
        and scene.doors.confirmed(f"Do clients have the new key? Revoke {found['name']}?")
    )
    scene.seen["revoked"] = now
    if now:
        scene.run_fleet("keys", "revoke", scene.fleet.name, found["id"])
    else:
        scene.say(f"  {found['name']} still works; later: the same with --set revoke=now")


def listed(scene: Scene) -> None:
    keys = json.loads(scene.run_fleet("keys", "list", scene.fleet.name, "--json"))["keys"]
    if not any(key["name"] == scene.seen["name"] for key in keys):
        raise StopError(f"{scene.seen['name']} is not in keys.json")
    if scene.seen["revoked"] and any(key["id"] == scene.seen["old"]["id"] for key in keys):
        raise StopError(f"{scene.seen['old']['name']} is still in keys.json")


RUNBOOK = Runbook(
    "rotate-keys",
    "give a client a new API key",
    "Makes a new key, brings it to all gateway hosts, and revokes the old one when clients have "
    "changed over: at once (--set revoke=now), when you say so, or by running it again. No request "
    "is refused in between. Commit keys.json.",
    (
        Step("before", "the old key is there", old),
        Step("before", "the new one has a file to go to", place),
        Step("do", "make the new key and bring it to the gateways", create),
        Step("do", "revoke the old one, when clients have the new one", revoke),
        Step("after", "keys.json says so", listed),
    ),
    group="gateway",
    options={
        "key": "name or id of the old key",
        "out": "file for the new key, mode 0600",
        "name": "name of the new key (the old one's with today's date)",
        "revoke": "now: without asking",
    },
    after_failure="Both keys work, or a gateway was not reached: fleet keys push.",
)
