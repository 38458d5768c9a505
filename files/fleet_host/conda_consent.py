"""Accepting a channel's terms of service for conda: only what the operator's consent names.

Every step is there because of something that conda 26.7.1 with conda-anaconda-tos 0.2.2 does:
- `conda tos accept` exits 0 having accepted nothing when the terms cannot be reached, and leaves an
  empty answer in its cache for an hour; so the terms are read first, the cache is ignored, the
  answer has to say tos_accepted, and the files are read again.
- `conda create` skips its check of terms that are malformed or out of reach, so it is no proof.
- CI=true, one of a dozen other variables of CI systems, or CONDA_PLUGINS_AUTO_ACCEPT_TOS accept in
  silence; so conda gets an environment of named variables only.
- conda's `defaults` are two channels on Linux, each with its own terms.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import child, conda_terms, durable, layout
from .errors import HostError

if TYPE_CHECKING:
    from .conda_spec import Conda, Consent
    from .status import Progress

# Known to have terms, whatever an unreachable terms.json makes conda believe.
WITH_TERMS = "https://repo.anaconda.com/"
KEPT = ("PATH", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
        "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")  # fmt: skip
FETCH_SECONDS = 30.0
# It took 16 seconds with the channel down.
ACCEPT_SECONDS = 300.0
LONGEST_TERMS_BYTES = 4_000_000


def environment(cache: Path, temporary: Path) -> dict[str, str]:
    """What conda is run with: named variables, so that none that accepts terms is among them.
    Its home is the unit's, as that of everything the unit runs."""
    kept = {name: value for name, value in os.environ.items() if name.upper() in KEPT}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        **kept,
        "HOME": str(cache / "home"),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        # Off in so many words: a variable outranks a .condarc that says plugins.auto_accept_tos.
        "CONDA_PLUGINS_AUTO_ACCEPT_TOS": "false",
    }


def forget_answers(env: dict[str, str]) -> None:
    """Remove the plugin's cache, so that what conda does next asks each channel for its terms: an
    empty answer of the last hour would be none to accept, for any channel or mirror."""
    durable.remove_tree(Path(env["HOME"], ".cache", "conda-anaconda-tos"))


