"""From uv's answers to a lock: which wheels fit, what is refused, what stands on top."""

from __future__ import annotations

import datetime
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from pyinfra_deploy.planning.locked_wheels import LockedWheel, wheels_of_lock
from pyinfra_deploy.runtime import lock, recipes, resolve
from pyinfra_deploy.settings import SettingsError

ROOT = Path(__file__).resolve().parents[3]


def recipe(**changes: Any) -> recipes.Recipe:
    return recipes.Recipe(
        **{
            "path": "runtime/x.txt",
            "purpose": "For a test.",
            "requirements": ("alpha==1.0",),
            "before": datetime.date(2026, 11, 30),
            "python": "3.12",
            "platform": "x86_64-manylinux_2_35",
            **changes,
        }
    )


def wheel(file: str) -> LockedWheel:
    return LockedWheel(file, 10, f"{abs(hash(file)):064x}")


@pytest.mark.parametrize(
    ("files", "best"),
    [
        (["a-1-py3-none-any.whl", "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"], 1),
        (["a-1-cp39-abi3-manylinux_2_31_x86_64.whl", "a-1-py3-none-any.whl"], 0),
        (["a-1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"], 0),
        (["a-1-py2.py3-none-any.whl"], 0),
        (["a-1-cp311-cp311-manylinux_2_28_x86_64.whl"], None),
        (["a-1-cp312-cp312-manylinux_2_39_x86_64.whl"], None),
        (["a-1-cp312-cp312-manylinux_2_28_aarch64.whl"], None),
        (["a-1-cp312-cp312-musllinux_1_2_x86_64.whl"], None),
        (["a-1-cp312-cp312t-manylinux_2_28_x86_64.whl"], None),
        (["a-1-cp312-cp312-win_amd64.whl", "nonsense.whl"], None),
    ],
)
def test_the_wheel_that_a_host_takes(files: list[str], best: int | None) -> None:
    found = [one.file for one in resolve.fitting(recipe(), [wheel(file) for file in files]).best]
    assert found == ([] if best is None else [files[best]])


def test_a_mirror_may_lack_the_best() -> None:
    """Two wheels of a version, for an older C library too: an index may have one of them only."""
    tags = ("manylinux_2_28", "manylinux2014", "manylinux_2_39")
    wheels = [wheel(f"a-1-cp37-abi3-{tag}_x86_64.whl") for tag in tags]
    found = resolve.fitting(recipe(), wheels)
    assert found.best == (wheels[0],)
    assert found.sha256s == {one.sha256 for one in wheels[:2]}


def test_a_lock_for_all_pythons_names_one_for_each() -> None:
    files = [f"a-1-cp3{n}-cp3{n}-manylinux_2_28_x86_64.whl" for n in (10, 11, 12, 13, 14)]
    found = resolve.fitting(recipe(platform=None, python="3.11"), [wheel(file) for file in files])
    assert [one.file for one in found.best] == files[1:]


def row(file: str, sha256: str = "a" * 64) -> dict[str, Any]:
    return {"url": f"https://x/{file}", "size": 10, "hashes": {"sha256": sha256}}


def test_a_package_with_its_source_only_is_refused_by_name() -> None:
    packages: list[dict[str, Any]] = [
        {"name": "alpha", "version": "1.0", "wheels": [row("alpha-1.0-py3-none-any.whl")]},
        {"name": "llguidance", "version": "1.7.6"},
        {"name": "Gamma", "version": "2", "wheels": [row("gamma-2-cp311-cp311-win32.whl")]},
    ]
    with pytest.raises(resolve.Unresolved) as caught:
        resolve.choose_wheels(recipe(), packages)
    assert "llguidance 1.7.6 has its source only" in str(caught.value)
    assert "Gamma 2 has gamma-2-cp311-cp311-win32.whl" in str(caught.value)
    assert "alpha" not in str(caught.value)


RESOLVED = (
    f"alpha==1.0 \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n"
    "    # via beta\n"
)


