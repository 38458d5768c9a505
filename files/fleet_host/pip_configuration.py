"""Where this host's pip would look for packages, for settings that leave it to the host.

The rules are few (https://pip.pypa.io/en/stable/topics/configuration/): global, then user, then
PIP_CONFIG_FILE, then PIP_*; the last one wins. Read here because a host may have no pip.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .installer import Sources

if TYPE_CHECKING:
    from collections.abc import Mapping

PYPI = "https://pypi.org/simple"
OPTIONS = ("index-url", "extra-index-url", "find-links", "cert", "no-index")
# pip's, utils/misc.py strtobool
TRUE = ("1", "y", "yes", "t", "true", "on")


def files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files in the order in which they are read."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME", "/nonexistent"))
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    found = [Path(one) / "pip/pip.conf" for one in xdg_directories(environ)]
    found += [Path("/etc/pip.conf"), home / ".pip/pip.conf", user / "pip/pip.conf"]
    return [*found, Path(named)] if named else found


def xdg_directories(environ: Mapping[str, str]) -> list[str]:
    return [one for one in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if one]


def options(environ: Mapping[str, str]) -> dict[str, str]:
    """Of OPTIONS those that are set, as `pip download` would see them."""
    found: dict[str, str] = {}
    for path in files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, OSError):
            continue  # pip itself refuses such a file, in its own words
        for section in ("global", "download"):
            if parser.has_section(section):
                found |= {
                    key.lower().replace("_", "-"): value for key, value in parser.items(section)
                }
    for option in OPTIONS:
        value = environ.get("PIP_" + option.upper().replace("-", "_"))
        if value:
            found[option] = value
    return {option: found[option] for option in OPTIONS if found.get(option, "").strip()}


def complete(sources: Sources, environ: Mapping[str, str]) -> tuple[Sources, str | None]:
    """The sources with what the host's own configuration says where they say nothing, as pip does
    it; and the file of CA certificates that it names."""
    own = options(environ)
    index = sources.index_url or own.get("index-url", PYPI).split()[0]
    if own.get("no-index", "").lower() in TRUE and sources.index_url is None:
        index = ""
    whole = Sources(
        index_url=index or None,
        extra_index_urls=sources.extra_index_urls or own.get("extra-index-url", "").split(),
        find_links=[*sources.find_links, *own.get("find-links", "").split()],
        arguments=[],
    )
    return whole, environ.get("SSL_CERT_FILE") or own.get("cert")