def read_all(conda: Conda, env: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The fact, for the user who is about to run conda: this process."""
    searched = conda_terms.roots(
        Path(env["HOME"]), conda.root, env, layout.etc_root(), layout.state_root()
    )
    try:
        return conda_terms.read(searched, list(conda.channels))
    except OSError as error:
        raise HostError(
            "an acceptance of terms cannot be read",
            f"{error.filename}: {error.strerror}. conda would stop there too.",
            "Make the file and its directories readable by everybody, or remove it.",
        ) from error


def settle(conda: Conda, env: dict[str, str], progress: Progress) -> dict[str, dict[str, Any]]:
    """Accept what the consent covers and refuse what needs one; the acceptances as they are then,
    channel -> {accepted, version, path}."""
    known = read_all(conda, env)
    for channel in conda.channels:
        seen = known[channel]
        if seen["accepted"] is False:
            raise HostError(
                f"the terms of {channel} were rejected on this host",
                f"{seen['path']} says so, for version {seen['version']}.",
                "Take the channel out of runtime.conda.channels; if the rejection is over, remove "
                "that file.",
            )
        if conda.consent is not None and channel in conda.consent.channels:
            _settle_one(channel, seen, conda, conda.consent, env, progress)
        elif channel.startswith(WITH_TERMS) and seen["accepted"] is None:
            raise unaccepted(channel)
    return read_all(conda, env)


def unaccepted(channels: str) -> HostError:
    return HostError(
        f"the terms of {channels} are not accepted",
        "conda refuses a channel with terms of service until somebody has accepted them, which is "
        "for your organisation to decide.",
        "Take packages from conda-forge, which has no terms (runtime.conda.channels, and a lock "
        "made from it); or read the terms and record the consent in runtime.conda.terms: "
        "{accepted_by, accepted_on, channels}.",
    )


def _settle_one(
    channel: str,
    seen: dict[str, Any],
    conda: Conda,
    consent: Consent,
    env: dict[str, str],
    progress: Progress,
) -> None:
    try:
        offered = published_version(channel)
    except HostError as error:
        if seen["accepted"]:
            progress.log(f"{channel}: accepted earlier; {error.what}")
            return
        raise
    moment = conda_terms.epoch(offered) or 0.0
    if seen["accepted"] and (conda_terms.epoch(seen["version"]) or 0.0) >= moment:
        return
    utc = timezone.utc  # noqa: UP017 - datetime.UTC came with Python 3.11
    day = datetime.fromtimestamp(moment, utc).date()
    if day > consent.accepted_on:
        raise HostError(
            f"the terms of {channel} are newer than the consent to them",
            f"they are of {day}, {consent.accepted_by} accepted on {consent.accepted_on}.",
            f"Read {channel}/terms.json, then write the new date in runtime.conda.terms.",
        )
    accept(channel, conda, env)
    after = read_all(conda, env)[channel]
    if after["accepted"] is not True or conda_terms.epoch(after["version"]) != moment:
        raise HostError(
            f"the terms of {channel} are still not accepted",
            f"conda says that it accepted version {offered}, and its files say "
            f"{after['accepted']} for version {after['version']} ({after['path']}).",
            "Look at the directories that 'conda tos info' lists: one that is earlier in the list "
            "wins.",
        )
    progress.log(
        f"{channel}: accepted terms of {offered} for {consent.accepted_by}, as recorded on "
        f"{consent.accepted_on}"
    )


def published_version(channel: str) -> str:
    """The version of the terms that the channel offers now. HostError when there are none to be
    had: to accept would then be to accept nothing, with exit code 0."""
    url = f"{channel}/terms.json"
    try:
        # The settings allow http, https and file channels, as conda does.
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:  # noqa: S310
            document = json.loads(answer.read(LONGEST_TERMS_BYTES))
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise HostError(
            f"the terms of {channel} cannot be read",
            f"{url}: {error}.",
            "Check the way there (a proxy, a mirror), then start again. If the channel has no "
            "terms, take it out of runtime.conda.terms.",
        ) from error
    version = document.get("version") if isinstance(document, dict) else None
    if conda_terms.epoch(version) is None or not isinstance(document.get("text"), str):
        raise HostError(
            f"the terms of {channel} are malformed",
            f"{url} has no version and text.",
            "Ask whoever runs the channel or its mirror.",
        )
    return str(version)


def accept(channel: str, conda: Conda, env: dict[str, str]) -> None:
    """`conda tos accept`, believed only when it says so. The acceptance is the user's."""
    argv = [str(conda.program), "tos", "accept", "--ignore-cache", "--override-channels",
            "--channel", channel, "--json"]  # fmt: skip
    what = f"the terms of {channel} could not be accepted"
    try:
        done = subprocess.run(
            argv,
            env=env,
            cwd=env["TMPDIR"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ACCEPT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(
            what, f"{error}.", "Try that conda by hand on the host ('conda info')."
        ) from error
    lines = [line for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()][-30:]
    if done.returncode == 2 and "invalid choice: 'tos'" in done.stderr:
        raise HostError(
            what,
            f"the conda at {conda.root} does not know `conda tos`.",
            "Install its plugin into that conda (package conda-anaconda-tos), or use another; to "
            "take nothing from such channels is the other way (conda-forge).",
            lines,
        )
    if done.returncode != 0:
        raise HostError(
            what,
            f"`conda tos accept` ended with {child.exit_words(done.returncode)}.",
            "The lines below are the last that it printed.",
            lines,
        )
    if not _says_accepted(done.stdout):
        raise HostError(
            what,
            "`conda tos accept` ended well and accepted nothing, as it does when it cannot reach "
            "the terms.",
            f"Check that conda itself reaches {channel} (proxy_servers and ssl_verify in its "
            ".condarc), then start again.",
            lines,
        )


def _says_accepted(text: str) -> bool:
    try:
        document = json.loads(text[text.index("{") :])
    except ValueError:
        return False  # null, or nothing
    values = list(document.values()) if isinstance(document, dict) else []
    return bool(values) and all(
        isinstance(value, dict) and value.get("tos_accepted") is True for value in values
    )
