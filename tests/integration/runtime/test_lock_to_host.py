"""From a recipe to a host without internet: the real uv resolves, the wheels come, uv installs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fleet_host import environment
from fleet_host.status import Progress

from pyinfra_deploy import cli
from pyinfra_deploy.planning.locked_wheels import wheels_of_lock
from pyinfra_deploy.planning.wanted import requirements

if TYPE_CHECKING:
    from tests.fakes.wheel_index import Index

RECIPE = """\
- path: runtime/x.txt
  purpose: For a test.
  requirements: [alpha]
  before: 2026-11-01
  python: "3.11"
  platform: x86_64-manylinux_2_35
  excluded: {gamma: not needed}
"""
LOCK = "locks/runtime/x.txt"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Index) -> Path:
    """A repository, and an index with alpha 1.0 and a newer one, which needs beta and gamma."""
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/recipes.yml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    index.as_json = True
    index.add("alpha", needs=("beta", "gamma"))
    index.add("alpha", "2.0")
    index.add("beta")
    index.add("gamma")
    index.uploaded = {"alpha-2.0-py3-none-any.whl": "2026-11-20T00:00:00Z"}
    return tmp_path


def lock(index: Index, *words: str) -> int:
    return cli.main(["runtime", "lock", "--index-url", f"{index.url}/simple", *words])


def test_the_date_decides_and_the_same_recipe_gives_the_same_lock(
    root: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(index) == 0
    text = (root / LOCK).read_text()
    assert [wheel.file for wheel in wheels_of_lock(text)] == [
        "alpha-1.0-py3-none-any.whl",
        "beta-1.0-py3-none-any.whl",
    ]
    assert index.url not in text
    capsys.readouterr()
    assert lock(index) == 0
    assert capsys.readouterr().out == f"{LOCK}: as it was\n"
    (root / LOCK).unlink()
    assert lock(index, "runtime/x.txt") == 0
    assert (root / LOCK).read_text() == text


def test_an_upgrade_sees_what_has_come_since(root: Path, index: Index) -> None:
    assert lock(index) == 0
    assert lock(index, "--upgrade", "--before", "2026-12-01") == 0
    files = [wheel.file for wheel in wheels_of_lock((root / LOCK).read_text())]
    assert files == ["alpha-2.0-py3-none-any.whl"]
    assert "before: 2026-12-01" in (root / "locks/recipes.yml").read_text()


def test_what_cannot_be_resolved_leaves_the_lock_as_it_was(
    root: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(index) == 0
    before = (root / LOCK).read_text()
    del index.files["beta-1.0-py3-none-any.whl"]
    assert lock(index, "--upgrade", "--before", "2026-11-01") == 1
    assert "beta" in capsys.readouterr().err
    assert (root / LOCK).read_text() == before


def test_a_package_with_another_platforms_wheel_only_is_refused(
    root: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    content = index.files.pop("beta-1.0-py3-none-any.whl")
    index.files["beta-1.0-cp311-cp311-win_amd64.whl"] = content
    assert lock(index) == 1
    assert "beta" in capsys.readouterr().err
    assert not (root / LOCK).exists()


def test_from_the_lock_to_a_host_that_reaches_nothing(
    root: Path, index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(index) == 0
    gather = ["runtime", "wheelhouse", LOCK, "-o", "wheels", "--index-url", f"{index.url}/simple"]
    assert cli.main(gather) == 0
    assert "downloaded 2 in" in capsys.readouterr().out
    index.asked.clear()
    assert cli.main(gather) == 0
    assert "downloaded 0 in" in capsys.readouterr().out
    for name in ("llm/runtimes", "cache", "run/llm-environment/vllm-1"):
        (root / name).mkdir(parents=True)
    monkeypatch.setenv("FLEET_LLM_ROOT", str(root / "llm"))
    monkeypatch.setenv("CACHE_DIRECTORY", str(root / "cache"))
    monkeypatch.setenv("FLEET_RUN_ROOT", str(root / "run"))
    monkeypatch.setattr(environment, "sync_file_system", lambda _: None)
    system = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    answer = environment.run(
        {
            "path": str(root / "llm/runtimes/vllm-1"),
            "python": str(system if system.exists() else Path("/usr/bin/python3")),
            "requirements": requirements((root / LOCK).read_text()),
            "installer": "uv",
            "uv": str(Path(sys.executable).with_name("uv")),
            "wheelhouse": str(root / "wheels"),
        },
        Progress(None),
    )
    assert {"alpha", "beta"} <= set(answer["versions"])
    assert index.asked == []


def test_a_disk_without_room_and_a_place_that_is_no_place(
    root: Path, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(index) == 0
    (root / "taken").write_text("a file")
    gather = ["runtime", "wheelhouse", LOCK, "-o", "taken", "--index-url", f"{index.url}/simple"]
    assert cli.main(gather) == 1
    said = capsys.readouterr().err
    assert "could not be written into" in said
    assert "Traceback" not in said
    assert os.listdir(root / "locks/runtime") == ["x.txt"]  # noqa: PTH208 - names alone
