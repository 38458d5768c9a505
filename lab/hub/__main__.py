"""python -m lab.hub: the lab's model hub.

serve|start|stop|status, and `fault set KIND [path=..] [times=..] [value=..]`, `fault list`,
`fault clear` while it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.hub import control, daemon
from lab.hub.faults import KINDS, Fault
from lab.hub.places import hub_directory, models_directory
from lab.hub.store import branches, model_ids


def parse_fault(words: list[str]) -> Fault:
    """["slow", "path=*.json", "value=1000"] -> Fault. LabError names what is wrong."""
    given: dict[str, Any] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in {"path", "model", "times", "value"}:
            raise LabError(
                f"{word!r} is no part of a fault",
                "a fault is KIND and any of path=PATTERN model=PATTERN times=N value=V",
                "for example: fault set corrupt path=*.safetensors times=1",
            )
        number = value.isdigit() and (key == "times" or words[0] not in {"token", "moves", "extra"})
        given[key] = int(value) if number else value
    try:
        return Fault(words[0], **given)
    except (TypeError, ValueError) as error:
        raise LabError(
            f"no such fault: {' '.join(words)}", str(error), "see `fault kinds`"
        ) from None


def run_fault(hub: Path, action: str, words: list[str]) -> str:
    if action == "set" and words:
        control.set_faults(parse_fault(words), hub=hub)
    elif action == "clear":
        control.clear_faults(hub)
    elif action == "kinds":
        return "\n".join(f"{kind:13} {meaning}" for kind, meaning in KINDS.items())
    elif action != "list":
        raise LabError("fault set needs a kind", "nothing stood behind it", "see `fault kinds`")
    return json.dumps({"faults": control.faults(hub), **control.counters(hub)}, indent=1)


def status(hub: Path) -> str:
    found = daemon.running_process(hub)
    lines = [f"runs at http://{found.address}, process {found.pid}" if found else "does not run"]
    models = models_directory(hub)
    for model_id in model_ids(models):
        named = ", ".join(f"{k} {v[:12]}" for k, v in branches(models, model_id).items())
        lines.append(f"{model_id}: {named}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.hub",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["serve", "start", "stop", "status", "fault"])
    parser.add_argument("words", nargs="*", help="of fault: set|list|clear|kinds ...")
    parser.add_argument("--hub-dir", type=Path, help="default: hub/ in FLEET_LAB_DIR")
    parser.add_argument("--listen", default=daemon.DEFAULT_ADDRESS, metavar="HOST:PORT")
    options = parser.parse_args(argv)
    hub = options.hub_dir or hub_directory()
    if options.words and options.command != "fault":
        parser.error(f"{options.command} takes no more words")
    try:
        if options.command == "serve":
            daemon.serve(hub, options.listen)
            return 0
        if options.command == "start":
            text = f"runs at http://{daemon.start(hub, options.listen).address}"
        elif options.command == "stop":
            text = "stopped" if daemon.stop(hub) else "was not running"
        elif options.command == "status":
            text = status(hub)
        else:
            action, *rest = options.words or ["list"]
            if action not in {"set", "list", "clear", "kinds"}:
                parser.error("fault is followed by set, list, clear or kinds")
            text = run_fault(hub, action, rest)
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except PermissionError as error:
        sys.stderr.write(f"{error}\n  fix: run as root, or set FLEET_LAB_DIR\n")
        return 1
    sys.stdout.write(text + "\n")
    running = options.command != "status" or daemon.running_process(hub) is not None
    return 0 if running else 3  # as `systemctl status` answers for what is not active


if __name__ == "__main__":
    raise SystemExit(main())
