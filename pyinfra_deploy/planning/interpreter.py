"""Which Python an environment is made with: the lock's own, or one that vLLM and host agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.runtime_facts import known_version, version_of
from pyinfra_deploy.settings.conda_contradictions import python_of_conda_lock
from pyinfra_deploy.settings.lock_header import python_of_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.planning.tables.rows import VllmVersion
    from pyinfra_deploy.settings.runtime_section import Runtime
    from pyinfra_deploy.settings.schema import Settings

# Distribution -> the Python versions that its own packages bring.
SUPPORTED = {
    ("debian", "12"): ("3.11",),
    ("debian", "13"): ("3.13",),
    ("ubuntu", "22.04"): ("3.10",),
    ("ubuntu", "24.04"): ("3.12",),
}


def packaged_pythons(system: Mapping[str, Any]) -> tuple[str, ...]:
    """Versions that the distribution's own packages bring; none for one that is not known."""
    return SUPPORTED.get((str(system.get("id")), str(system.get("version_id"))), ())


def host_pythons(system: Mapping[str, Any]) -> list[str]:
    """Versions of /usr/bin/python3.N that are there, newest first."""
    found = {str(path).removeprefix("/usr/bin/python") for path in system.get("pythons") or ()}
    return sorted(filter(version_of, found), key=Version, reverse=True)


def with_python(
    settings: Settings, lock: str, conda_lock: str, snapshot: Mapping[str, Any]
) -> Settings:
    """The settings with the environment's Python in them; it stays None where none suits, which
    `interpreter_findings` then says."""
    runtime = settings.runtime
    if runtime is None or runtime.python is not None:
        return settings
    chosen = _choose(runtime, lock, conda_lock, snapshot.get("os") or {})
    changed = runtime.model_copy(update={"python": chosen})
    return settings.model_copy(update={"runtime": changed})


def _choose(runtime: Runtime, lock: str, conda_lock: str, system: Mapping[str, Any]) -> str | None:
    # A lock's wheels are built for one Python, so it decides where it says which.
    locked = python_of_conda_lock(conda_lock) if runtime.kind == "conda" else python_of_lock(lock)
    if locked is not None or runtime.kind == "conda":
        return locked
    # The distribution's own first: it stays the same when another one is installed beside it, and
    # with it the runtime.
    candidates = [*packaged_pythons(system), *host_pythons(system)]
    return next((one for one in candidates if vllm_supports(runtime.vllm, one)), None)


def vllm_supports(vllm: str, python: str) -> bool:
    return all(row.python.contains(python) for row in _rows(vllm))


def _rows(vllm: str) -> tuple[VllmVersion, ...]:
    version = version_of(vllm)
    return known_version(version).rows if version is not None else ()


def interpreter_findings(
    host: str, settings: Settings, snapshot: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """A refusal where the host has no Python for the environment. `settings`: of `with_python`."""
    runtime = settings.runtime
    assert runtime is not None
    system = snapshot["os"]
    packaged = packaged_pythons(system)
    if runtime.kind == "conda" or not packaged:
        return ()
    there = host_pythons(system)
    seen = f"{system.get('id')} {system.get('version_id')} has {', '.join(packaged)}"
    if extra := [one for one in there if one not in packaged]:
        seen += f"; /usr/bin also has {', '.join(extra)}"
    if runtime.python is None:
        ranges = "; ".join(
            f"vLLM {row.vllm} needs Python {row.python}" for row in _rows(runtime.vllm)
        )
        return (
            Finding(
                "runtime.no-interpreter",
                "refuse",
                host,
                "runtime.python",
                f"no Python of the host suits vLLM {runtime.vllm}: {ranges}",
                "install a Python of that range as /usr/bin/python3.N on the host, or write "
                "runtime.kind: conda, which brings its own (docs/runtimes.md)",
                evidence=seen,
                source=_rows(runtime.vllm)[0].source,
            ),
        )
    if runtime.python in packaged or runtime.python in there:
        return ()
    return (
        Finding(
            "runtime.no-interpreter",
            "refuse",
            host,
            "runtime.python",
            f"Python {runtime.python}, which {runtime.lock} is for, is neither on the host nor "
            "among its distribution's packages",
            f'write runtime.python: "{packaged[0]}" with a lock for that version (fleet runtime '
            f"lock --vllm {runtime.vllm} --python {packaged[0]}), install /usr/bin/python"
            f"{runtime.python} on the host yourself, or write runtime.kind: conda, which brings "
            "its own (docs/runtimes.md)",
            evidence=seen,
        ),
    )
