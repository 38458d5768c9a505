"""Plans of hosts whose runtime is conda's: what is installed, accepted and refused."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning import conda_plan, host_plan, wanted
from tests.unit.planning import worlds

FORGE = "https://conda.anaconda.org/conda-forge"
MAIN, R = "https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r"
SHA256 = "0123456789abcdef" * 4
CONDA_LOCK = f"# c\n@EXPLICIT\n{FORGE}/linux-64/python-3.12.7-h_0.conda#{'0' * 64}\n"
PREFIX = {"prefix": "/opt/conda", "lock": "locks/conda.txt"}
MINIFORGE = {"miniforge": {"path": "/srv/m.sh", "sha256": SHA256}, "lock": "locks/conda.txt"}
TERMS = {
    "accepted_by": "Ada Lovelace",
    "accepted_on": worlds.NOW.date(),
    "channels": ["defaults"],
}
PROGRAM = "/opt/conda/bin/conda"


def plan(
    conda: dict[str, Any], facts: dict[str, Any] | None = None, **snapshot: Any
) -> host_plan.HostPlan:
    change = {"runtime": {"kind": "conda", "python": None, "conda": conda}}
    settings = worlds.settings_with(change)
    artefacts = worlds.artefacts_with(settings, conda_lock=CONDA_LOCK)
    seen = {**worlds.untouched(), **snapshot}
    if facts is not None:
        seen[conda_plan.SECTION] = facts
    return host_plan.plan_host("gpu01", worlds.ALL, settings, seen, artefacts)


def facts(**change: Any) -> dict[str, Any]:
    return {"roots": ["/etc/conda/tos", "/var/x/.conda/tos"], "terms": {},
            "files": {PROGRAM: True, "/srv/m.sh": True}, **change}  # fmt: skip


def test_conda_brings_python_and_the_lock_installs_vllm() -> None:
    found = plan(PREFIX, facts())
    assert found.refused == ()
    assert found.runtime is not None
    job = found.runtime.job
    assert job["python"] == "3.12"
    assert job["requirements"] == wanted.requirements(worlds.LOCK)
    assert job["conda"] == {
        "program": PROGRAM,
        "lock": CONDA_LOCK.removeprefix("# c\n"),
        "channels": [FORGE],
        "terms": None,
    }
    of_venv = wanted.runtime_environment(worlds.settings_with(), worlds.LOCK, None)
    assert job["bytes_needed"] > of_venv.job["bytes_needed"]
    assert not any(name.startswith("python3.") for name in found.packages)
    assert not any("accept" in reason for reason in found.reasons())


def test_condas_lock_is_part_of_what_the_runtime_is() -> None:
    settings = worlds.settings_with({"runtime": {"kind": "conda", "conda": PREFIX}})
    one = wanted.runtime_environment(settings, worlds.LOCK, None, CONDA_LOCK)
    other = wanted.runtime_environment(settings, worlds.LOCK, None, CONDA_LOCK + "# x\n")
    third = wanted.runtime_environment(
        settings, worlds.LOCK, None, CONDA_LOCK.replace("3.12.7", "3.12.8")
    )
    assert one.name == other.name != third.name
    # Which conda makes it is not.
    miniforge = worlds.settings_with({"runtime": {"kind": "conda", "conda": {"=": MINIFORGE}}})
    assert wanted.runtime_environment(miniforge, worlds.LOCK, None, CONDA_LOCK).name == one.name


def test_miniforge_is_installed_before_the_runtime() -> None:
    found = plan(MINIFORGE, facts(files={"/srv/m.sh": True}))
    tool = found.tools[-1]
    assert tool.path == f"/srv/llm/tools/miniforge-{SHA256[:12]}"
    assert tool.job["miniforge"] == {"path": "/srv/m.sh", "url": None, "sha256": SHA256}
    assert found.runtime is not None
    assert found.runtime.job["conda"]["program"] == f"{tool.path}/bin/conda"
    reasons = found.reasons()
    assert reasons.index("install Miniforge") < reasons.index(
        f"install vLLM 0.33.0 as {found.runtime.name}"
    )


def test_a_runtime_that_is_there_needs_no_conda() -> None:
    """Nothing is refused for a conda, an installer or a consent that has gone since."""
    first = plan(MINIFORGE, facts(files={"/srv/m.sh": True}))
    assert first.runtime is not None
    there = {first.runtime.path: {"name": "x"}}
    found = plan(MINIFORGE, facts(files={"/srv/m.sh": False}), environments=there)
    assert found.runtime is None
    assert found.refused == ()
    assert "install Miniforge" not in found.reasons()


def refusal(conda: dict[str, Any], seen: dict[str, Any] | None) -> Any:
    (finding,) = plan(conda, seen).refused
    return finding


@pytest.mark.parametrize("seen", [facts(), {}, None])
def test_defaults_without_consent_are_refused_before_anything_is_changed(
    seen: dict[str, Any] | None,
) -> None:
    finding = refusal({**PREFIX, "channels": ["conda-forge", "defaults"]}, seen)
    assert finding.id == "runtime.conda-terms"
    assert finding.subject == "runtime.conda.terms"
    # Linux' defaults are two.
    assert MAIN in finding.message
    assert R in finding.message
    assert "[conda-forge]" in finding.fix
    assert "accepted_by" in finding.fix
    if seen:
        assert "/etc/conda/tos" in finding.evidence


def test_consent_to_one_channel_is_not_consent_to_both() -> None:
    terms = {**TERMS, "channels": ["pkgs/main"]}
    finding = refusal({**PREFIX, "channels": ["defaults"], "terms": terms}, facts())
    assert R in finding.message
    assert MAIN not in finding.message


def test_with_consent_the_plan_says_what_it_will_accept_and_for_whom() -> None:
    found = plan({**PREFIX, "channels": ["defaults"], "terms": TERMS}, facts())
    assert found.refused == ()
    (line,) = [reason for reason in found.reasons() if "accept" in reason]
    assert MAIN in line
    assert R in line
    assert "as Ada Lovelace did on 2026-11-30" in line
    assert found.runtime is not None
    assert found.runtime.job["conda"]["terms"] == {
        "accepted_by": "Ada Lovelace",
        "accepted_on": "2026-11-30",
        "channels": [MAIN, R],
    }


def test_an_acceptance_on_the_host_is_enough() -> None:
    accepted = {url: {"accepted": True, "version": "1", "path": "/x"} for url in (MAIN, R)}
    found = plan({**PREFIX, "channels": ["defaults"]}, facts(terms=accepted))
    assert found.refused == ()
    assert not any("accept" in reason for reason in found.reasons())


def test_a_rejection_on_the_host_is_not_overruled() -> None:
    rejected = {MAIN: {"accepted": False, "version": "1", "path": "/etc/conda/tos/x.json"}}
    conda = {**PREFIX, "channels": ["defaults"], "terms": TERMS}
    finding = refusal(conda, facts(terms=rejected))
    assert finding.id == "runtime.conda-terms-rejected"
    assert "/etc/conda/tos/x.json" in finding.fix


def test_an_acceptance_that_cannot_be_read_is_no_acceptance() -> None:
    conda = {**PREFIX, "channels": ["defaults"], "terms": TERMS}
    found = facts(error="/etc/conda/tos/x.json: Permission denied")
    del found["terms"]
    finding = refusal(conda, found)
    assert finding.id == "runtime.conda-terms-unread"
    assert "Permission denied" in finding.evidence


def test_a_conda_that_is_not_there_is_refused() -> None:
    finding = refusal(PREFIX, facts(files={PROGRAM: False}))
    assert finding.id == "runtime.no-conda"
    assert PROGRAM in finding.evidence


def test_an_installer_that_is_not_there_is_refused() -> None:
    program = f"/srv/llm/tools/miniforge-{SHA256[:12]}/bin/conda"
    finding = refusal(MINIFORGE, facts(files={program: False, "/srv/m.sh": False}))
    assert finding.id == "runtime.no-miniforge"
    # It is not needed where it has done its work.
    assert plan(MINIFORGE, facts(files={program: True, "/srv/m.sh": False})).refused == ()


def test_the_hosts_facts_are_asked_for_the_builders_home_and_conda() -> None:
    change = {"runtime": {"kind": "conda", "conda": {**MINIFORGE, "channels": ["defaults"]}}}
    request = conda_plan.facts_request(worlds.settings_with(change), "llm-build")
    root = f"/srv/llm/tools/miniforge-{SHA256[:12]}"
    assert request == {
        "user": "llm-build",
        "home": "/var/cache/llm-environment/home",
        "conda_root": root,
        "channels": [MAIN, R],
        "files": [f"{root}/bin/conda", "/srv/m.sh"],
    }
    assert conda_plan.facts_request(worlds.settings_with(), "llm-build") is None


def test_the_builders_home_is_in_its_units_cache_directory() -> None:
    """Where conda keeps the acceptances of the user who runs it, and the fact looks for them."""
    settings = worlds.settings_with()
    unit = worlds.artefacts_with(settings).units["llm-environment@.service"].content
    assert "CacheDirectory=llm-environment\n" in unit
    assert conda_plan.BUILDER_HOME == "/var/cache/llm-environment/home"
