"""Files of a size that one can hold in mind, and nothing of the machine they were written on."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lab import apt_config, pip_config
from tests.unit.tree.sources import ROOT, project_files

MOST_LINES = 400
LONGER = {
    "files/fleet_host/snapshot.py": "runs alone, its text given to a bare interpreter",
}
CODE = {".py", ".j2", ".sh", ""}

# Where anybody's packages come from.
PUBLIC = {
    *("pypi.org", "files.pythonhosted.org", "download.pytorch.org"),
    *("deb.debian.org", "security.debian.org", "archive.debian.org"),
    *("archive.ubuntu.com", "security.ubuntu.com"),
}
# Home directories of people, and where a checkout lies; "me" and "llm" are nobody's.
HOMES = re.compile(r"/(?:home|Users)/(?!me/|llm\b)[a-z][\w.-]*/|(?<![\w/}])/root/")


@cache
def texts() -> list[tuple[str, str]]:
    found = []
    for path in project_files():
        name = path.relative_to(ROOT).as_posix()
        try:
            found.append((name, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue  # a recorded output, or an image: no text of ours
    return found


def test_no_file_of_code_is_longer_than_four_hundred_lines() -> None:
    too_long = {
        name: len(text.splitlines())
        for name, text in texts()
        if Path(name).suffix in CODE and name not in LONGER and name != "LICENSE"
        and len(text.splitlines()) > MOST_LINES
    }  # fmt: skip
    assert too_long == {}


@pytest.mark.parametrize("name", LONGER)
def test_an_exception_is_still_one(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) > MOST_LINES


def places_of_this_machine() -> set[str]:
    """Hosts and directories that this machine's package programs fetch from, this checkout's own
    directory, and the home of who runs this: names that would say where a text was written."""
    files = pip_config.config_files(Path("/"), Path.home(), os.environ)
    options = pip_config.effective_options(files, os.environ)
    values = [
        value
        for option in ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy")
        for value in pip_config.values_of(options, option)
    ]
    variables = ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "http_proxy",
                 "https_proxy", "GOPROXY", "npm_config_registry")  # fmt: skip
    values += [word for name in variables for word in os.environ.get(name, "").split()]
    values += [uri for source in apt_config.machine_sources(Path("/")) for uri in source.uris]
    # A checkout in a directory such as /app has a name that a text may use for something else.
    places = {str(ROOT)} if len(ROOT.parts) > 2 else set()
    for value in values:
        parts = urlsplit(value if "//" in value else f"//{value}")
        if parts.hostname and parts.hostname not in PUBLIC | {"localhost", "127.0.0.1"}:
            places.add(parts.hostname)
        if parts.scheme in ("", "file") and parts.path.count("/") > 1:
            places.add(parts.path)
    return places


def test_nothing_names_the_machine_it_was_written_on() -> None:
    places = places_of_this_machine()
    named = [f"{name} names {place}" for name, text in texts() for place in places if place in text]
    assert named == []


def test_no_home_directory_of_anybody_is_named() -> None:
    named = [
        f"{name}: {match[0]}"
        for name, text in texts()
        if not name.startswith("tests/unit/tree/")
        if "/home/" in text or "/Users/" in text or "/root/" in text
        for match in [HOMES.search(text)]
        if match
    ]
    assert named == []
