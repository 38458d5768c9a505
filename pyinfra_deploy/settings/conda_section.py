"""The settings of `runtime.conda`, and which channels they stand for."""

from __future__ import annotations

import datetime
from typing import Annotated

from pyinfra_deploy.settings.kinds import (
    AbsolutePath,
    DataPath,
    OneLine,
    RepositoryPath,
    Url,
    Words,
)
from pyinfra_deploy.settings.section import LENIENT, Section, required, setting

CondaChannel = Annotated[
    str,
    Words(
        "a channel: conda-forge or another name, defaults, or a URL (https, http or file)",
        r"(?:https?|file)://[^\s@]+|[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9._-]+)*",
    ),
]
Sha256 = Annotated[str, Words("a SHA-256 in 64 hexadecimal digits, in quotes", r"[0-9a-f]{64}")]

# conda's `defaults` on Linux is both (conda 26.7.1 with conda-anaconda-tos 0.2.2).
ANACONDA = "https://repo.anaconda.com/"
DEFAULTS = (f"{ANACONDA}pkgs/main", f"{ANACONDA}pkgs/r")
ALIAS = "https://conda.anaconda.org/"


class CondaTerms(Section):
    """Your consent to the terms of channels that have them. Without it nothing is accepted: a host
    whose channels need it is refused."""

    accepted_by: OneLine = required("Who accepted them, for your organisation.", "Ada Lovelace")
    accepted_on: datetime.date = required(
        "When. Terms that are newer than this day are not accepted: read them, then write a new "
        "date.",
        datetime.date(2026, 11, 30),
    )
    channels: Annotated[tuple[CondaChannel, ...], LENIENT] = required(
        "The channels whose terms were read and accepted. defaults stands for pkgs/main and "
        "pkgs/r, which each have theirs.",
        ["defaults"],
        min_length=1,
    )


class Miniforge(Section):
    """An installer of Miniforge for hosts that have no conda; it is put below llm_root/tools."""

    path: AbsolutePath | None = setting(
        None,
        "The installer on the host, readable by everybody. Either this or url.",
        "/srv/files/Miniforge3-Linux-x86_64.sh",
    )
    url: Url | None = setting(
        None,
        "Where the host downloads the installer, such as a mirror inside your network.",
        "https://mirror.example.com/Miniforge3-Linux-x86_64.sh",
    )
    sha256: Sha256 = required(
        "SHA-256 of the installer. Checked before it is run.",
        "0123456789abcdef" * 4,
    )


class Conda(Section):
    """With kind: conda, where conda comes from and what it installs. Either prefix or miniforge."""

    prefix: DataPath | None = setting(
        None, "Directory of a conda that is on the host already.", "/opt/conda"
    )
    miniforge: Miniforge | None = setting(None, "Or Miniforge, installed by the deploy.", {})
    lock: RepositoryPath = required(
        "Lock of conda's own packages, among them Python: an @EXPLICIT file with a SHA-256 after "
        "each URL, as `conda list --explicit --sha256` prints it. docs/runtimes.md tells how to "
        "make one.",
        "locks/conda/python-3.12-linux-64.txt",
    )
    channels: Annotated[tuple[CondaChannel, ...], LENIENT] = setting(
        ("conda-forge",),
        "Channels that packages may come from; each URL of the lock is of one of them. What the "
        "host's .condarc names is not used.",
        ["conda-forge"],
        min_length=1,
    )
    terms: CondaTerms | None = setting(None, "Consent, where a channel has terms.", {})


def channel_urls(names: tuple[str, ...]) -> tuple[str, ...]:
    """The URLs that channels stand for, each once: conda-forge -> https://conda.anaconda.org/...,
    pkgs/main -> https://repo.anaconda.com/pkgs/main, defaults -> both of its channels."""
    urls: dict[str, None] = {}
    for name in names:
        if name == "defaults":
            urls |= dict.fromkeys(DEFAULTS)
        elif "://" in name:
            urls[name.rstrip("/")] = None
        else:
            urls[f"{ANACONDA if name.startswith('pkgs/') else ALIAS}{name.rstrip('/')}"] = None
    return tuple(urls)


def has_terms(url: str) -> bool:
    """Whether a channel is known to have terms, so that its use needs a consent: conda's own check
    is skipped when the terms cannot be reached. Other channels are left to that check."""
    return url.startswith(ANACONDA)
