"""Planning from a lock: no hub is asked, and what lies beside the lock has to be the locked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.facts import hub_model
from pyinfra_deploy.planning.model_lock import LockedFile, ModelLock, is_document, lock_text
from tests.unit.foresight.places import QWEN3_235B, Place, finding, ids

if TYPE_CHECKING:
    from collections.abc import Callable

LOCK = "locks-of-models/qwen.json"
NOT_LOCKED = "model.not-locked"
DOCUMENTS = ("config.json", "model.safetensors.index.json")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    def never(*_: Any) -> Any:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(hub_model, "fetch", never)
    made = Place(tmp_path)
    listed = json.loads((QWEN3_235B / "listing.json").read_text())["files"]
    files = []
    beside = tmp_path / "locks-of-models" / "qwen"
    beside.mkdir(parents=True)
    for entry in listed:
        if not is_document(entry["path"], entry["size"]):
            files.append(LockedFile(entry["path"], entry["size"], "a" * 64))
    for name in DOCUMENTS:
        content = (QWEN3_235B / name).read_bytes()
        (beside / name).write_bytes(content)
        files.append(LockedFile(name, len(content), hashlib.sha256(content).hexdigest()))
    lock = ModelLock(
        made.settings["model"]["id"], "modelscope", "https://www.modelscope.cn", "master",
        "c" * 40, "apache-2.0", "README.md", tuple(files),
    )  # fmt: skip
    (tmp_path / LOCK).write_text(lock_text(lock))
    made.write(model={"lock": LOCK})
    return made


def edited(path: Path) -> None:
    path.write_text(path.read_text() + " ")


def test_the_plan_is_the_same_as_from_the_documents_and_asks_no_hub(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    _, from_lock = place.plan(capsys, "--hub")
    place.write(model={"lock": None})
    _, from_directory = place.plan(capsys)
    assert from_lock["gpu01"]["memory"] == from_directory["gpu01"]["memory"]
    assert from_lock["gpu01"]["memory"]["tokens"]["low"] > 0
    without = [one for one in from_directory["gpu01"]["findings"] if one["id"] != NOT_LOCKED]
    assert from_lock["gpu01"]["findings"] == without
    assert finding(from_directory["gpu01"], NOT_LOCKED)["severity"] == "warn"


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize(
    ("damage", "words"),
    [(edited, "is not the file that the lock names"), (Path.unlink, "No such file")],
)
def test_a_document_that_is_not_the_locked_one_is_refused(
    place: Place,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    words: str,
    name: str,
) -> None:
    damage(place.root / "locks-of-models" / "qwen" / name)
    code, hosts = place.plan(capsys, "--hub")
    assert (code, ids(hosts["gpu01"], "refuse")) == (1, ["model.lock-unusable"])
    evidence = finding(hosts["gpu01"], "model.lock-unusable")["evidence"]
    assert name in evidence
    assert words in evidence


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"{}", b"[1]"])
def test_a_lock_that_cannot_be_read_is_refused_and_nothing_else_breaks(
    place: Place, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = place.root / LOCK
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    code, hosts = place.plan(capsys, "--hub")
    assert (code, ids(hosts["gpu01"], "refuse")) == (1, ["model.lock-unusable"])


def test_licence_and_code_are_judged_by_the_plan(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(
        model={"lock": LOCK},
        allowed_licenses=["mit"],
        engine={"args": place.settings["engine"]["args"] | {"trust-remote-code": True}},
    )
    code, hosts = place.plan(capsys, "--hub")
    assert code == 1
    assert set(ids(hosts["gpu01"], "refuse")) == {
        "model.license-not-allowed",
        "model.repository-code",
    }
    assert (
        "apache-2.0 from README.md"
        in finding(hosts["gpu01"], "model.license-not-allowed")["evidence"]
    )
