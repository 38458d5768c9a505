"""What a host needs for an environment of conda's, and why its terms or its conda forbid one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.settings.conda_section import channel_urls, has_terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyinfra_deploy.settings.conda_section import Conda, Miniforge
    from pyinfra_deploy.settings.schema import Settings

# The environment job's own: its unit has CacheDirectory=llm-environment (templates/units).
BUILDER_HOME = "/var/cache/llm-environment/home"
SECTION = "conda"
TERMS = "runtime.conda.terms"


def miniforge_name(installer: Miniforge) -> str:
    return f"miniforge-{installer.sha256[:12]}"


def conda_root(settings: Settings, conda: Conda) -> str:
    """The directory of the conda that makes the environment."""
    if conda.prefix is not None:
        return conda.prefix
    assert conda.miniforge is not None
    return f"{settings.llm_root}/tools/{miniforge_name(conda.miniforge)}"


def conda_job(settings: Settings, conda: Conda, lock: str) -> dict[str, Any]:
    """The key "conda" of the environment job's spec."""
    terms = conda.terms
    return {
        "program": f"{conda_root(settings, conda)}/bin/conda",
        "lock": lock,
        "channels": list(channel_urls(conda.channels)),
        "terms": None if terms is None else {
            "accepted_by": terms.accepted_by,
            "accepted_on": terms.accepted_on.isoformat(),
            "channels": list(channel_urls(terms.channels)),
        },
    }  # fmt: skip


def facts_request(settings: Settings, user: str) -> dict[str, Any] | None:
    """What of conda is to be read on a host; None where no environment is conda's."""
    conda = settings.runtime.conda if settings.runtime else None
    if conda is None:
        return None
    installer = conda.miniforge.path if conda.miniforge else None
    return {
        "user": user,
        "home": BUILDER_HOME,
        "conda_root": conda_root(settings, conda),
        "channels": list(channel_urls(conda.channels)),
        "files": [conda_program(settings, conda), *([installer] if installer else [])],
    }


def conda_program(settings: Settings, conda: Conda) -> str:
    return f"{conda_root(settings, conda)}/bin/conda"


def conda_findings(
    host: str, settings: Settings, facts: Mapping[str, Any] | None
) -> tuple[Finding, ...]:
    """Refusals for an environment that has to be built. facts: files/fleet_host/conda_terms.py's
    answer; None or empty where it could not be read, as on a host without Python."""
    conda = settings.runtime.conda if settings.runtime else None
    if conda is None:
        return ()
    return (*_source(host, settings, conda, facts or {}), *_terms(host, conda, facts or {}))


def _source(
    host: str, settings: Settings, conda: Conda, facts: Mapping[str, Any]
) -> Iterator[Finding]:
    files = facts.get("files") or {}
    program = conda_program(settings, conda)
    if conda.prefix is not None and files.get(program) is False:
        yield Finding(
            "runtime.no-conda",
            "refuse",
            host,
            "runtime.conda.prefix",
            f"there is no conda at {conda.prefix} that the user who builds environments can run",
            "correct runtime.conda.prefix, let that user reach it, or write "
            "runtime.conda.miniforge to have one installed",
            evidence=f"{program}: no such program",
        )
    installer = conda.miniforge.path if conda.miniforge else None
    # An installer that has done its work is not needed any more.
    if installer is not None and files.get(installer) is False and files.get(program) is False:
        yield Finding(
            "runtime.no-miniforge",
            "refuse",
            host,
            "runtime.conda.miniforge.path",
            "the installer is not there, or the user who builds environments may not read it",
            f"copy it to {installer} on the host, readable by everybody, or write "
            "runtime.conda.miniforge.url",
            evidence=f"{installer}: cannot be read",
        )


def _terms(host: str, conda: Conda, facts: Mapping[str, Any]) -> Iterator[Finding]:
    consent = set(channel_urls(conda.terms.channels)) if conda.terms else set()
    found = facts.get("terms") or {}
    if "error" in facts:
        yield Finding(
            "runtime.conda-terms-unread",
            "refuse",
            host,
            TERMS,
            "a file with an acceptance of terms cannot be read by the user who runs conda, which "
            "stops conda too",
            "make the file and its directories readable by everybody, or remove it",
            evidence=str(facts["error"]),
        )
        return
    missing = []
    for url in channel_urls(conda.channels):
        seen = found.get(url) or {}
        if seen.get("accepted") is False:
            yield Finding(
                "runtime.conda-terms-rejected",
                "refuse",
                host,
                "runtime.conda.channels",
                f"the terms of {url} were rejected on the host, and conda refuses the channel",
                f"take the channel out of runtime.conda.channels; or, if the rejection is over, "
                f"remove {seen.get('path')} on the host",
                evidence=f"{seen.get('path')}: tos_accepted false",
            )
        elif has_terms(url) and url not in consent and seen.get("accepted") is not True:
            missing.append(url)
    if missing:
        roots = ", ".join(facts.get("roots") or ())
        yield Finding(
            "runtime.conda-terms",
            "refuse",
            host,
            TERMS,
            f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} terms of service, "
            "and neither the settings nor the host hold your organisation's consent",
            "take packages from conda-forge, which has none (runtime.conda.channels: "
            "[conda-forge], and a lock made from it); or read the terms and record who accepted "
            "them: runtime.conda.terms: {accepted_by: ..., accepted_on: ..., channels: [...]}",
            evidence=f"no acceptance in {roots}" if roots else "the host's files were not read",
            source="docs/runtimes.md",
        )


def terms_in_words(settings: Settings, facts: Mapping[str, Any] | None) -> str:
    """What a run will accept in the operator's name; empty where it is nothing."""
    conda = settings.runtime.conda if settings.runtime else None
    if conda is None or conda.terms is None:
        return ""
    found = (facts or {}).get("terms") or {}
    urls = [
        url
        for url in channel_urls(conda.terms.channels)
        if (found.get(url) or {}).get("accepted") is not True
    ]
    if not urls:
        return ""
    return (
        f"accept the terms of {' and '.join(urls)} for conda on the host, as "
        f"{conda.terms.accepted_by} did on {conda.terms.accepted_on}"
    )
