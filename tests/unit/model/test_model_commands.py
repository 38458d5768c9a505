"""What `fleet model list`, `status` and `remove` say and choose, from what hosts answer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.model import asking, listing, remove, status
from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.planning.model_lock import lock_text
from tests.unit.planning import worlds
from tests.unit.planning.test_model_lock import LOCK

if TYPE_CHECKING:
    from pathlib import Path

WANTED = "Qwen--Qwen3-32B/master"
LOCKED = f"Qwen--Qwen3-32B/{LOCK.directory}"


def row(name: str = WANTED, **change: Any) -> dict[str, Any]:
    return {
        "name": name, "files": 29, "bytes": 65e9, "used_bytes": 65e9, "model_digest": "d" * 64,
        "verified_at": "2026-11-30T10:00:00Z", "deep_verified_at": None, "touched": [],
        "damaged": [], "releases": [], "engines": [], **change,
    }  # fmt: skip


def answer(*rows: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {"models": list(rows), "unfinished": [], "free_bytes": 200e9, **change}


def test_the_list_shows_size_users_and_what_nobody_refers_to() -> None:
    lines = listing.report(
        "gpu01",
        answer(
            row(releases=["main/r2"], engines=["main"]),
            row("o--n/old", damaged=["a", "b"], touched=["c"], extra=["d"]),
            row("o--n/odd", problem="odd.json is no model record: it is empty."),
            unfinished=[{"name": "o--n/new", "bytes": 5e9}],
        ),
    )
    assert lines == [
        "gpu01: 200.00 GB free, 3 models, 130.00 GB in models that no release refers to",
        f"  {WANTED}: 29 files, 65.00 GB, verified 2026-11-30T10:00:00Z; used by main/r2, served "
        "by main",
        "  o--n/old: 29 files, 65.00 GB, verified 2026-11-30T10:00:00Z, 2 files DAMAGED, a first, "
        "1 files touched since, c first, 1 files do not belong, d first; used by no release",
        "  o--n/odd: 29 files, 65.00 GB, verified 2026-11-30T10:00:00Z, its RECORD CANNOT BE READ "
        "(odd.json is no model record: it is empty); used by no release",
        "  o--n/new: 5.00 GB of a pull or a removal that is not finished",
    ]


def test_a_host_that_did_not_answer_says_why() -> None:
    assert listing.report("gpu01", {"refused": ["no program", "  fix: deploy"]}) == [
        "gpu01: no program;   fix: deploy"
    ]


def failed(what: str) -> dict[str, Any]:
    return {"state": "failed", "error": {"what": what, "why": "it answered 404."}}


PROGRESS = {"phase": "download", "done": 13e9, "total": 65e9, "unit": "bytes", "rate": 1e8}


@pytest.mark.parametrize(
    ("told", "state", "text"),
    [
        (answer(row(releases=["main/r1"])), "here", "29 files, 65.00 GB, verified 2026-11-30T10:00"
         ":00Z, used by main/r1"),
        (answer(), "absent", "not here; 200.00 GB free"),
        (answer(row("o--n/other")), "absent", "not here; 200.00 GB free"),
        (answer(job={"state": "running", "progress": PROGRESS}), "pulling",
         "download, 13.0 GB of 65.0 GB (20%), 100.0 MB/s, about 8 min 40 s left"),
        (answer(row(), job={"state": "running", "progress": {"phase": "verify"}}), "pulling",
         "verify"),
        (answer(job=failed("the hub has no model")), "failed",
         "the last pull failed, the hub has no model: it answered 404."),
        (answer(row(), job=failed("long ago")), "here", "29 files, 65.00 GB, verified 2026-11-30T1"
         "0:00:00Z"),
        (answer(unfinished=[{"name": WANTED, "bytes": 5e9}]), "absent",
         "a pull was given up with 5.00 GB here; a deploy goes on"),
        (answer(row(damaged=["x"], touched=["x"])), "damaged",
         "1 files damaged, x first; a deploy mends them"),
        (answer(row(problem="x.json is no model record", model_digest=None)), "damaged",
         "x.json is no model record"),
        (answer(row(extra=["notes.txt"])), "damaged",
         "1 files do not belong, notes.txt first; a deploy moves them"),
        (answer(row(touched=["x", "y"])), "damaged",
         "2 files touched since they were verified, x first; a deploy mends them"),
    ],
)  # fmt: skip
def test_the_state_of_a_host(told: dict[str, Any], state: str, text: str, tmp_path: Path) -> None:
    found = status.state_of(worlds.settings_with(), told, tmp_path)
    assert found == {"model": WANTED, "state": state, "text": text}


def test_of_a_locked_model_the_digest_counts(tmp_path: Path) -> None:
    settings = worlds.settings_with({"model": {"lock": "one.json"}})
    (tmp_path / "one.json").write_text(lock_text(LOCK))
    here = answer(row(LOCKED, model_digest=LOCK.digest))
    assert status.state_of(settings, here, tmp_path)["state"] == "here"
    other = status.state_of(settings, answer(row(LOCKED)), tmp_path)
    assert (other["state"], other["model"]) == ("other", LOCKED)
    assert LOCK.digest[:12] in other["text"]
    assert status.state_of(settings, answer(row(WANTED)), tmp_path)["state"] == "absent"


def test_a_lock_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    settings = worlds.settings_with({"model": {"lock": "none.json"}})
    found = status.state_of(settings, answer(row()), tmp_path)
    assert (found["state"], found["text"]) == ("unknown", "none.json: No such file or directory")


@pytest.fixture
def fleet(tmp_path: Path) -> Any:
    host = SimpleNamespace(settings=worlds.settings_with(), groups=frozenset({"gpu"}))
    return SimpleNamespace(name="prod", hosts={"gpu01": host, "gpu02": host}, root=tmp_path)


ANSWERS = {
    "gpu01": answer(row(), row("o--n/used", releases=["main/r1"]), row("o--n/old")),
    "gpu02": answer(row("o--n/old"), row("o--n/older")),
    "gpu03": {"refused": ["away"]},
}


def names(found: dict[str, list[Any]]) -> dict[str, list[str]]:
    return {host: [one["name"] for one in rows] for host, rows in found.items()}


def test_unused_are_those_without_a_release_but_not_what_settings_ask_for(fleet: Any) -> None:
    found = remove.chosen_models(fleet, ANSWERS, [], unused=True)
    assert names(found) == {"gpu01": ["o--n/old"], "gpu02": ["o--n/old", "o--n/older"]}


def test_named_ones_go_from_every_host_that_has_them(fleet: Any) -> None:
    found = remove.chosen_models(fleet, ANSWERS, ["o--n/old"], unused=False)
    assert names(found) == {"gpu01": ["o--n/old"], "gpu02": ["o--n/old"]}


@pytest.mark.parametrize(
    ("models", "unused", "words"),
    [
        (["o--n/used"], False, "release main/r1 refers to it"),
        (["o--n/old", WANTED], False, "the settings ask for it"),
        (["o--n/nothing"], False, "no host has o--n/nothing"),
        ([], False, "which models are to go"),
        (["o--n/old"], True, "which models are to go"),
    ],
)
def test_what_must_stay_is_refused_before_anything_goes(
    fleet: Any, models: list[str], unused: bool, words: str
) -> None:
    with pytest.raises(Refused) as caught:
        remove.chosen_models(fleet, ANSWERS, models, unused=unused)
    assert words in str(caught.value)


def test_what_a_pull_has_left_goes_only_by_its_name(fleet: Any) -> None:
    left = answer(row("o--n/old"), unfinished=[{"name": "o--n/new", "bytes": 5e9}])
    named = remove.chosen_models(fleet, {"gpu01": left}, ["o--n/new"], unused=False)
    assert named == {"gpu01": [{"name": "o--n/new", "used_bytes": 5e9}]}
    unused = remove.chosen_models(fleet, {"gpu01": left}, [], unused=True)
    assert names(unused) == {"gpu01": ["o--n/old"]}


def test_the_locked_revision_is_what_settings_ask_for(fleet: Any, tmp_path: Path) -> None:
    settings = worlds.settings_with({"model": {"lock": "one.json"}})
    (tmp_path / "one.json").write_text(lock_text(replace(LOCK, license="mit")))
    fleet.hosts["gpu01"] = SimpleNamespace(settings=settings)
    answers = {"gpu01": answer(row(LOCKED), row(WANTED))}
    found = remove.chosen_models(fleet, answers, [], unused=True)
    assert names(found) == {"gpu01": [WANTED]}


class Asked:
    """Stands for pyinfra: what was asked for, and what the hosts answer to it."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.calls: list[tuple[list[str], str, dict[str, str]]] = []
        self.answers = list(answers)

    def __call__(
        self, _fleet: Any, hosts: Any, deploy: str = "list_models.py", data: Any = None, *_: Any
    ) -> tuple[dict[str, Any], str]:
        self.calls.append((list(hosts), deploy, dict(data or {})))
        return self.answers.pop(0), "what pyinfra said"


