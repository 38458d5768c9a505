"""What is said of a model's lock, licence, pickles and code; and what a lock changes in a plan."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations.model_source import model_is_on_host
from pyinfra_deploy.planning import host_plan, wanted
from pyinfra_deploy.planning.model_lock import LockedFile, lock_text
from pyinfra_deploy.planning.model_supply import LockedModel, judge_lock, supply_findings
from tests.unit.planning import worlds
from tests.unit.planning.test_model_lock import FILES, LOCK

if TYPE_CHECKING:
    from pyinfra_deploy.planning.finding import Finding
    from pyinfra_deploy.settings.schema import Settings

LOCKED = LockedModel(LOCK)
NAMED = {"model": {"lock": "locks/models/one.json"}}


def settings_with(**change: Any) -> Settings:
    return worlds.settings_with(worlds.merged(NAMED, change))


def ids(settings: Settings, locked: LockedModel) -> list[tuple[str, str]]:
    return [(one.id, one.severity) for one in supply_findings("gpu01", settings, locked)]


def with_files(*paths: str) -> LockedModel:
    more = tuple(LockedFile(path, 1, "e" * 64) for path in paths)
    return LockedModel(replace(LOCK, files=FILES + more))


def test_a_lock_that_fits_has_no_finding() -> None:
    assert ids(settings_with(), LOCKED) == []


@pytest.mark.parametrize(
    ("allowed", "license_id", "expected"),
    [
        ([], None, []),
        (["mit"], "apache-2.0", [("model.license-not-allowed", "refuse")]),
        (["mit", "Apache-*"], "apache-2.0", []),
        (["mit"], "MIT", []),
        (["mit"], None, [("model.license-unknown", "refuse")]),
    ],
)
def test_licences(
    allowed: list[str], license_id: str | None, expected: list[tuple[str, str]]
) -> None:
    locked = LockedModel(replace(LOCK, license=license_id))
    assert ids(settings_with(allowed_licenses=allowed), locked) == expected


def test_without_a_lock_no_licence_is_known() -> None:
    settings = worlds.settings_with({"allowed_licenses": ["mit"]})
    assert ids(settings, LockedModel())[0] == ("model.license-unknown", "refuse")
    assert ids(worlds.settings_with(), LockedModel()) == [("model.not-locked", "warn")]


def unlocked(settings: Settings, *listed: str) -> list[Finding]:
    return list(supply_findings("gpu01", settings, LockedModel(), listed))


def test_a_model_without_a_lock_is_warned_of_with_what_to_write() -> None:
    (found,) = unlocked(worlds.settings_with())
    assert (found.id, found.severity) == ("model.not-locked", "warn")
    assert "lock: locks/models/Qwen--Qwen3-32B/master.json" in found.fix


@pytest.mark.parametrize(
    ("path", "word", "id_"),
    [
        ("pytorch_model.bin", "pickle", "model.pickle-weights"),
        ("original/consolidated.PTH", "pickle", "model.pickle-weights"),
        ("modeling_new.py", "code", "model.repository-code"),
    ],
)
def test_what_the_hub_lists_is_judged_without_a_lock_too(path: str, word: str, id_: str) -> None:
    listed = ("config.json", "model.safetensors", path)
    (found, _) = unlocked(worlds.settings_with(), *listed)
    assert (found.id, found.severity, found.evidence) == (id_, "refuse", path)
    assert "without a lock" in found.message
    accepting = worlds.settings_with({"model": {"accept": [word]}})
    assert [one.id for one in unlocked(accepting, *listed)] == ["model.not-locked"]


@pytest.mark.parametrize("asked", ["pt", "npcache"])
def test_a_load_format_that_reads_pickles_is_refused_unless_accepted(asked: str) -> None:
    wish = {"engine": {"args": {"load-format": asked}}}
    (found,) = supply_findings("gpu01", settings_with(**wish), LOCKED)
    assert (found.id, found.severity) == ("model.pickle-weights", "refuse")
    assert found.subject == "engine.args.load-format"
    assert ids(settings_with(**wish, model={"accept": ["pickle"]}), LOCKED) == []
    assert ids(settings_with(engine={"args": {"load-format": "safetensors"}}), LOCKED) == []


@pytest.mark.parametrize(
    ("path", "word", "identifier"),
    [
        ("training_args.bin", "pickle", "model.pickle-weights"),
        ("modeling_x.py", "code", "model.repository-code"),
    ],
)
def test_a_lock_does_not_accept_for_the_settings(path: str, word: str, identifier: str) -> None:
    locked = with_files(path)
    assert ids(settings_with(), locked) == [(identifier, "refuse")]
    assert ids(settings_with(model={"accept": [word]}), locked) == []


def test_code_is_run_only_where_it_is_accepted_and_better_locked() -> None:
    trusting: dict[str, Any] = {"engine": {"args": {"trust-remote-code": True}}}
    accepting = trusting | {"model": {"accept": ["code"]}}
    assert ids(worlds.settings_with(trusting), LockedModel()) == [
        ("model.repository-code", "refuse")
    ]
    assert ids(worlds.settings_with(accepting), LockedModel()) == [
        ("model.code-not-locked", "warn")
    ]
    assert ids(settings_with(**accepting), LOCKED) == []


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"id": "Qwen/Other"}, "is of id Qwen/Qwen3-32B, and model.id is Qwen/Other"),
        ({"revision": "v1"}, "is of revision master, and model.revision is v1"),
    ],
)
def test_a_lock_of_something_else_is_refused(model: dict[str, str], words: str) -> None:
    settings = settings_with(model=model)
    assert settings.model is not None
    locked = judge_lock(settings.model, lock_text(LOCK))
    assert words in locked.problem
    assert ids(settings, locked) == [("model.lock-unusable", "refuse")]


def planned(settings: Settings, snapshot: dict[str, Any], locked: LockedModel) -> Any:
    artefacts = worlds.artefacts_with(settings, model=locked)
    return host_plan.plan_host("gpu01", worlds.ALL, settings, snapshot, artefacts)


def test_the_release_is_known_before_the_model_is_pulled() -> None:
    settings = settings_with()
    plan = planned(settings, worlds.untouched(), LOCKED)
    assert plan.model_digest == LOCK.digest
    assert plan.release_id == plan.release.id_with(LOCK.digest)
    assert plan.release.model_path == f"/srv/llm/models/Qwen--Qwen3-32B/{LOCK.directory}"
    assert f"model: {plan.release.model_path}" in plan.release.configuration
    without = planned(worlds.settings_with(), worlds.untouched(), LockedModel())
    assert without.release_id is None


def test_the_pull_is_told_what_the_files_must_be() -> None:
    plan = planned(settings_with(), worlds.untouched(), LOCKED)
    assert plan.pull["files"] == [file.as_spec() for file in FILES]
    assert (plan.pull["directory"], plan.pull["commit"]) == (LOCK.directory, LOCK.commit)
    assert wanted.pull_job_id(plan.pull) == f"Qwen--Qwen3-32B--{LOCK.directory}"
    without = planned(worlds.settings_with(), worlds.untouched(), LockedModel())
    assert "files" not in without.pull
    assert wanted.pull_job_id(without.pull) == "Qwen--Qwen3-32B--master"


def test_hosts_learn_from_which_lock_a_model_comes() -> None:
    settings = settings_with()
    assert settings.model is not None
    text = lock_text(LOCK)
    told = planned(settings, worlds.untouched(), judge_lock(settings.model, text)).pull
    assert told["provenance"] == {
        "lock": "locks/models/one.json",
        "lock_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "license": "apache-2.0",
        "accepted": ["code"],
    }
    without = planned(worlds.settings_with(), worlds.untouched(), LockedModel()).pull
    assert without["provenance"] == {"accepted": []}


def test_another_hubs_commit_is_not_asked_for() -> None:
    elsewhere = LockedModel(replace(LOCK, hub="huggingface"))
    assert planned(settings_with(), worlds.untouched(), elsewhere).pull["commit"] is None


@pytest.mark.parametrize(
    ("digest", "pulls"), [(LOCK.digest, False), ("f" * 64, True)], ids=["as locked", "other"]
)
def test_a_model_counts_as_here_only_as_locked(digest: str, pulls: bool) -> None:
    found = {"record": {"model_digest": digest}, "intact": True, "problems": []}
    snapshot = worlds.untouched() | {"models": {"Qwen--Qwen3-32B": {LOCK.directory: found}}}
    plan = planned(settings_with(), snapshot, LOCKED)
    assert (plan.pull is not None) is pulls
    assert plan.model_digest == LOCK.digest


def test_a_model_with_a_file_too_much_is_pulled_for_and_needs_no_room_for_another() -> None:
    """The pull of a published model looks after it: it moves the file away."""
    record = {"model_digest": LOCK.digest, "total_bytes": 9}
    problems = ["notes.txt: does not belong to the model"]
    found = {"record": record, "bytes": 9, "intact": False, "problems": problems}
    snapshot = worlds.untouched() | {"models": {"Qwen--Qwen3-32B": {LOCK.directory: found}}}
    assert planned(settings_with(), snapshot, LOCKED).pull is not None
    assert model_is_on_host(settings_with(), snapshot, LOCK)
    found["bytes"] = 8
    assert not model_is_on_host(settings_with(), snapshot, LOCK)


def test_a_host_is_left_alone_while_its_lock_cannot_be_used() -> None:
    plan = planned(settings_with(), worlds.untouched(), LockedModel(problem="it is gone"))
    assert [one.id for one in plan.refused] == ["model.lock-unusable"]
    assert plan.reasons() == []


def test_a_gateway_alone_needs_no_lock() -> None:
    settings = settings_with()
    artefacts = worlds.artefacts_with(settings, model=LockedModel(problem="it is gone"))
    groups = frozenset({"gateway", "prod"})
    plan = host_plan.plan_host("gw", groups, settings, worlds.untouched(groups), artefacts)
    assert plan.refused == ()
