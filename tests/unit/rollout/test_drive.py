"""A rollout from its lock to its end over hosts that are not there: every row of the table of exit
codes in docs/rollout.md that a run can end with."""

from __future__ import annotations

import errno
import io
import json
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pyinfra_deploy.cli import build_parser
from pyinfra_deploy.rollout import record
from pyinfra_deploy.rollout.asking import Answers
from pyinfra_deploy.rollout.console import Console
from pyinfra_deploy.rollout.drive import drive
from pyinfra_deploy.rollout.outcome import Outcome
from pyinfra_deploy.rollout.policy import Batch, Code, Course, Kind, Options
from pyinfra_deploy.rollout.pyinfra_hosts import HELD, PyinfraHosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyinfra_deploy.rollout.serving import Serving

FOUR = ("a", "b", "c", "d")
DOCS = Path(__file__).resolve().parents[3] / "docs/rollout.md"


@dataclass
class FakeFleet:
    name: str = "prod"


@dataclass
class FakeHosts:
    """behave: what becomes of a host, LIVE by default; an exception is raised in its turn."""

    behave: dict[str, Any] = field(default_factory=dict)
    refuse: dict[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    early: dict[str, Kind] = field(default_factory=dict)
    fleet: FakeFleet = field(default_factory=FakeFleet)
    taken: list[str] = field(default_factory=list)
    turns: list[tuple[str, ...]] = field(default_factory=list)
    ends: list[tuple[dict[str, str], str]] = field(default_factory=list)

    def take(self, document: Any, generations: Any) -> Answers:
        answers = Answers()
        for host in FOUR:
            if host in self.refuse:
                answers.refused[host] = {"what": self.refuse[host]}
            else:
                answers[host] = {}
                self.taken.append(host)
        if answers.missing:  # those that it could not give back
            self.taken = list(self.keep)
        return answers

    def status(self, hosts: Sequence[str]) -> Answers:
        answers = Answers()
        for host in hosts:
            answers[host] = {"engine": {"golive_active": "active", "golive": {"phase": "starting"}}}
        return answers

    def give_back(self, results: Mapping[str, str], state: str, causes: Any = None) -> list[str]:
        self.ends.append((dict(results), state))
        self.taken = list(self.keep)
        return self.taken

    def build_early(self) -> dict[str, Outcome]:
        return {
            host: Outcome(host, kind, reason="the hub is gone") for host, kind in self.early.items()
        }

    def look(self, before: Serving, waiting: tuple[str, ...]) -> Serving:
        return before

    def switch(self, hosts: tuple[str, ...]) -> dict[str, Outcome]:
        self.turns.append(hosts)
        found = {}
        for host in hosts:
            how = self.behave.get(host, Kind.LIVE)
            if isinstance(how, BaseException):
                raise how
            found[host] = Outcome(
                host, how, "r2", "r1", reason="it died" if how is not Kind.LIVE else "",
                fix="mend it", lines=("the last words",),
            )  # fmt: skip
        return found


def run(
    tmp_path: Path, hosts: FakeHosts, options: Options | None = None
) -> tuple[Code, dict[str, Any]]:
    options = options or Options(batch=Batch(size=1))
    kept = record.begin(
        tmp_path, "prod", "ro1", kind="rollout", owner="ada", options=options,
        groups=[FOUR], hosts={host: {"from": "r1", "to": "r2"} for host in FOUR},
    )  # fmt: skip
    console = Console(kept, Course(FOUR, options))
    code = drive(cast("PyinfraHosts", hosts), console, {"id": "ro1"}, {})
    return code, json.loads(kept.path.read_text())


def test_complete(tmp_path: Path) -> None:
    hosts = FakeHosts()
    code, report = run(tmp_path, hosts)
    assert (code, report["end"]["what"]) == (Code.DONE, "complete")
    assert hosts.turns == [("a",), ("b",), ("c",), ("d",)]
    assert hosts.ends == [(dict.fromkeys(FOUR, "live"), "")]


def test_stopped_at_the_canary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = FakeHosts({"a": Kind.BACK})
    code, report = run(tmp_path, hosts, Options(max_failures=3))
    assert (code, hosts.turns) == (Code.STOPPED, [("a",)])
    said = capsys.readouterr().out
    for words in (
        "a: went back and serves its previous release: it died",
        "| the last words",
        "a serves r1",
        "next: mend it",
        "not touched: b, c, d",
        "(exit code 3)",
    ):
        assert words in said
    assert report["hosts"]["a"]["outcome"]["lines"] == ["the last words"]
    assert hosts.ends == [({"a": "back"}, "")]


def test_to_the_end_with_failures_that_were_allowed(tmp_path: Path) -> None:
    hosts = FakeHosts({"c": Kind.FAILED})
    options = Options(batch=Batch(size=2), max_failures=1)
    assert run(tmp_path, hosts, options)[0] == Code.WITH_FAILURES
    assert hosts.turns == [("a",), ("b", "c"), ("d",)]


@pytest.mark.parametrize(("kind", "code"), [(Kind.DOWN, Code.DOWN), (Kind.LOST, Code.LOST)])
def test_a_host_that_is_down_or_lost(
    tmp_path: Path, kind: Kind, code: Code, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = FakeHosts({"b": kind})
    assert run(tmp_path, hosts)[0] == code
    assert hosts.turns == [("a",), ("b",)]
    # It is over on all hosts, so nothing may point to --resume.
    assert hosts.ends[0][1] == ""
    assert "--resume" not in capsys.readouterr().out


def test_a_lost_host_is_skipped_where_it_may_fail(tmp_path: Path) -> None:
    hosts = FakeHosts({"b": Kind.LOST})
    code, _ = run(tmp_path, hosts, Options(batch=Batch(size=1), max_failures=1))
    assert (code, hosts.turns[-1]) == (Code.LOST, ("d",))


def test_a_host_that_cannot_be_built_on_stops_it_before_anything_is_switched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = FakeHosts(early={"c": Kind.FAILED})
    assert run(tmp_path, hosts)[0] == Code.STOPPED
    assert hosts.turns == []
    assert "c: failed before it was switched: the hub is gone" in capsys.readouterr().out
    allowed = FakeHosts(early={"c": Kind.FAILED})
    code, _ = run(tmp_path, allowed, Options(batch=Batch(size=1), max_failures=1))
    assert (code, allowed.turns) == (Code.WITH_FAILURES, [("a",), ("b",), ("d",)])


def test_paused_where_nobody_can_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = FakeHosts()
    code, _ = run(tmp_path, hosts, Options(pause=True))
    assert (code, hosts.turns) == (Code.PAUSED, [("a",)])
    assert hosts.ends == [({"a": "live"}, "paused")]
    assert "go on with: fleet rollout prod --resume" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "code"), [(HELD, Code.LOCKED), ("the host has changed", Code.REFUSED)]
)
def test_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, code: Code
) -> None:
    hosts = FakeHosts(refuse={"c": what})
    found, report = run(tmp_path, hosts)
    assert (found, hosts.turns, report["end"]["what"]) == (code, [], "not begun")
    said = capsys.readouterr().out
    assert f"c: {what}" in said
    assert ("fleet lock status prod" in said) == (code is Code.LOCKED)


