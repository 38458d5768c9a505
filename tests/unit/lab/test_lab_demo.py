"""What `make lab` says at its end: the streamed answer, and a command line to try it with."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lab import demo, hosts
from lab.errors import LabError
from pyinfra_deploy.settings import load_fleet
from tests.fakes.repository import empty, repository

if TYPE_CHECKING:
    from pathlib import Path

    from pyinfra_deploy.settings import Fleet
    from tests.fakes.repository import Repository

__all__ = ["empty", "repository"]


@pytest.fixture
def fleet(repository: Repository) -> Fleet:
    repository.write("host_vars/gpu01.yml", "ansible_host: 10.213.77.11\n")
    repository.write("inventories/prod/first-key.txt", "sk-hunter2\n")
    return load_fleet("prod", repository.root)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        (": a comment keeps the connection open", []),
        ("data: [DONE]", []),
        ('data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}', []),
        ('data: {"choices": [{"delta": {"content": " gateway"}}]}', [" gateway"]),
        ('data: {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}', [*"ab"]),
        ('data: {"choices": [{"delta": {"content": null}, "finish_reason": "stop"}]}', []),
        ('data: {"choices": [], "usage": {"completion_tokens": 7}}', []),
    ],
)  # fmt: skip
def test_the_words_of_a_streams_line(line: str, words: list[str]) -> None:
    assert demo.words_of(line) == words


def test_an_answer_is_printed_as_it_comes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [10.0]

    def stream(*_arguments: Any) -> Any:
        for words in ("A gateway", " is"):
            clock[0] += 0.25
            yield words

    monkeypatch.setattr(demo, "stream", stream)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    demo.answer(fleet, "gpu01")
    assert capsys.readouterr().out == (
        "gpu01: A gateway is\n  [2 events, the first after 0.25 s, the last after 0.50 s]\n"
    )


def test_a_stream_without_a_word_is_a_failure(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "stream", lambda *_: iter(()))
    with pytest.raises(LabError, match="gpu01 answered nothing"):
        demo.answer(fleet, "gpu01")


def test_gateways_are_in_the_inventorys_order(fleet: Fleet) -> None:
    assert demo.gateways(fleet) == ["gpu01", "gpu02"]


def test_the_command_line_can_be_pasted_and_keeps_the_key_in_its_file(
    fleet: Fleet, tmp_path: Path
) -> None:
    line = demo.curl_line(fleet, "gpu01")
    assert "hunter2" not in line
    # In a shell where curl tells what it was given, and reads the header's file as curl does.
    (tmp_path / "bin").mkdir()
    curl = tmp_path / "bin/curl"
    curl.write_text(
        '#!/bin/sh\nfor word; do case $word in @*) cat "${word#@}";; *) echo "$word";; esac; done\n'
    )
    curl.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=fleet.root,
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout
    assert "--resolve\nllm.example.com:443:10.213.77.11\n" in words
    assert "--cacert\ninventories/prod/ca.crt\n" in words
    assert "Authorization: Bearer sk-hunter2" in words
    assert '"model": "Qwen/Qwen3-32B", "stream": true' in words
    assert words.splitlines()[-1] == "https://llm.example.com/v1/chat/completions"


def test_another_port_is_named_in_the_address(repository: Repository) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text() + "  https_port: 8443\n")
    line = demo.curl_line(load_fleet("prod", repository.root), "gpu02")
    assert "--resolve llm.example.com:8443:gpu02" in line
    assert line.endswith("https://llm.example.com:8443/v1/chat/completions")


class Result:
    returncode = 3


def test_a_failed_deploy_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(command: list[str], **_more: Any) -> Result:
        seen.append(command)
        return Result()

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(LabError, match="the deploy failed"):
        demo.deploy()
    assert seen[0][1:] == ["-y", "inventories/lab.py", "deploy.py"]


@pytest.mark.parametrize(("before", "resets"), [(None, 0), ("own", 0), ("/elsewhere", 1)])
def test_hosts_of_another_checkout_begin_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None, resets: int
) -> None:
    done: list[str] = []
    monkeypatch.setattr(demo, "current_layout", lambda: SimpleNamespace(directory=tmp_path))
    monkeypatch.setattr(hosts, "reset", lambda: done.append("reset"))
    monkeypatch.setattr(sys, "stdin", Terminal(there=False))
    mark = tmp_path / "checkout"
    if before is not None:
        mark.write_text(f"{demo.ROOT if before == 'own' else before}\n")
    demo._fresh_disks_after_another_checkout()
    assert len(done) == resets
    assert mark.read_text() == f"{demo.ROOT}\n"


class Terminal:
    def __init__(self, there: bool) -> None:
        self.there = there

    def isatty(self) -> bool:
        return self.there


@pytest.mark.parametrize(
    ("there", "answer", "goes_on"),
    [(True, "y", True), (True, "", False), (True, "no", False), (False, None, True)],
)
def test_at_a_terminal_another_checkouts_disks_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: bool, answer: str | None, goes_on: bool
) -> None:
    done: list[str] = []
    monkeypatch.setattr(demo, "current_layout", lambda: SimpleNamespace(directory=tmp_path))
    monkeypatch.setattr(hosts, "reset", lambda: done.append("reset"))
    monkeypatch.setattr(sys, "stdin", Terminal(there))
    monkeypatch.setattr("builtins.input", lambda _: answer)
    (tmp_path / "checkout").write_text("/elsewhere\n")
    if goes_on:
        demo._fresh_disks_after_another_checkout()
    else:
        with pytest.raises(LabError, match="belong to another checkout"):
            demo._fresh_disks_after_another_checkout()
        assert (tmp_path / "checkout").read_text() == "/elsewhere\n"
    assert done == (["reset"] if goes_on else [])
