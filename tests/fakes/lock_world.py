"""What the tests of `fleet model lock` share: a small model, the lab's hub, a working directory."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub import store
from lab.hub.places import models_directory
from lab.hub.server import Hub, running
from pyinfra_deploy.cli import main
from pyinfra_deploy.model import web
from tests.fakes.lab_hub import RunningHub, make_directory
from tests.fakes.model_hub import tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = "lab/tiny"
README = b"---\nlicense: apache-2.0\n---\n# Tiny\n"


def whole_model() -> dict[str, bytes]:
    """Two shards with their index, a tokenizer, a directory and a README that names a licence."""
    return tiny_model() | {
        "README.md": README,
        "tokenizer.json": b'{"model": {}}',
        "tokenizer_config.json": b"{}",
    }


@dataclass
class LockWorld:
    """A repository's root to run `fleet model lock` in, and the lab's hub with one model."""

    root: Path
    hub: RunningHub
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    error: str = ""

    def publish(self, files: dict[str, bytes], branch: str = "master") -> str:
        """The commit."""
        made = self.hub.hub.directory / "made"
        shutil.rmtree(made, ignore_errors=True)
        return store.publish(
            models_directory(self.hub.hub.directory), make_directory(made, files), MODEL, branch
        )

    def lock(self, *words: str, what: str = MODEL) -> int:
        """Against the lab's hub, unless the words say another place."""
        place = () if "--from" in words else ("--endpoint", self.hub.url)
        code = main(["model", "lock", what, *place, *words])
        self.out, self.error = self.capsys.readouterr()
        return code

    def written(self, path: str = "locks/models/lab--tiny/master.json") -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.root / path).read_text())
        return document

    def refused(self, *words: str, what: str = MODEL) -> str:
        """The refusal of a lock that must not have been written."""
        before = sorted(self.root.rglob("*"))
        assert self.lock(*words, what=what) == 1, self.out
        assert sorted(self.root.rglob("*")) == before
        return self.error


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[LockWorld]:
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    for name in ("MODELSCOPE_API_TOKEN", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(web, "RETRY_DELAYS_SECONDS", (0.0, 0.0, 0.0))
    state = Hub(tmp_path / "hub")
    state.directory.mkdir()
    with running(state) as url:
        made = LockWorld(root, RunningHub(url, state), capsys)
        made.publish(whole_model())
        yield made