@pytest.mark.parametrize(("narrow", "hashes"), [(True, 1), (False, 2)])
def test_an_entry_gets_its_wheels(narrow: bool, hashes: int) -> None:
    mine = LockedWheel("alpha-1.0-py3-none-any.whl", 10, "b" * 64)
    taken = resolve.Fitting((mine,), frozenset({mine.sha256}))
    text = resolve.annotate(RESOLVED, {("alpha", "1.0"): taken}, narrow=narrow)
    assert text.count("--hash=") == hashes
    assert "# via beta" in text
    assert wheels_of_lock(text) == (mine,)
    assert not text.splitlines()[hashes].endswith("\\")


def test_a_wheel_of_another_hash_is_refused() -> None:
    mine = LockedWheel("alpha-1.0-py3-none-any.whl", 10, "c" * 64)
    taken = resolve.Fitting((mine,), frozenset({mine.sha256}))
    with pytest.raises(resolve.Unresolved, match="two hashes"):
        resolve.annotate(RESOLVED, {("alpha", "1.0"): taken}, narrow=True)


def test_the_head_says_how_to_make_it_again() -> None:
    head = resolve.header(recipe(excluded={"triton": "no GPU"}, stub="1+cpu"))
    for words in (
        "fleet runtime lock runtime/x.txt",
        "--python-version 3.12 --python-platform x86_64-manylinux_2_35",
        "uploaded before 2026-11-30",
        "  triton: no GPU",
        "is a stub",
    ):
        assert words in head


def options(**changes: Any) -> Namespace:
    return Namespace(
        **{
            "vllm": "0.34.0",
            "python": "3.12",
            "platform": "x86_64-manylinux_2_35",
            "cuda": "default",
            "extra_index": [],
            "before": datetime.date(2026, 12, 1),
            **changes,
        }
    )


def test_a_new_vllm_gets_a_recipe(tmp_path: Path) -> None:
    made = lock.new_recipe(options())
    assert made.path == "runtime/vllm-0.34.0-py312-linux_x86_64.txt"
    assert made.requirements == ("vllm==0.34.0",)
    (tmp_path / "locks").mkdir()
    before = (ROOT / "locks/recipes.yml").read_text()
    (tmp_path / "locks/recipes.yml").write_text(before)
    recipes.add_recipe(tmp_path, made)
    assert recipes.read_recipes(tmp_path)[made.path] == made
    assert (tmp_path / "locks/recipes.yml").read_text().startswith(before.rstrip())


def test_another_cuda_build_is_of_another_index() -> None:
    with pytest.raises(SettingsError, match="one CUDA build"):
        lock.new_recipe(options(cuda="cu129"))
    made = lock.new_recipe(options(cuda="cu129", extra_index=["https://wheels.example/cu129"]))
    assert made.requirements == ("vllm==0.34.0+cu129",)
    assert "cu129" in made.path
    assert "CUDA 12.9" in made.purpose
    with pytest.raises(SettingsError, match="no CUDA build"):
        lock.new_recipe(options(cuda="12.9"))


def test_an_upgrade_moves_the_date_of_one_recipe(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    text = (ROOT / "locks/recipes.yml").read_text()
    (tmp_path / "locks/recipes.yml").write_text(text)
    known = recipes.read_recipes(tmp_path)
    lock._write_date(tmp_path, known["gateway.txt"], datetime.date(2027, 1, 2))
    changed = recipes.read_recipes(tmp_path)
    assert changed["gateway.txt"].before == datetime.date(2027, 1, 2)
    assert {path for path in known if known[path] != changed[path]} == {"gateway.txt"}
    assert (tmp_path / "locks/recipes.yml").read_text().count("#") == text.count("#")


def test_a_wrong_recipe_is_said(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/recipes.yml").write_text("- {path: x.txt, purpose: p}\n")
    with pytest.raises(SettingsError, match="requirements"):
        recipes.read_recipes(tmp_path)


def test_a_lock_that_nobody_knows_gets_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match=r"did you mean tools/uv\.txt\?"):
        lock._known(recipes.read_recipes(ROOT), "locks/tools/uw.txt")
