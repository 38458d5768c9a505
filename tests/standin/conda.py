#!/usr/bin/python3
# ruff: noqa: S310 -- it opens channels, which are https, http or file
"""A stand-in for conda 26.7.1 with conda-anaconda-tos 0.2.2: what the deploy asks of them, traps
included, with environments that really run. Standard library only; it is copied to PREFIX/bin/conda
(tests/standin/conda_channel.py does, and makes its channels).

    conda --version
    conda create [--yes] --prefix P --override-channels --channel C... --file EXPLICIT
    conda tos accept [--ignore-cache] --override-channels --channel C... [--json] [--site|...]

An environment is a venv of the host's python3.N, N as in the lock, laid out with conda-meta/history
and a record for each package. Packages are fetched and their SHA-256 compared.

PREFIX/standin.json switches what depends on how a real one is installed or what happens to it:
  no_plugin       `conda tos` is not known, nothing is checked
  auto_accept     plugins.auto_accept_tos in a .condarc: accepts in silence
  serves          {channel: URL it is served at instead}, for channels that tests cannot reach
  forgets         accept says tos_accepted, and its file is not there afterwards
  hangs_at        "download" (half a package is in the cache then), "fetch", "link" or "done": it
                  writes its process there into standin.hangs, beside this file or, where it may
                  not, in its home, and waits
  fails_at        the same places: prints what is under "says" and exits 1
PREFIX/calls.jsonl gets each call's arguments and environment, where it can be written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

VERSION = "26.7.1"
ROOT = Path(__file__).resolve().parents[1]
CACHE_SECONDS = 3600
URL = re.compile(
    r"(?P<channel>.+)/(?P<subdir>[^/]+)/(?P<file>[^/#]+(?:\.conda|\.tar\.bz2))"
    r"(?:#(?P<md5>[0-9a-f]{32})$|#(?:sha256:)?(?P<sha256>[0-9a-f]{64})$|$)"
)
# conda_anaconda_tos.api of 0.2.2 and later: any of these says that a CI system runs conda.
CI_VARIABLES = ("APPVEYOR", "BUILDKITE", "CI", "CIRCLECI", "GITHUB_ACTIONS", "GITLAB_CI",
                "TF_BUILD", "TRAVIS")  # fmt: skip
CI_PRESENT = ("CODEBUILD_BUILD_ID", "JENKINS_URL", "TEAMCITY_VERSION")


def switches() -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((ROOT / "standin.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def fail(name: str, text: str) -> NoReturn:
    """As conda ends for an error: class and words on stderr, exit 1."""
    print(f"\n{name}: {text}", file=sys.stderr)
    sys.exit(1)


def boolify(text: str | None) -> bool:
    return (text or "").strip().lower() in ("1", "true", "yes", "on", "y")


# --- terms


def hash_of(channel: str) -> str:
    rest = channel.partition("://")[2]
    place, _, name = rest.rpartition("/") if channel.startswith("file:") else rest.partition("/")
    return hashlib.sha256((place + name).encode()).hexdigest()


def roots() -> list[Path]:
    texts = ("/etc/conda/tos", "/var/lib/conda/tos", str(ROOT / "conda-meta/tos"),
             "$XDG_CONFIG_HOME/conda/tos", "~/.config/conda/tos", "~/.conda/tos",
             "$CONDA_PREFIX/conda-meta/tos", "$CONDATOS")  # fmt: skip
    paths = [Path(os.path.expandvars(text)).expanduser() for text in texts]
    return [path for path in paths if path.is_dir()]


def local_terms(channel: str) -> dict[str, Any] | None:
    """The newest file of the channel, the earlier root's of two that are equal."""
    best: dict[str, Any] | None = None
    for root in roots():
        for path in sorted((root / hash_of(channel)).glob("*.json")):
            try:
                found = json.loads(path.read_text())
            except ValueError:
                continue
            if "tos_accepted" in found and (best is None or moment(found) > moment(best)):
                best = found
    return best


def moment(terms: dict[str, Any]) -> float:
    return datetime.fromisoformat(str(terms["version"]).replace("Z", "+00:00")).timestamp()


