"""The machine's effective pip configuration, for pip and for uv in the hosts.

Read from the files and variables themselves and not through `pip config list`: the lab may run in
an environment without pip, and the rules are few (https://pip.pypa.io/en/stable/topics/configuration/):
global, then user, then PIP_CONFIG_FILE, then PIP_*; the last one wins.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lab.passed_on import FileCopy, PassedOn, copy_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Where to fetch from and how. Options on where to install or what to print are the machine's own.
PASSED_OPTIONS = frozenset(
    {
        "index-url",
        "extra-index-url",
        "find-links",
        "no-index",
        "trusted-host",
        "cert",
        "client-cert",
        "proxy",
        "timeout",
        "retries",
        "constraint",
        "build-constraint",
        "only-binary",
        "prefer-binary",
        "disable-pip-version-check",
    }
)
_LISTS = frozenset({"extra-index-url", "find-links", "trusted-host", "constraint"})
_TRUE = frozenset({"1", "y", "yes", "t", "true", "on"})  # pip's, utils/misc.py strtobool
Options = dict[str, dict[str, str]]
"""Section ("global", "install", ...) -> option -> value."""


def config_files(root: Path, home: Path, environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files in the order in which they are read."""
    if environ.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    system = [
        root / directory.lstrip("/") / "pip/pip.conf"
        for directory in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
        if directory
    ]
    user_config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        *system,
        root / "etc/pip.conf",
        home / ".pip/pip.conf",
        user_config / "pip/pip.conf",
    ]
    if environ.get("PIP_CONFIG_FILE"):
        files.append(Path(environ["PIP_CONFIG_FILE"]))
    return files


def normal_name(option: str) -> str:
    name = option.lower().replace("_", "-")
    name = name.removeprefix("--")
    return "timeout" if name == "default-timeout" else name


def effective_options(files: Iterable[Path], environ: Mapping[str, str]) -> Options:
    """What pip would use, limited to PASSED_OPTIONS."""
    options: Options = {}
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            read = parser.read(path, encoding="utf-8")
        except configparser.Error:
            continue  # pip itself refuses such a file: the operator knows of it
        if read:
            for section in parser.sections():
                for option, value in parser.items(section):
                    if normal_name(option) in PASSED_OPTIONS:
                        options.setdefault(section, {})[normal_name(option)] = value.strip()
    for variable, value in environ.items():
        option = normal_name(variable.removeprefix("PIP_"))
        if variable.startswith("PIP_") and option in PASSED_OPTIONS and value:
            options.setdefault("global", {})[option] = value
            for section, values in options.items():
                if section != "global":
                    values.pop(option, None)  # the variable wins over every section
    return {section: values for section, values in options.items() if values}


def values_of(options: Options, option: str) -> list[str]:
    """All values of an option that takes several, over all sections, without repeats."""
    found: list[str] = []
    for section in options.values():
        value = section.get(option, "")
        found += value.split() if option in _LISTS else ([value] if value else [])
    return list(dict.fromkeys(found))


def local_path(value: str) -> str | None:
    """The path behind a file: URL or an absolute path; None for anything on the network."""
    if value.startswith("file:"):
        return unquote(urlsplit(value).path)
    return value if value.startswith("/") else None


def directories_to_bind(options: Options) -> list[str]:
    """Local directories that pip would read packages from.

    The pages of a simple index name files beside it (../../files/...): its parent is bound.
    """
    found: list[str] = []
    for option in ("index-url", "extra-index-url", "find-links"):
        for value in values_of(options, option):
            path = local_path(value)
            if path is None:
                continue
            directory = Path(path.rstrip("/") or "/")
            if directory.suffix == ".html":
                directory = directory.parent
            if directory.name == "simple" and directory.parent != Path("/"):
                directory = directory.parent
            if directory != Path("/"):
                found.append(str(directory))
    unique = sorted(set(found))
    return [
        path
        for path in unique
        if not any(path.startswith(f"{other}/") for other in unique if other != path)
    ]


def render_pip_conf(options: Options) -> str:
    lines = ["# Written by the lab from this machine's pip configuration."]
    for section, values in options.items():
        lines.append(f"[{section}]")
        for option, value in sorted(values.items()):
            words = value.split() if option in _LISTS else [value]
            lines.append(f"{option} = " + "\n    ".join(words))
    return "\n".join(lines) + "\n"


def render_uv_toml(options: Options) -> str:
    """uv reads no pip.conf; the same sources in its own words.

    index-strategy: pip takes the best version over all indexes, uv by default only looks at the
    first index that has the name (https://docs.astral.sh/uv/concepts/indexes/).
    """

    def text(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def texts(values: list[str]) -> str:
        return "[" + ", ".join(text(value) for value in values) + "]"

    lines = ["# Written by the lab from this machine's pip configuration."]
    index = values_of(options, "index-url")
    extra = values_of(options, "extra-index-url")
    links = values_of(options, "find-links")
    trusted = values_of(options, "trusted-host")
    if index:
        lines.append(f"index-url = {text(index[-1])}")
    if extra:
        lines.append(f"extra-index-url = {texts(extra)}")
        lines.append('index-strategy = "unsafe-best-match"')
    if links:
        lines.append(f"find-links = {texts(links)}")
    if trusted:
        lines.append(f"allow-insecure-host = {texts(trusted)}")
    if any(value.lower() in _TRUE for value in values_of(options, "no-index")):
        lines.append("no-index = true")
    return "\n".join(lines) + "\n"


def pass_on_pip(
    result: PassedOn, root: Path, home: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Add pip.conf, uv.toml and what they name. Returns variables that uv needs besides."""
    options = effective_options(config_files(root, home, environ), environ)
    if options:
        result.files["/etc/pip.conf"] = FileCopy(render_pip_conf(options).encode())
    for option in ("cert", "client-cert", "constraint", "build-constraint"):
        for value in values_of(options, option):
            path = local_path(value)
            if path and path != "/etc/ssl/certs/ca-certificates.crt":
                copy_file(result, root, path)
    for path in directories_to_bind(options):
        if (root / path.lstrip("/")).is_dir():
            result.binds.append(path)
        else:
            result.warnings.append(f"pip is configured to read {path}, which is no directory here")
    own = [root / "etc/uv/uv.toml", home / ".config/uv/uv.toml"]
    own_text = next((path.read_text() for path in own if path.is_file()), None)
    uv_text = own_text if own_text is not None else render_uv_toml(options)
    if uv_text.count("\n") > 1:
        result.files["/etc/uv/uv.toml"] = FileCopy(uv_text.encode())
    # No UV_CONSTRAINT: with it uv refuses --require-hashes, as constraints have no hashes (0.13).
    return {
        name: value
        for name, value in environ.items()
        if name in {"UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"} and value
    }
