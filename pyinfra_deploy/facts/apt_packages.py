"""NVIDIA packages, and whether something may upgrade them under the loaded module.

unattended-upgrades takes an upgrade when its origin is allowed and neither a hold nor the blacklist
keeps the package (https://github.com/mvo5/unattended-upgrades, README).
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, replace

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.hardware import Package

_NVIDIA = re.compile(r"nvidia|^libcuda1|^cuda-(?:compat|drivers)|^libnv(?:cuvid|optix|idia)")
_DPKG_L = re.compile(r"^([uihrp][ncHUFWti])[R ]?\s+(\S+)\s+(\S+)")
_CONFIGURED = re.compile(r'^([\w:./-]+?)(?:::)?\s+"(.*)";\s*$')
_COMPAT = re.compile(r"cuda-compat-([0-9]{1,4})-([0-9]{1,4})$")
_SOURCE = re.compile(r"^\s+-?\d+ (\S.*?)(?:\s+Packages)?\s*$")
_RELEASE = re.compile(r"^\s+release (.*)$")
_SITE = re.compile(r"^\s+origin (.*)$")


def parse_dpkg(text: str) -> dict[str, Package]:
    """`dpkg -l`, or lines "name TAB version TAB status" of dpkg-query: installed packages by name.

    A package that dpkg holds ("hi") is held.
    """
    found: dict[str, Package] = {}
    lines = 0
    for line in text.splitlines():
        tabs = line.split("\t")
        if len(tabs) == 3:
            name, version, status = tabs
        else:
            match = _DPKG_L.match(line)
            if match is None:
                continue
            status, name, version = match.groups()
        lines += 1
        name = name.split(":")[0]
        if status[1:2] == "i":
            found[name] = Package(name, version, held=status[:1] == "h")
    if text.strip() and not lines:
        raise UnreadableOutput("it has no line of dpkg")
    return found


def nvidia_packages(packages: dict[str, Package]) -> tuple[Package, ...]:
    return tuple(packages[name] for name in sorted(packages) if _NVIDIA.search(name))


def compat_version(packages: tuple[Package, ...]) -> str | None:
    """The newest CUDA version of an installed cuda-compat-MAJOR-MINOR, "13.0"."""
    found = [
        (int(match.group(1)), int(match.group(2)))
        for package in packages
        if (match := _COMPAT.match(package.name))
    ]
    return "{}.{}".format(*max(found)) if found else None


def parse_holds(text: str) -> frozenset[str]:
    """`apt-mark showhold`: one name a line."""
    return frozenset(line.split(":")[0].strip() for line in text.splitlines() if line.strip())


@dataclass(frozen=True)
class Unattended:
    """The configuration of unattended-upgrades. origins: patterns, each a mapping of o, a, n, l, c
    or site to a glob, all of which must match."""

    enabled: bool
    origins: tuple[dict[str, str], ...] = ()
    blacklist: tuple[str, ...] = ()


_LONG = {
    "origin": "o",
    "archive": "a",
    "suite": "a",
    "codename": "n",
    "label": "l",
    "component": "c",
    "site": "site",
}


def parse_apt_config(text: str, codename: str | None = None, distribution: str = "") -> Unattended:
    """`apt-config dump`. Raises UnreadableOutput when it is something else."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = _CONFIGURED.match(line)
        if match and match.group(2):
            values.setdefault(match.group(1).rstrip(":"), []).append(match.group(2))
    if text.strip() and not values:
        raise UnreadableOutput("it has no line of `apt-config dump`")
    names = {"distro_codename": codename or "*", "distro_id": distribution or "*"}

    def plain(pattern: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda m: names.get(m.group(1), "*"), pattern)

    origins = [
        _pattern(plain(text)) for text in values.get("Unattended-Upgrade::Origins-Pattern", ())
    ]
    for text in values.get("Unattended-Upgrade::Allowed-Origins", ()):
        origin, _, archive = plain(text).partition(":")
        origins.append({"o": origin.strip(), "a": archive.strip() or "*"})
    switch = values.get("APT::Periodic::Unattended-Upgrade", ["0"])[-1]
    return Unattended(
        switch not in ("", "0"),
        tuple(origins),
        tuple(values.get("Unattended-Upgrade::Package-Blacklist", ())),
    )


def _pattern(text: str) -> dict[str, str]:
    parts = [part.strip().partition("=") for part in text.split(",")]
    return {_LONG.get(name.strip(), name.strip()): value.strip() for name, _, value in parts}


def parse_policy(text: str) -> dict[str, list[dict[str, str]]]:
    """`apt-cache policy` without and with package names, after one another: package -> the
    repositories it comes from, each with o, a, n, l, c and site."""
    repositories: dict[str, dict[str, str]] = {}
    packages: dict[str, list[str]] = {}
    package, source = None, None
    for line in text.splitlines():
        if re.match(r"^\S.*:$", line):
            package, source = line[:-1].split(":")[0], None
            if package not in ("Package files", "Pinned packages"):
                packages.setdefault(package, [])
            continue
        match = _SOURCE.match(line)
        if match:
            source = match.group(1)
            if package in packages:
                packages[package].append(source)
            else:
                repositories.setdefault(source, {})
        elif source and source in repositories:
            release, site = _RELEASE.match(line), _SITE.match(line)
            if release:
                parts = [part.partition("=") for part in release.group(1).split(",")]
                repositories[source].update({name: value for name, _, value in parts})
            elif site:
                repositories[source]["site"] = site.group(1).strip()
    if text.strip() and not repositories and not packages:
        raise UnreadableOutput("it has no line of `apt-cache policy`")
    return {
        name: [repositories[source] for source in sources if source in repositories]
        for name, sources in packages.items()
    }


def judge(
    packages: tuple[Package, ...],
    holds: frozenset[str],
    unattended: Unattended | None,
    installed: bool,
    policy: dict[str, list[dict[str, str]]] | None,
) -> tuple[Package, ...]:
    """The packages with held and upgradable_unattended. installed: unattended-upgrades is there."""
    judged = []
    for package in packages:
        held = package.held or package.name in holds
        exposed: bool | None
        if held or not installed:
            exposed = False
        elif unattended is None:
            exposed = None
        elif not unattended.enabled or _blacklisted(package.name, unattended.blacklist):
            exposed = False
        elif policy is None or package.name not in policy:
            exposed = None
        else:
            exposed = any(_allowed(origin, unattended.origins) for origin in policy[package.name])
        judged.append(replace(package, held=held, upgradable_unattended=exposed))
    return tuple(judged)


def _blacklisted(name: str, patterns: tuple[str, ...]) -> bool:
    """Regular expressions, matched from the beginning (re.match in unattended-upgrades)."""
    for pattern in patterns:
        try:
            if re.match(pattern, name):
                return True
        except re.error:
            continue  # unattended-upgrades cannot use it either
    return False


def _allowed(origin: dict[str, str], patterns: tuple[dict[str, str], ...]) -> bool:
    return any(
        all(fnmatch.fnmatchcase(origin.get(key, ""), glob) for key, glob in pattern.items())
        for pattern in patterns
    )