def test_who_may_be_locked_after_a_lost_answer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, FakeHosts(refuse={"c": "the host has changed"}, keep=("d",)))
    assert "fleet lock status prod --limit d" in capsys.readouterr().out


def test_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = FakeHosts({"b": KeyboardInterrupt()}, keep=("d",))
    code, report = run(tmp_path, hosts)
    assert (code, report["end"]["code"]) == (Code.INTERRUPTED, 130)
    assert hosts.ends == [({"a": "live", "b": "interrupted"}, "interrupted")]
    said = capsys.readouterr().out
    assert "b: its go-live (starting) goes on by itself" in said
    assert "the lock of d was not given back" in said
    assert "fleet lock release prod --limit d" in said
    assert "fleet rollout prod --resume" in said


def test_interrupted_twice_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = FakeHosts({"b": KeyboardInterrupt()})

    def again(*_: object) -> Answers:
        raise KeyboardInterrupt

    monkeypatch.setattr(hosts, "status", again)
    code, _ = run(tmp_path, hosts)
    assert code == Code.INTERRUPTED
    said = capsys.readouterr().out
    assert "left at once" in said
    assert "the lock of a, b, c, d was not given back" in said


class ClosedTerminal(io.StringIO):
    """As a pty answers when its other end is closed."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_on_a_closed_terminal_the_hosts_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = FakeHosts({"b": KeyboardInterrupt()})
    monkeypatch.setattr("sys.stdout", ClosedTerminal())
    code, report = run(tmp_path, hosts)
    assert (code, report["end"]["what"]) == (Code.INTERRUPTED, "interrupted")
    assert hosts.ends == [({"a": "live", "b": "interrupted"}, "interrupted")]
    assert "fleet rollout prod --resume" in "\n".join(report["log"])


def test_a_terminal_that_is_closed_says_so_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = FakeHosts()

    def closed(*_: object) -> dict[str, Outcome]:
        signal.raise_signal(signal.SIGHUP)
        return {}

    def again(hosts: Sequence[str]) -> Answers:
        signal.raise_signal(signal.SIGHUP)
        return Answers()

    monkeypatch.setattr(hosts, "switch", closed)
    monkeypatch.setattr(hosts, "status", again)
    assert run(tmp_path, hosts)[0] == Code.INTERRUPTED
    assert hosts.ends == [({"a": "interrupted"}, "interrupted")]


def test_a_defect_leaves_no_lock(tmp_path: Path) -> None:
    hosts = FakeHosts({"b": ZeroDivisionError()})
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, hosts)
    # What became of whom is kept: these were not "not begun".
    assert hosts.ends == [({"a": "live", "b": "interrupted"}, "interrupted")]


@pytest.mark.parametrize(
    "words",
    [("--batch", "0%"), ("--canary", "-1"), ("--max-failures", "x"), ("--no-such",)],
)
def test_wrong_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser("rollout").parse_args(["rollout", "prod", *words])
    assert ended.value.code == Code.USAGE
    assert "usage: fleet" in capsys.readouterr().err


def test_the_table_in_the_documentation_has_every_code() -> None:
    rows = re.findall(r"^\| (\d+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(row) for row in rows] == [code.value for code in Code]
