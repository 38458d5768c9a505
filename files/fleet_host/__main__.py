"""fleet-host COMMAND: one JSON document in on stdin, one out on stdout.

Exit codes: 0 done; 1 refused or failed, stdout holds {"error": {what, why, fix, detail}}; 2 bad
usage or a malformed request, same shape. A defect of this program itself ends in exit code 1 with
its traceback in "detail", so that the one JSON document is there in any case.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import SCHEMA_VERSION, durable, layout
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

# Command -> "module:function" in this package, imported when called: a status query must not pay
# for modules that it does not use. Each function takes the request and returns the answer.
COMMANDS: dict[str, str] = {
    "version": "__main__:version",
    "job start": "jobs:start",
    "job status": "jobs:status",
    "job stop": "jobs:stop",
    "job run": "jobs:run",
    "job record": "job_record:record",
    "model verify": "verification:verify_command",
    "model list": "models:listing",
    "model remove": "models:remove",
    "lease acquire": "lease:acquire",
    "lease renew": "lease:renew",
    "lease release": "lease:release",
    "lease status": "lease:status",
    "events verify": "events:verify",
    "events tail": "events:tail",
    "release stage": "release:stage",
    "release bind": "binding:bind",
    "release review": "arguments:review",
    "runtime flags": "arguments:list_flags",
    "arguments run": "parser_run:run",
    "runtime list": "prune:listing",
    "prune": "prune:run",
    "wheels gather": "wheels:gather",
    "wheels serve": "wheel_server:open_for",
    "fan-out open": "share_opening:open_for",
    "fan-out closed": "share_opening:closed",
    "engine started": "engine:started",
    "engine undrain": "unjudged:ended",
    "engine settle": "unjudged:before_start",
    "engine log": "log_file:run",
    "proof run": "proof_script:run",
    "watch run": "watch:run",
    "kernel raise-map-count": "kernel:raise_map_count",
    "nginx apply": "nginx:apply",
    "tls request": "tls:request",
    "tls install": "tls:install",
    "acme obtain": "acme:obtain",
    "acme renew": "acme:renew",
    "acme deployed": "acme:deployed",
    "acme stop": "acme:stop",
    "mtls request": "host_certificate:request",
    "mtls install": "host_certificate:install",
    "keys push": "keys:push",
    "keys verify-key": "keys:verify_key",
    "verify": "verify:verify",
    "host prepare": "host:prepare",
    "host facts": "host:facts",
    "host care": "care:care",
    "driver boot": "driver:boot",
    "driver reboot": "driver:reboot",
    "driver verify": "driver:verify",
    "fans run": "fans:run",
    "fans restore": "fans:restore",
    "chassis-fans apply": "chassis_fans:apply",
    "chassis-fans undo": "chassis_fans:undo",
    "credential write": "host:write_credential",
    "gateway activate": "gateway:activate",
    "gateway configure": "gateway:configure",
    "gateway started": "gateway:started",
    "hold begin": "hold:begin",
    "hold end": "hold:end",
    "rollout take": "rollout:take",
    "rollout end": "rollout:end",
    "rollout status": "rollout:status",
    "rollout unlock": "rollout:unlock",
    "service drain": "service:drain",
    "service undrain": "service:undrain",
    "service stop": "service_by_hand:stop",
    "service start": "service_by_hand:start",
    "service answers": "service_by_hand:answers",
    "gpu holders": "gpu_reset:holders",
    "gpu reset": "gpu_reset:reset",
    "service logs": "service:logs",
    "service releases": "service:kept_releases",
    "uninstall": "uninstall:run",
    "gateway stopping": "gateway_drain:stopping",
    "gateway undrain": "gateway_drain:undrain",
}

# Commands whose request comes as words, because systemd starts them: words -> keys of the request.
POSITIONAL: dict[str, tuple[str, ...]] = {
    "acme renew": (),
    "acme deployed": (),
    "job run": ("kind", "id"),
    "job record": ("kind", "id"),
    "fan-out closed": (),
    "engine started": ("engine",),
    "engine undrain": ("engine",),
    "engine settle": ("engine",),
    "arguments run": ("engine",),
    "engine log": ("engine",),
    "proof run": ("engine",),
    "watch run": ("engine",),
    "gateway started": (),
    "gateway stopping": (),
    "gateway undrain": (),
    "fans run": (),
    "fans restore": (),
    "chassis-fans apply": (),
    "chassis-fans undo": (),
}

# Steps of units that serve: their answer is in a file, and in the journal it would push out the
# lines that an error shows.
QUIET = ("engine started", "engine undrain", "engine settle", "gateway started", "gateway stopping",
         "gateway undrain", "fans run", "fans restore",
         "job record", "fan-out closed")  # fmt: skip


def program_digest() -> str:
    """SHA-256 of the zipapp; in a checkout, of its modules' names and contents."""
    here = layout.program()
    if here.is_file():
        return hashlib.sha256(here.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for module in sorted(here.glob("*.py")):
        digest.update(module.name.encode() + b"\0" + module.read_bytes())
    return digest.hexdigest()


def version(_request: dict[str, Any]) -> dict[str, Any]:
    """{program: sha256, schema: int}: which program this is and which state it understands."""
    return {"program": program_digest(), "schema": SCHEMA_VERSION}


def resolve(reference: str) -> Callable[..., Any]:
    """The function behind "module:function" of this package."""
    module, name = reference.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(f"fleet_host.{module}"), name)
    return function


