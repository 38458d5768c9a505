"""engine.env and texts of engine.args: what Linux does not take, what goes beside a lock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.settings import load_fleet
from pyinfra_deploy.settings.problems import SettingsError
from tests.fakes.repository import GOOD

if TYPE_CHECKING:
    from pyinfra_deploy.settings.problems import Problem
    from tests.fakes.repository import Repository

ROOT = Path(__file__).parents[3]


def _write(repository: Repository, **engine: Any) -> None:
    before, after = GOOD.split("engine:\n")
    gateway = after[after.index("gateway:\n") :]
    # JSON is YAML, escapes too.
    repository.write("group_vars/prod.yml", f"{before}engine: {json.dumps(engine)}\n{gateway}")


def _refused(repository: Repository, **engine: Any) -> Problem:
    _write(repository, **engine)
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("group_vars/prod.yml", 6)
    return problem


def _warnings(repository: Repository, **env: str) -> list[Problem]:
    _write(repository, env=env)
    return load_fleet("prod", repository.root).warnings


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "LD_AUDIT"])
def test_what_runs_beside_the_lock_is_refused(repository: Repository, name: str) -> None:
    problem = _refused(repository, env={name: "/opt/more"})
    assert problem.key_path == f"engine.env.{name}"
    assert "lock file" in problem.message


def _without_egress() -> list[str]:
    """What the unit sets so that the engine fetches and reports nothing."""
    text = (ROOT / "templates/units/engine-sandbox.inc").read_text()
    (block,) = re.findall(r"^# Nothing is fetched and nothing reported.*?(?=^#)", text, re.M | re.S)
    names = re.findall(r"(\w+)=[01](?!\w)", block)
    assert len(names) == 8
    return names


@pytest.mark.parametrize("name", _without_egress())
def test_what_keeps_the_engine_from_calling_out_is_not_for_settings(
    repository: Repository, name: str
) -> None:
    problem = _refused(repository, env={name: "0"})
    assert problem.key_path == f"engine.env.{name}"
    assert re.search("downloads nothing|reports nothing", problem.message)


def test_no_watch_without_statistics(repository: Repository) -> None:
    problem = _refused(repository, args={"disable-log-stats": True})
    assert problem.key_path == "engine.args.disable-log-stats"
    assert "engine.watch" in problem.fix
    _write(repository, args={"disable-log-stats": True}, watch={"enabled": False})
    assert load_fleet("prod", repository.root).hosts["gpu01"].settings.engine.watch.enabled is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "bin:/usr/bin"),
        ("PATH", "/opt/bin:$PATH"),
        ("PATH", ""),
        ("LD_LIBRARY_PATH", "/opt/lib:"),
        ("LD_LIBRARY_PATH", ".:/opt/lib"),
        ("LD_PRELOAD", "libtcmalloc.so.4"),
        ("LD_PRELOAD", "/usr/lib/a.so b.so"),
    ],
)
def test_relative_paths_are_refused(repository: Repository, name: str, value: str) -> None:
    assert "no absolute path" in _refused(repository, env={name: value}).message


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "no lock file"),
        ("LD_LIBRARY_PATH", "/opt/cuda/lib64", "another CUDA"),
        ("PATH", "/usr/local/cuda/bin", "no /usr/bin"),
    ],
)
def test_doubts(repository: Repository, name: str, value: str, what: str) -> None:
    (warning,) = _warnings(repository, **{name: value})
    assert (warning.key_path, warning.line) == (f"engine.env.{name}", 6)
    assert what in warning.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_LIBRARY_PATH", "/usr/local/cuda-13.0/compat"),  # finding compat.forward-compatibility
        ("PATH", "/usr/local/cuda/bin:/usr/bin:/bin"),
    ],
)
def test_no_doubts(repository: Repository, name: str, value: str) -> None:
    assert _warnings(repository, **{name: value}) == []


def test_a_variable_as_long_as_linux_takes_it(repository: Repository) -> None:
    assert _warnings(repository, A="é" * 65_534 + "x") == []  # with "A=": 131,071 bytes
    problem = _refused(repository, env={"A": "é" * 65_535})
    assert problem.key_path == "engine.env.A"
    assert "131072 bytes with its name" in problem.message


def test_the_whole_environment(repository: Repository) -> None:
    assert _warnings(repository, **{f"A{n}": "x" * 100_000 for n in range(10)}) == []
    problem = _refused(repository, env={f"A{n}": "x" * 100_000 for n in range(11)})
    assert problem.key_path == "engine.env"
    assert "in all" in problem.message


@pytest.mark.parametrize(
    "value",
    ["a\0b", ["x", "\0"], {"a": {"b": ["\0"]}}, {"a\0": 1}],
    ids=["text", "list", "deep", "key"],
)
def test_no_nul_in_arguments(repository: Repository, value: Any) -> None:
    problem = _refused(repository, args={"hf-overrides": value})
    assert problem.key_path == "engine.args.hf-overrides"
    assert "NUL" in problem.message
    assert "\0" not in str(problem)


def test_the_name_of_an_argument_has_an_end(repository: Repository) -> None:
    longest = "a" * 100
    _write(repository, args={longest: 1})
    assert load_fleet("prod", repository.root).hosts["gpu01"].settings.engine.args == {longest: 1}
    assert "100 characters" in _refused(repository, args={longest + "a": 1}).message