def run_remove(monkeypatch: pytest.MonkeyPatch, fleet: Any, asked: Asked, **change: Any) -> int:
    monkeypatch.setattr(remove, "engine_hosts", lambda _: (fleet, ["gpu01", "gpu02"]))
    monkeypatch.setattr(remove, "ask", asked)
    defaults: dict[str, Any] = {"models": [], "unused": True, "dry_run": False}
    return remove._remove(SimpleNamespace(**defaults | change))  # type: ignore[arg-type]


def test_a_dry_run_asks_and_removes_nothing(
    monkeypatch: pytest.MonkeyPatch, fleet: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(ANSWERS)
    assert run_remove(monkeypatch, fleet, asked, dry_run=True) == 0
    assert [deploy for _, deploy, _ in asked.calls] == ["list_models.py"]
    assert "gpu02: o--n/older, 65.00 GB would go" in capsys.readouterr().out


def test_hosts_with_the_same_models_are_one_run_and_a_host_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, fleet: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"gpu01": answer(row("o--n/old")), "gpu02": answer(row("o--n/old"))}
    asked = Asked(both, {"gpu01": {"removed": ["o--n/old"], "freed_bytes": 65e9}})
    assert run_remove(monkeypatch, fleet, asked) == 2
    assert asked.calls[1] == (["gpu01", "gpu02"], "remove_models.py", {"models": "o--n/old"})
    out, error = capsys.readouterr()
    assert "gpu01: removed, 65.00 GB freed" in out
    assert "NOT done: gpu02" in error
    assert "what pyinfra said" in error


def test_hosts_without_an_answer_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"gpu01": answer(), "gpu02": {"refused": ["no"]}}
    assert asking.say_what_is_missing(["gpu01", "gpu02", "gpu03"], told, "why") is True
    assert "NOT read: gpu02, gpu03" in capsys.readouterr().err
    assert asking.say_what_is_missing(["gpu01"], told, "") is False
