"""`fleet runtime flags`: what hosts answer, in words; two runtimes compared; files written."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy import cli
from pyinfra_deploy.runtime import flags

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def flag(**changes: Any) -> dict[str, Any]:
    return {"aliases": [], "kind": "value", "type": "int", "choices": None, "default": "1",
            "deprecated": None, **changes}  # fmt: skip


def runtime(name: str, version: str | None, found: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "version": version, "flags": found, "releases": [], "help": None,
            "problem": "", **more}  # fmt: skip


OLD = runtime("vllm-0.28.0-aa", "0.28.0+cpu", {"speed": flag(), "old": flag()})
NEW = runtime(
    "vllm-0.32.0-bb",
    "0.32.0+cpu",
    {"speed": flag(default="2", deprecated="Use pace."), "new": flag(kind="boolean")},
    help="usage: vllm serve\n  --speed\n",
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    engine = SimpleNamespace(settings=SimpleNamespace(engine=SimpleNamespace(args={"speed": 3})))
    hosts = {
        name: SimpleNamespace(groups={"gpu"}, settings=engine.settings) for name in ("g1", "g2")
    }
    hosts["web"] = SimpleNamespace(groups={"gateway"}, settings=engine.settings)
    fleet = SimpleNamespace(name="prod", hosts=hosts, groups={})
    monkeypatch.setattr(flags, "load_fleet", lambda inventory: fleet)

    def go(answers: dict[str, Any], *words: str) -> int:
        def ask(_fleet: Any, asked: list[str], *, with_help: bool) -> tuple[dict[str, Any], str]:
            assert asked == ["g1", "g2"]
            assert with_help == ("--into" in words)
            return answers, "--> Connecting\n[g2] Could not connect\n"

        monkeypatch.setattr(flags, "ask", ask)
        return cli.main(["runtime", "flags", "prod", *words])

    return go


BOTH = {"g1": {"runtimes": [OLD, NEW]}, "g2": {"runtimes": [NEW]}}


def test_what_is_installed_where(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(BOTH) == 0
    out = capsys.readouterr().out
    assert "vllm-0.28.0-aa: vLLM 0.28.0+cpu on g1\n" in out
    assert "vllm-0.32.0-bb: vLLM 0.32.0+cpu on g1, g2\n" in out


@pytest.mark.parametrize("word", ["0.32.0", "0.32.0+cpu", "vllm-0.32.0-bb"])
def test_one_of_them_in_full(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert run(BOTH, "--of", word) == 0
    out = capsys.readouterr().out
    assert "  speed: a value (int), default 2 (on its way out)\n" in out
    assert "  new: on or off, default 1\n" in out
    assert "old" not in out


def test_two_compared_with_your_arguments_first(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(BOTH, "--diff", "0.28.0", "0.32.0") == 0
    assert capsys.readouterr().out.splitlines() == [
        "engine.args: speed is on its way out: Use pace.",
        "gone: old",
        "new: new (on or off, default 1)",
        "default: speed: 1 -> 2",
        "on its way out: speed: Use pace.",
    ]
    assert run(BOTH, "--diff", "0.32.0", "0.32.0") == 0
    assert "take the same arguments" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--of", "0.99"), ("--diff", "0.28.0", "0.99")])
def test_a_version_that_no_host_has(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(BOTH, *words) == 1
    assert "0.99 is no runtime of these hosts; they have vllm-0.28.0-aa" in capsys.readouterr().err


def test_help_and_arguments_are_fetched(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "kept"
    assert run(BOTH, "--into", str(into)) == 0
    assert (into / "vllm-0.32.0-bb.help.txt").read_text() == NEW["help"]
    assert json.loads((into / "vllm-0.28.0-aa.flags.json").read_text()) == OLD["flags"]
    assert not (into / "vllm-0.28.0-aa.help.txt").exists()
    assert "no help text yet" in capsys.readouterr().out


def test_hosts_that_were_not_read_are_named(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"g1": {"refused": ["fleet-host: bad usage"]}}
    assert run(answers) == 2
    err = capsys.readouterr().err
    assert "NOT read: g1: fleet-host: bad usage" in err
    assert "NOT read: g2: not reached" in err
    assert "Could not connect" in err


def test_a_runtime_whose_source_one_host_could_not_read_is_that_of_another() -> None:
    broken = {**NEW, "flags": {}, "version": None, "problem": "cannot be read", "help": None}
    found = flags.merged({"g1": {"runtimes": [broken]}, "g2": {"runtimes": [NEW]}})
    (entry,) = found.values()
    assert (entry["version"], entry["problem"], entry["help"]) == ("0.32.0+cpu", "", NEW["help"])
    assert entry["hosts"] == ["g1", "g2"]