def usage(why: str) -> SpecError:
    return SpecError("fleet-host: bad usage", why, "Commands: " + ", ".join(sorted(COMMANDS)) + ".")


def find_command(words: list[str]) -> tuple[str, list[str]]:
    """The longest known command at the front of the words, and the words after it."""
    for length in (3, 2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in COMMANDS:
            return name, words[length:]
    raise usage(f"'{' '.join(words)}' is not a command." if words else "no command was given.")


def read_request(name: str, rest: list[str]) -> dict[str, Any]:
    keys = POSITIONAL.get(name)
    if keys is not None:
        if len(rest) != len(keys):
            raise usage(f"'{name}' takes {' '.join(keys).upper()}, not {' '.join(rest)!r}.")
        return dict(zip(keys, rest, strict=True))
    if rest:
        raise usage(f"'{name}' takes no words; its request is JSON on stdin.")
    text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    try:
        request = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise usage(f"stdin is not JSON ({error}).") from error
    if not isinstance(request, dict):
        raise usage("the request on stdin must be a JSON object.")
    return request


def answer(words: list[str]) -> tuple[int, dict[str, Any]]:
    try:
        name, rest = find_command(words)
        return 0, resolve(COMMANDS[name])(read_request(name, rest))
    except SpecError as error:
        return 2, {"error": error.as_dict()}
    except HostError as error:
        return 1, {"error": error.as_dict()}
    except OSError as error:
        if error.errno in durable.NO_ROOM:
            place = Path(error.filename) if error.filename else layout.llm_root()
            return 1, {"error": durable.storage_error(error, place).as_dict()}
        return _broke(words, error)
    except Exception as error:
        return _broke(words, error)


def _broke(words: list[str], error: Exception) -> tuple[int, dict[str, Any]]:
    failure = HostError(
        f"fleet-host {' '.join(words)} broke",
        f"{type(error).__name__}: {error}.",
        "If this names a full disk or a missing permission, mend that; else report the detail.",
        traceback.format_exc().splitlines(),
    )
    return 1, {"error": failure.as_dict()}


def main() -> NoReturn:
    """Exits by itself: the entry point that zipapp writes drops what main() returns."""
    words = sys.argv[1:]
    code, document = answer(words)
    if code != 0 or " ".join(words[:2]) not in QUIET:
        json.dump(document, sys.stdout, indent=1)
        sys.stdout.write("\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