def remote_terms(channel: str, ignore_cache: bool) -> dict[str, Any] | None:
    """None where there are none, they are malformed, or out of reach: all three are the same, and
    are remembered for an hour."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    cache = Path(home, "conda-anaconda-tos", f"{hash_of(channel)}.cache")
    if not ignore_cache and cache.exists() and time.time() - cache.stat().st_mtime < CACHE_SECONDS:
        text = cache.read_text()
        return dict(json.loads(text)) if text else None
    cache.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(f"{served(channel)}/terms.json", timeout=10) as answer:
            terms = json.loads(answer.read())
        moment(terms)
        terms = {key: terms[key] for key in ("version", "text", "support")}
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError):
        cache.write_text("")
        return None
    cache.write_text(json.dumps(terms))
    return dict(terms)


def served(channel: str) -> str:
    return str(switches().get("serves", {}).get(channel, channel))


def write_acceptance(channel: str, terms: dict[str, Any], root: Path) -> dict[str, Any]:
    now = datetime.now(timezone.utc).isoformat()  # noqa: UP017 - hosts have 3.10 too
    metadata = {**terms, "base_url": channel, "tos_accepted": True, "acceptance_timestamp": now}
    path = root / hash_of(channel) / f"{moment(terms)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(metadata))
    if switches().get("forgets"):
        path.unlink()
    return metadata


def accept(arguments: argparse.Namespace) -> None:
    root = Path(arguments.root).expanduser()
    answer: dict[str, Any] = {}
    for channel in arguments.channel or []:
        terms = remote_terms(channel, arguments.ignore_cache) or local_terms(channel)
        if terms is None:
            # Trap: nothing was accepted, and the exit code is 0.
            answer[channel] = None
            if not arguments.json:
                print(f"Terms of Service not found for {channel}")
            continue
        known = {key: terms[key] for key in ("version", "text", "support")}
        answer[channel] = write_acceptance(channel, known, root)
        if not arguments.json:
            print(f"accepted Terms of Service for {channel}")
    if arguments.json:
        print(json.dumps(answer, indent=2))


def is_ci() -> bool:
    values = [os.environ.get(name) for name in CI_VARIABLES]
    if any(value and not boolify(value) for value in values):
        return False
    return any(map(boolify, values)) or any(os.environ.get(name) for name in CI_PRESENT)


def check_terms(channels: list[str]) -> None:
    """What the plugin does before create."""
    if switches().get("no_plugin"):
        return
    told = os.environ.get("CONDA_PLUGINS_AUTO_ACCEPT_TOS")
    automatic = boolify(told) if told is not None else bool(switches().get("auto_accept"))
    pending = []
    for channel in channels:
        remote, local = remote_terms(channel, ignore_cache=False), local_terms(channel)
        if remote is None and local is None:
            continue  # trap: terms out of reach are no terms
        if local is not None and (remote is None or moment(local) >= moment(remote)):
            if not local["tos_accepted"]:
                fail(
                    "CondaToSRejectedError",
                    "Terms of Service has been rejected for the following channels. Please remove "
                    f"or accept them before proceeding:\n    - {channel}",
                )
            continue
        if automatic or is_ci():
            assert remote is not None
            write_acceptance(channel, remote, Path("~/.conda/tos").expanduser())
        else:
            pending.append(channel)
    if pending:
        listed = "\n".join(f"    - {channel}" for channel in pending)
        fail(
            "CondaToSNonInteractiveError",
            "Terms of Service have not been accepted for the following channels. Please accept or "
            f"remove them before proceeding:\n{listed}\n",
        )


# --- environments


def at(place: str) -> None:
    """Where a test has conda stop."""
    now = switches()
    if now.get("fails_at") == place:
        fail(*now["says"])
    if now.get("hangs_at") == place:
        directory = ROOT if os.access(ROOT, os.W_OK) else Path.home()
        (directory / "standin.hangs").write_text(str(os.getpid()))
        time.sleep(600)


def create(arguments: argparse.Namespace) -> None:
    check_terms(arguments.channel or [])
    prefix = Path(arguments.prefix)
    if (prefix / "conda-meta" / "history").exists():
        print(f"WARNING: A conda environment already exists at '{prefix}'")
        if not arguments.yes:
            # Trap: asks, gets no answer, and ends well having done nothing.
            print("Remove existing environment? This will remove ALL directories contained (y/[n])")
            return
        shutil.rmtree(prefix)  # trap: --yes deletes it
    lines = Path(arguments.file).read_text().split("\n")
    if "@EXPLICIT" not in (line.strip() for line in lines):
        fail("ResolvePackageNotFound", "this stand-in does not solve")
    packages = [
        match for line in lines if (match := URL.match(line.strip())) and line.strip()[:1] != "#"
    ]
    cache = Path(os.environ.get("CONDA_PKGS_DIRS") or ROOT / "pkgs")
    cache.mkdir(parents=True, exist_ok=True)
    print("\nDownloading and Extracting Packages:")
    for package in packages:
        fetch(package, cache)
    at("fetch")
    print("Preparing transaction: ...working... done")
    link(prefix, packages, cache)
    at("done")
    print("Executing transaction: ...working... done")


def fetch(package: re.Match[str], cache: Path) -> None:
    place = cache / package["file"]
    if place.exists():
        return  # trap: what a kill left there half is taken for whole
    url = f"{served(package['channel'])}/{package['subdir']}/{package['file']}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            content = answer.read()
    except (OSError, urllib.error.URLError) as error:
        fail("CondaHTTPError", f"HTTP 000 CONNECTION FAILED for url <{url}>: {error}")
    found = hashlib.sha256(content).hexdigest()
    if package["sha256"] and found != package["sha256"]:
        fail("ChecksumMismatchError", f"Conda detected a mismatch between the expected content and "
             f"downloaded content\n  for url '{url}'.\n  expected sha256: {package['sha256']}\n"
             f"  actual sha256: {found}")  # fmt: skip
    place.write_bytes(content[: len(content) // 2])
    at("download")
    place.write_bytes(content)


def stem(package: re.Match[str]) -> str:
    return re.sub(r"\.(conda|tar\.bz2)$", "", package["file"])


def link(prefix: Path, packages: list[re.Match[str]], cache: Path) -> None:
    stems = [stem(package) for package in packages]
    python = next(one for one in stems if re.match(r"python-\d", one)).split("-")[1]
    program = f"/usr/bin/python{'.'.join(python.split('.')[:2])}"
    meta = prefix / "conda-meta"
    meta.mkdir(parents=True)
    (meta / "history").write_text("")
    at("link")
    options = [] if any(one.startswith("pip-") for one in stems) else ["--without-pip"]
    subprocess.run([program, "-I", "-m", "venv", *options, str(prefix)], check=True)
    for package in packages:
        content = (cache / package["file"]).read_bytes()
        record = {
            "fn": package["file"],
            "url": package[0].split("#")[0],
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        (meta / f"{stem(package)}.json").write_text(json.dumps(record))
    (meta / "history").write_text(f"==> {time.strftime('%F %T')} <==\n# conda version: {VERSION}\n")


# --- arguments


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="conda")
    made.add_argument("--version", action="version", version=f"conda {VERSION}")
    commands = made.add_subparsers(dest="command", required=True)
    one = commands.add_parser("create")
    one.add_argument("--yes", "-y", action="store_true")
    one.add_argument("--prefix", "-p", required=True)
    one.add_argument("--file", required=True)
    _channels(one)
    one.set_defaults(run=create)
    if not switches().get("no_plugin"):
        tos = (
            commands.add_parser("tos")
            .add_subparsers(dest="cmd", required=True)
            .add_parser("accept")
        )
        tos.add_argument("--ignore-cache", action="store_true")
        tos.add_argument("--json", action="store_true")
        for option, root in (("--site", "/etc/conda/tos"), ("--user", "~/.conda/tos"),
                             ("--system", str(ROOT / "conda-meta/tos"))):  # fmt: skip
            tos.add_argument(option, dest="root", action="store_const", const=root)
        _channels(tos)
        tos.set_defaults(run=accept, root="~/.conda/tos")
    return made


def _channels(command: argparse.ArgumentParser) -> None:
    command.add_argument("--channel", "-c", action="append")
    command.add_argument("--override-channels", action="store_true")


def main() -> int:
    try:
        with (ROOT / "calls.jsonl").open("a") as log:
            log.write(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}) + "\n")
    except OSError:
        pass  # a conda that belongs to root; what it is asked is in the tests that own theirs
    arguments = parser().parse_args()
    arguments.run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
