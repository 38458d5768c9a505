"""`fleet runtime wheelhouse`: the wheels of locks in a directory, for hosts without internet."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.locked_wheels import (
    LockedWheel,
    entries_without_wheel,
    wheels_of_lock,
)
from pyinfra_deploy.runtime.recipes import problem
from pyinfra_deploy.runtime.stub_wheel import stub_wheel_bytes, stub_wheel_sha256
from pyinfra_deploy.settings.fleet import Fleet, load_fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

TOOL_LOCKS = ("locks/tools/uv.txt",)
GPU_LOCKS = ("locks/tools/modelscope.txt",)
GATEWAY_LOCKS = ("locks/gateway.txt",)


def register(actions: Any) -> None:
    """Add `wheelhouse`; `actions` is argparse's object for subcommands."""
    command = actions.add_parser(
        "wheelhouse",
        help="download exactly the wheels of locks into a directory for hosts without internet",
        description="Downloads what the locks name, checks every hash, and writes an index page, a "
        "simple index and SHA256SUMS beside the wheels. What is there already is not downloaded "
        "again; an interrupted run goes on where it stopped.",
    )
    command.add_argument(
        "what",
        nargs="+",
        metavar="LOCK|INVENTORY",
        help="lock files, or an inventory: then everything its hosts install",
    )
    command.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    command.add_argument("--index-url", metavar="URL", help="default: as the settings or pip say")
    command.add_argument("--extra-index-url", action="append", default=[], metavar="URL")
    command.add_argument("--find-links", action="append", default=[], metavar="PLACE")
    command.add_argument(
        "--remove-others", action="store_true", help="remove wheels that these locks do not name"
    )
    command.set_defaults(run=_wheelhouse)


def _wheelhouse(arguments: argparse.Namespace) -> int:
    """Exit code: 0 all is there, 1 not."""
    root, locks = Path.cwd(), list[Path]()
    sources: dict[str, Any] = {"index_url": None, "extra_index_urls": [], "find_links": []}
    for what in arguments.what:
        if what.endswith(".txt"):
            locks.append(Path(what))
        else:
            fleet = load_fleet(what)
            root = fleet.root
            locks += [root / lock for lock in locks_of(fleet)]
            _add_sources(sources, fleet)
    sources["index_url"] = arguments.index_url or sources["index_url"]
    sources["extra_index_urls"] += arguments.extra_index_url
    sources["find_links"] += [
        place if "://" in place else str(Path(place).resolve()) for place in arguments.find_links
    ]
    wheels = wheels_of(locks)
    with tempfile.TemporaryDirectory() as own:
        sources["find_links"] += write_stubs(wheels, Path(own))
        answer = gather(
            {
                **sources,
                "directory": str(arguments.output.resolve()),
                "wheels": [wheel.as_spec() for wheel in wheels],
                "remove_others": arguments.remove_others,
            }
        )
    if answer is None:
        return 1
    print(
        f"{arguments.output}: {answer['wheels']} wheels, {answer['size_bytes'] / 1e9:.2f} GB; "
        f"downloaded {answer['downloaded']} in {answer['seconds']:.0f} s"
    )
    for file in answer["removed"]:
        print(f"removed {file}")
    return 0


def locks_of(fleet: Fleet) -> list[str]:
    """Every lock that some host of the fleet installs, relative to the repository."""
    found: dict[str, None] = dict.fromkeys(TOOL_LOCKS)
    for host in fleet.hosts.values():
        if "gpu" in host.groups and host.settings.runtime is not None:
            found |= dict.fromkeys((*GPU_LOCKS, host.settings.runtime.lock))
        if "gateway" in host.groups:
            found |= dict.fromkeys(GATEWAY_LOCKS)
    return list(found)


def _add_sources(sources: dict[str, Any], fleet: Fleet) -> None:
    """What the settings of hosts say, each place once, in the order of the inventory."""
    for host in fleet.hosts.values():
        runtime = host.settings.runtime
        if runtime is None:
            continue
        sources["index_url"] = sources["index_url"] or runtime.index_url
        for key in ("extra_index_urls", "find_links"):
            sources[key] += [one for one in getattr(runtime, key) if one not in sources[key]]


def wheels_of(locks: Iterable[Path]) -> list[LockedWheel]:
    """The wheels of all locks, each once. SettingsError for a lock that does not name them."""
    found: dict[str, LockedWheel] = {}
    for path in locks:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise problem(
                f"cannot be read: {error.strerror}.", "correct the path.", str(path)
            ) from error
        without = entries_without_wheel(text)
        if without or not wheels_of_lock(text):
            raise problem(
                f"does not name the wheels of {', '.join(without[:5]) or 'anything'}: it was not "
                "made by `fleet runtime lock`.",
                "make it with that command, from a recipe in locks/recipes.yml; versions stay.",
                str(path),
            )
        found |= {wheel.file: wheel for wheel in wheels_of_lock(text)}
    return sorted(found.values())


def write_stubs(wheels: Iterable[LockedWheel], directory: Path) -> list[str]:
    """Build the stub wheels that are among them; the directory, if there are any."""
    built = False
    for wheel in wheels:
        version = wheel.file.split("-")[1]
        if wheel.project == "vllm" and stub_wheel_sha256(version) == wheel.sha256:
            (directory / wheel.file).write_bytes(stub_wheel_bytes(version))
            built = True
    return [str(directory)] if built else []


def gather(spec: dict[str, Any]) -> dict[str, Any] | None:
    """What the host program's `wheels gather` answers; None after its refusal has been printed.

    The same program as on a host: one way to download, resume and verify.
    """
    from pyinfra_deploy.operations import packing

    with tempfile.TemporaryDirectory() as work:
        program = Path(work) / "fleet-host"
        program.write_bytes(packing.host_program())
        done = subprocess.run(
            [sys.executable, str(program), "wheels", "gather"],
            input=json.dumps(spec),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    document: dict[str, Any] = json.loads(done.stdout)
    if done.returncode == 0:
        return document
    error = document["error"]
    print(f"{error['what']}\n  why: {error['why']}\n  fix: {error['fix']}", file=sys.stderr)
    for line in error["detail"]:
        print(f"  | {line}", file=sys.stderr)
    return None
