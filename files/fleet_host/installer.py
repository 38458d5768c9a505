"""uv or pip, run so that only what the lock names, with its hash, can get into an environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from . import child
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;\\]+)")
DIRECT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*@\s*(\S+)")
# Arguments of an operator that would undo what the lock promises.
FORBIDDEN_ARGUMENTS = re.compile(
    r"--(no-require-hashes|no-verify-hashes|target|prefix|root|user|no-binary|editable|requirement|"
    r"upgrade|system|python|break-system-packages)(=|$)|-[retU]|[^-]"
)
# Variables that name further places to install from.
ELSEWHERE = re.compile(r"(PIP|UV)_(\w*INDEX\w*|FIND_LINKS|CONFIG_FILE|NO_CONFIG)$")
STALL_SECONDS = 1800.0
ANNOUNCED = re.compile(r"^(Collecting|Downloading|Installing|Resolved|Prepared|Installed|Building)")


@dataclass(frozen=True)
class Sources:
    """Where packages come from. May hold passwords: never put into argv, logs or errors.

    wheelhouse: a directory or page that is the only place to be asked.
    """

    index_url: str | None
    extra_index_urls: list[str]
    find_links: list[str]
    arguments: list[str]
    wheelhouse: str | None = None


def locked_packages(requirements: str) -> dict[str, str]:
    """{normalised name: version} of a hash-locked requirements text. SpecError with the line.

    Foresight: the installer refuses most of this too, but after minutes of downloads.
    """
    packages: dict[str, str] = {}
    pending, begun = "", 0
    for number, raw in enumerate(requirements.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not pending:
            begun = number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        whole, pending = (pending + line).strip(), ""
        if whole:
            name, version = _locked(whole, begun)
            packages[name] = version
    if pending.strip():
        raise _lock_problem(begun, "ends in a backslash with nothing after it")
    if not packages:
        raise SpecError("the lock is empty", "it names no package.", "Lock it again.")
    return packages


def _locked(line: str, number: int) -> tuple[str, str]:
    if line.startswith("-"):
        raise _lock_problem(
            number,
            f"is the option {line.split()[0]}; a lock holds packages only, index and find-links "
            "are settings",
        )
    if "--hash=" not in line:
        raise _lock_problem(number, f"{line.split()[0]} has no --hash")
    found = PINNED.match(line) or DIRECT.match(line)
    if found is None:
        raise _lock_problem(number, f"{line.split()[0]} is not pinned with ==")
    return normalised(found[1]), found[2]


def locked_hashes(requirements: str) -> dict[str, tuple[str, list[str]]]:
    """{normalised name: (version, SHA-256 of each file)} of a lock that locked_packages accepts."""
    found = {}
    for name, version in locked_packages(requirements).items():
        found[name] = (version, list[str]())
    for entry in re.sub(r"\\\n", " ", requirements).splitlines():
        match = PINNED.match(entry.strip()) or DIRECT.match(entry.strip())
        if match:
            found[normalised(match[1])][1].extend(
                re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
            )
    return found


def _lock_problem(number: int, what: str) -> SpecError:
    return SpecError(
        f"line {number} of the lock cannot be used",
        f"it {what}." if what.startswith(("is ", "ends ")) else f"{what}.",
        "Make the lock with 'uv pip compile --generate-hashes' (or pip-compile "
        "--generate-hashes --no-emit-index-url --no-emit-find-links).",
    )


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check_arguments(arguments: list[str]) -> None:
    for argument in arguments:
        if FORBIDDEN_ARGUMENTS.match(argument):
            raise SpecError(
                f"pip argument {argument!r} is refused",
                "it would install something other than what the lock says, or somewhere else; "
                "an argument with a value must be written --name=value.",
                "Remove it from the settings.",
            )


def command(
    installer: str, uv: Path | None, python: Path, files: list[Path], arguments: list[str]
) -> list[str]:
    """The command line: no index in it, since an index URL may carry a password."""
    locked = ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
    if installer == "uv":
        argv = [str(uv), "pip", "install", "--python", str(python), "--compile-bytecode"]
    else:
        argv = [str(python), "-m", "pip", "install", "--progress-bar", "off"]
    for file in files:
        argv += ["-r", str(file)]
    return [*argv, *locked, *arguments]


def index_lines(sources: Sources) -> str:
    """The sources as a requirements file, the one way that both installers read alike."""
    if sources.wheelhouse is not None:
        return f"--no-index\n--find-links {sources.wheelhouse}\n"
    lines = [f"--index-url {sources.index_url}"] if sources.index_url else []
    lines += [f"--extra-index-url {url}" for url in sources.extra_index_urls]
    lines += [f"--find-links {place}" for place in sources.find_links]
    return "".join(line + "\n" for line in lines)


def environment(
    cache: Path, temporary: Path, beside: Path, sources: Sources | None = None
) -> dict[str, str]:
    """The installer's environment: this unit's (proxies, CA files, an operator's PIP_ and UV_
    settings) with home, cache and temporary files in the unit's cache directory.

    beside: the directory that holds the environments. uv's cache is there, because uv unpacks into
    its cache and hard-links from it, and a link cannot leave a unit's ReadWritePaths= (EXDEV: each
    is a mount of its own): elsewhere a vLLM of 10 GB would be copied and take twice the disk.
    """
    dropped = ("PYTHON", "VIRTUAL_ENV", "CONDA", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    kept.pop("PIP_NO_BINARY", None)
    if sources is not None and sources.wheelhouse is not None:
        # No index and no directory of the host's own configuration beside it.
        kept = {name: value for name, value in kept.items() if not ELSEWHERE.match(name)}
        kept |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
        kept |= reached_directly(sources.wheelhouse, kept)
    return {
        **kept,
        "HOME": str(cache / "home"),
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(cache),
        "PIP_CACHE_DIR": str(cache / "pip"),
        "UV_CACHE_DIR": str(beside / ".uv-cache"),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "NO_COLOR": "1",
        "LANG": "C.UTF-8",
    }


def reached_directly(place: str, environ: dict[str, str]) -> dict[str, str]:
    """What makes the installers take plain HTTP from a place that the settings name.

    pip ignores a page of another host than this without TLS unless the host is trusted; what comes
    from it is trusted by its hashes alone. An address is one of the own network: no proxy has it.
    """
    parts = urlsplit(place)
    if parts.scheme != "http" or parts.hostname is None:
        return {}
    found = {"PIP_TRUSTED_HOST": parts.netloc.rsplit("@", 1)[-1]}
    if re.fullmatch(r"[0-9.]+|[0-9a-fA-F:]+", parts.hostname):
        others = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        direct = ",".join(filter(None, (others, parts.hostname)))
        found |= {"no_proxy": direct, "NO_PROXY": direct}
    return found


def is_progress(line: str) -> bool:
    return ANNOUNCED.match(line.strip()) is not None


# What the installers print -> (what, why, fix). The first that matches any line wins, so causes
# stand before their consequences: pip ends with "No matching distribution" also when it reached no
# index at all.
CAUSES: list[tuple[re.Pattern[str], str, str]] = [
    (
        re.compile(r"No space left on device|os error 28|Errno 28\]|Disk quota exceeded"),
        "no space is left on the disk",
        "Free space where the environment and the unit's cache are (see 'df -h' and 'df -i'), "
        "then start again.",
    ),
    (
        re.compile(r"DO NOT MATCH THE HASHES|[Hh]ash mismatch"),
        "a package does not have the hash that the lock names",
        "Do not work around this: either the index serves a changed file, or it has another wheel "
        "of that version than the index that the lock was made from. If you trust this index, make "
        "the lock again from it (fleet runtime lock --index-url URL LOCK) and commit it. Else "
        "bring the lock's own files: fleet runtime wheelhouse INVENTORY -o wheels/, then set "
        "runtime.wheelhouse (docs/offline.md).",
    ),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|UnknownIssuer"),
        "the index's certificate is not trusted on this host",
        "Install your CA on the host (update-ca-certificates) and set SSL_CERT_FILE in the unit's "
        "environment, or correct runtime.index_url.",
    ),
    (
        re.compile(r"\b(401|403)\b.*(Client Error|Unauthorized|Forbidden)|status code: (401|403)"),
        "the index refuses access",
        "Check the user name and password in the index URL.",
    ),
    (
        re.compile(
            r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|"
            r"Connection refused|ConnectTimeoutError|ReadTimeoutError|Connection timed out|"
            r"Network is unreachable|dns error|error sending request|operation timed out|"
            r"Connection reset|RemoteDisconnected|tcp connect error"
        ),
        "the package index cannot be reached from this host",
        "Check runtime.index_url, name resolution, route, firewall and proxy on the host; without "
        "internet set an index or find_links of your own.",
    ),
    (
        re.compile(r"must have their versions pinned|Hashes are required|must have a hash"),
        "a requirement has no hash or is not pinned",
        "Lock again with hashes.",
    ),
    (
        re.compile(
            r"No matching distribution|Could not find a version|No solution found|no wheels with|"
            r"was not found in the package registry|there is no version of|not a supported wheel"
        ),
        "no source offers a wheel of the locked version that fits this Python and machine",
        "Check that the lock was made for this Python version and platform, and that the index or "
        "find_links has the wheel.",
    ),
]


def failure(ended: child.Ended, what: str, mask: Callable[[str], str], installer: str) -> HostError:
    """Why an installation failed, in words with the line that shows it."""
    tail = [mask(line) for line in ended.tail]
    if ended.stalled:
        return HostError(
            what,
            f"{installer} stood still for {STALL_SECONDS:.0f} seconds and was ended.",
            "Check the way to the package index, then start again.",
            tail,
        )
    for pattern, why, fix in CAUSES:
        # The last such line: uv goes from the general to the particular, pip sums up at the end.
        line = next((line for line in reversed(tail) if pattern.search(line)), None)
        if line is not None:
            return HostError(what, f"{why}: {line[:300]}", fix, tail)
    fix = "The lines below are the last that it printed."
    if ended.returncode == -9:
        fix = "Something killed it, most likely for memory: see 'journalctl -k' on the host."
    return HostError(
        what, f"{installer} ended with {child.exit_words(ended.returncode)}.", fix, tail
    )
