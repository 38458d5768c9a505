"""The one command that reads a host: it runs without anything of ours, and its answer is parsed."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.api import FactProcessError

from pyinfra_deploy.facts import snapshot
from pyinfra_deploy.facts.snapshot import HostSnapshot, parse, read_snapshot

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = {
    "llm_root": '/srv/it\'s "odd" $HOME',
    "packages": [],
    "files": ["/etc/hostname; rm -rf /", "/etc/os-release"],
    "users": ["root"],
}


def command(request: dict[str, Any]) -> str:
    return str(HostSnapshot().command(json.dumps(request)).get_raw_value())


def run(text: str, **environment: str) -> list[str]:
    """As pyinfra does: `sh -c`."""
    done = subprocess.run(
        ["sh", "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
        timeout=30,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_command_runs_the_snapshot_with_a_bare_interpreter(tmp_path: Path) -> None:
    # Nothing of the caller's is imported: -I -S leaves these out.
    (tmp_path / "json.py").write_text("raise SystemExit('imported the wrong json')")
    found = HostSnapshot().process(run(command(REQUEST), PYTHONPATH=str(tmp_path)))
    assert found["format"] == 1
    assert list(found["files"]) == REQUEST["files"]
    assert found["files"]["/etc/hostname; rm -rf /"] is None
    assert found["files"]["/etc/os-release"]["mode"] == "0644"
    assert found["users"]["root"]["uid"] == 0
    assert found["disk"]["llm_root"]["path"]
    assert found["os"]["python"]


def test_it_is_one_command_line_that_any_kernel_takes() -> None:
    text = command(REQUEST | {"files": [f"/etc/{number}" for number in range(500)]})
    assert "\n" not in text
    # execve(2): 128 KiB in one argument, which sudo's `sh -c` is.
    assert len(text) < 100 * 1024


def test_a_host_without_python_still_says_what_it_is(tmp_path: Path) -> None:
    for name in ("id", "cat", "sh"):
        (tmp_path / name).symlink_to(f"/bin/{name}" if name != "id" else "/usr/bin/id")
    found = HostSnapshot().process(run(command(REQUEST), PATH=str(tmp_path)))
    assert found["python_missing"] is True
    assert found["os"]["id"]
    assert found["os"]["is_root"] is (os.geteuid() == 0)


RELEASE = ["ID=debian", 'VERSION_ID="12"', "VERSION_CODENAME=bookworm", "HOME_URL=x=y", "junk"]


@pytest.mark.parametrize(
    ("before", "user", "root"),
    [([], "0", True), ([], "1000", False), (["Welcome to gpu01", "{not json", ""], "0", True)],
)
def test_the_short_answer_is_read_behind_a_greeting(
    before: list[str], user: str, root: bool
) -> None:
    assert parse([*before, "NO-PYTHON", user, *RELEASE]) == {
        "python_missing": True,
        "os": {
            "id": "debian",
            "version_id": "12",
            "codename": "bookworm",
            "is_root": root,
            "python": None,
            "pythons": [],
        },
    }


@pytest.mark.parametrize("before", [[], ["Welcome", "", "*** maintenance on Sunday ***", "{motd}"]])
def test_the_document_is_the_last_line(before: list[str]) -> None:
    assert parse([*before, '{"format": 1}']) == {"format": 1}


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ([], "printed no snapshot"),
        (["sudo: a terminal is required"], "sudo: a terminal is required"),
        (["[1, 2]"], r"\[1, 2\]"),
        (['{"format": 1'], "not JSON"),
        (["x" * 900], "x{100}"),
        (["first", "2", "3", "4", "5", "last"], "but: 2 "),
    ],
)
def test_anything_else_fails_this_one_host(output: list[str], said: str) -> None:
    """pyinfra drops one host for a FactProcessError, and ends the run of all for another."""
    with pytest.raises(FactProcessError, match=said) as caught:
        parse(output)
    assert len(str(caught.value)) < 500


def test_a_host_is_read_once_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Host:
        def get_fact(self, fact: type, request: str) -> dict[str, Any]:
            assert fact is HostSnapshot
            asked.append(request)
            return {"format": 1}

    monkeypatch.setattr(snapshot, "_memo", {})
    one: Any = Host()
    other: Any = Host()
    assert read_snapshot(one, {"b": 1, "a": 2}) is read_snapshot(one, {"b": 1, "a": 2})
    assert asked == ['{"a": 2, "b": 1}']
    read_snapshot(other, {})
    assert len(asked) == 2
