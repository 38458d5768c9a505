"""The machine's apt configuration, as far as it says where Debian's packages come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.passed_on import PassedOn, copy_file

if TYPE_CHECKING:
    from pathlib import Path

CODENAMES = ("bullseye", "bookworm", "trixie", "forky")
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Which of apt's settings say how to fetch. Hooks, post-invoke commands and cleaning rules belong
# to the machine and stay there.
FETCH_SETTINGS = re.compile(
    r"Acquire::(http|https|Check-Valid-Until|Check-Date|Retries|ForceIPv4|ForceIPv6|Languages"
    r"|GzipIndexes|AllowInsecureRepositories|Max-FutureTime)(::|\s)",
    re.IGNORECASE,
)
_FILE_SETTING = re.compile(r'::(?:CaInfo|SslCert|SslKey)\s+"(/[^"]+)";', re.IGNORECASE)
_SUITE = re.compile(rf"(?:{'|'.join(CODENAMES)})(-updates|-security)?")


@dataclass(frozen=True)
class Source:
    """One apt source: an archive and the suites and components taken from it."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None = None
    trusted: bool = False


DEFAULT_SOURCES = (
    Source(
        ("http://deb.debian.org/debian",),
        ("bookworm", "bookworm-updates"),
        ("main",),
        DEBIAN_KEYRING,
    ),
    Source(
        ("http://deb.debian.org/debian-security",),
        ("bookworm-security",),
        ("main",),
        DEBIAN_KEYRING,
    ),
)


def parse_deb822(text: str) -> list[Source]:
    """Enabled sources of a .sources file: sources.list(5), DEB822-STYLE FORMAT."""
    found = []
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0] in " \t":
                fields[key] = f"{fields.get(key, '')}\n{line.strip()}"
                continue
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes") != "no":
            signed_by = fields.get("signed-by")
            found.append(
                Source(
                    tuple(fields.get("uris", "").split()),
                    tuple(fields.get("suites", "").split()),
                    tuple(fields.get("components", "").split()),
                    signed_by.strip() if signed_by else None,
                    fields.get("trusted") == "yes",
                )
            )
    return found


def parse_one_line(text: str) -> list[Source]:
    """Sources of a .list file: `deb [ option=value ] URI SUITE COMPONENT...`."""
    found = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)\s*([^#]*)", line.strip())
        if match:
            options = dict(
                option.split("=", 1) for option in (match[1] or "").split() if "=" in option
            )
            found.append(
                Source(
                    (match[2],),
                    (match[3],),
                    tuple(match[4].split()),
                    options.get("signed-by"),
                    options.get("trusted") == "yes",
                )
            )
    return found


def is_debian(source: Source) -> bool:
    """Debian's own archive or a mirror of it, not somebody's repository for Debian."""
    network = [uri for uri in source.uris if re.match(r"https?://", uri)]
    return (
        bool(network)
        and bool(source.suites)
        and all(_SUITE.fullmatch(suite) for suite in source.suites)
        and "main" in source.components
        and (
            source.signed_by is None
            or "debian-archive" in source.signed_by
            or all("debian" in uri for uri in network)
        )
    )


def for_suite(sources: list[Source], suite: str) -> list[Source]:
    """Debian's sources among `sources`, their codename replaced; defaults if there is none."""
    chosen: list[Source] = []
    for source in [source for source in sources if is_debian(source)] or DEFAULT_SOURCES:
        suites = tuple(
            dict.fromkeys(re.sub(r"^[a-z]+", suite, name, count=1) for name in source.suites)
        )
        moved = Source(source.uris, suites, source.components, source.signed_by, source.trusted)
        if moved not in chosen:
            chosen.append(moved)
    return chosen


def render_deb822(sources: list[Source]) -> str:
    stanzas = []
    for source in sources:
        lines = [
            "Types: deb",
            f"URIs: {' '.join(source.uris)}",
            f"Suites: {' '.join(source.suites)}",
            f"Components: {' '.join(source.components)}",
        ]
        if source.signed_by:
            # An embedded key is a block of continuation lines; "." stands for an empty one.
            lines.append("Signed-By: " + source.signed_by.replace("\n", "\n "))
        if source.trusted:
            lines.append("Trusted: yes")
        stanzas.append("\n".join(lines) + "\n")
    return "\n".join(stanzas)


def machine_sources(root: Path) -> list[Source]:
    """All sources of the machine, whoever's they are."""
    found = []
    lists = [root / "etc/apt/sources.list", *sorted((root / "etc/apt/sources.list.d").glob("*"))]
    for path in lists:
        if path.is_file() and path.suffix in (".list", ".sources"):
            text = path.read_text(errors="replace")
            found += parse_deb822(text) if path.suffix == ".sources" else parse_one_line(text)
    return found


def fetch_settings(apt_config_dump: str) -> str:
    """The lines of `apt-config dump` that say how to fetch, as an apt.conf."""
    lines = [
        line
        for line in apt_config_dump.splitlines()
        if FETCH_SETTINGS.match(line) and not line.endswith(' "";')
    ]
    return "".join(f"{line}\n" for line in lines)


def pass_on_apt(result: PassedOn, root: Path, apt_config_dump: str) -> str:
    """Add files that apt's sources and settings name. Returns the settings as an apt.conf."""
    settings = fetch_settings(apt_config_dump)
    for path in _FILE_SETTING.findall(settings):
        copy_file(result, root, path, 0o640 if "key" in path.lower() else 0o644)
    for source in machine_sources(root):
        named = source.signed_by or ""
        if is_debian(source) and named.startswith("/") and named != DEBIAN_KEYRING:
            copy_file(result, root, named)
    for path in auth_files(root):
        copy_file(result, root, path, 0o600)
    return settings


def auth_files(root: Path) -> list[str]:
    """Files with credentials for archives: apt_auth.conf(5)."""
    found = [root / "etc/apt/auth.conf", *sorted((root / "etc/apt/auth.conf.d").glob("*.conf"))]
    return [f"/{path.relative_to(root)}" for path in found if path.is_file()]
