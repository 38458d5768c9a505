"""Which hosts a push reached, by pyinfra's own account, and what the operator is told."""

from __future__ import annotations

import argparse
import hashlib
import json
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.keys import commands, keyfile, push
from pyinfra_deploy.keys.errors import KeysError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet

HOSTS = ["gw1", "gw2", "gw3"]


def result(
    *, success: Any = (), no_change: Any = (), error: Any = (), failed: Any = ()
) -> dict[str, Any]:
    operation = {"success": list(success), "no_change": list(no_change), "error": list(error)}
    return {"results": {"operations": [operation], "failed_hosts": list(failed)}}


@pytest.mark.parametrize(
    ("code", "document", "missed"),
    [
        (0, result(success=["gw1"], no_change=["gw2", "gw3"]), []),
        (1, result(success=["gw1", "gw3"], failed=["gw2"]), ["gw2"]),
        (1, result(success=["gw1", "gw3"], error=["gw2"], failed=["gw2"]), ["gw2"]),
        # Failed in a later operation than the one that succeeded.
        (1, result(success=HOSTS, failed=["gw3"]), ["gw3"]),
        # Exit 0 although a host took no part: --limit, or a deploy that skipped it.
        (0, result(success=["gw1", "gw2"]), ["gw3"]),
        (0, {"results": {"operations": [], "failed_hosts": []}}, HOSTS),
        (0, {"plan": {}, "results": None}, HOSTS),
        # All reached and yet an error: nothing is known for sure.
        (1, result(success=HOSTS), HOSTS),
        (None, result(success=HOSTS), HOSTS),
        (0, [], HOSTS),
    ],
)
def test_only_what_is_certain_counts_as_reached(
    code: int | None, document: Any, missed: list[str]
) -> None:
    pushed = push.judge(HOSTS, code, json.dumps(document), "why")
    assert list(pushed.missed) == missed
    assert sorted([*pushed.reached, *pushed.missed]) == HOSTS


@pytest.mark.parametrize("stdout", ["", "No hosts remaining!", '{"results": {'])
def test_without_a_result_no_host_was_reached(stdout: str) -> None:
    pushed = push.judge(HOSTS, 0, stdout, "")
    assert list(pushed.missed) == HOSTS


def test_a_failed_push_shows_hosts_and_cause() -> None:
    text = push.report(push.Pushed(("gw1",), ("gw2", "gw3"), "[gw2] Connection refused"))
    assert "NOT in force on: gw2, gw3" in text
    assert "  | [gw2] Connection refused" in text


class TestCommands:
    @pytest.fixture
    def pushes(self, monkeypatch: pytest.MonkeyPatch) -> list[push.Pushed]:
        """Results of the pushes to come; without any, a push is a failure of the test."""
        results: list[push.Pushed] = []
        monkeypatch.setattr(push, "push", lambda fleet: results.pop(0))
        return results

    @pytest.fixture
    def fleet(self, make_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch) -> Fleet:
        fleet = make_fleet(plaintext_ca_key=True)
        monkeypatch.setattr(commands, "load_fleet", lambda inventory: fleet)
        return fleet

    def run(self, *arguments: str) -> int:
        parser = argparse.ArgumentParser()
        commands.register(parser.add_subparsers())
        parsed = parser.parse_args(arguments)
        code: int = parsed.run(parsed)
        return code

    def test_a_key_is_shown_once_and_alone_on_stdout(
        self, fleet: Fleet, pushes: list[push.Pushed], capsys: pytest.CaptureFixture[str]
    ) -> None:
        pushes.append(push.Pushed(("gw1",), ()))
        assert self.run("keys", "create", "prod", "chat", "--expires", "90d") == 0
        printed = capsys.readouterr()
        (key,) = printed.out.splitlines()
        assert hashlib.sha256(key.encode()).hexdigest() == (
            keyfile.read(keyfile.keys_path(fleet)).keys[0].sha256
        )
        assert key not in printed.err
        assert "In force on 1 gateway host." in printed.err
        assert self.run("keys", "list", "prod") == 0
        listing = capsys.readouterr().out
        assert key[3:11] in listing
        assert key[11:] not in listing

    def test_one_key_with_what_is_in_force_for_it(
        self, fleet: Fleet, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = keyfile.keys_path(fleet)
        limits = keyfile.Limits("gold", ("m",), requests_per_minute=60)
        made = keyfile.create(path, "chat", limits=limits)
        assert self.run("keys", "show", "prod", "chat") == 0
        shown = capsys.readouterr().out
        assert "default (the default; gateway.tiers has no gold)" in shown
        assert "60 per minute" in shown
        assert "models:   m" in shown
        assert made.plaintext[11:] not in shown
        assert self.run("keys", "show", "prod", made.record.id, "--json") == 0
        assert json.loads(capsys.readouterr().out)["tier"] == "gold"
        assert self.run("keys", "show", "prod", "nobody") == 1
        assert "cannot show" in capsys.readouterr().err

    def test_a_tier_that_no_gateway_has_is_said(
        self, fleet: Fleet, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ("keys", "create", "prod", "chat", "--no-push", "--tier")
        assert self.run(*arguments, "gold") == 0
        assert "gateway.tiers has no gold" in capsys.readouterr().err

    def test_limits_that_a_gateway_does_not_heed_are_said(
        self, fleet: Fleet, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run("keys", "create", "prod", "a", "--no-push", "--model", "m") == 0
        assert "COUNT FOR NOTHING" not in capsys.readouterr().err
        gateway: Any = fleet.hosts["gw1"].settings.gateway
        gateway.mode = "direct"
        assert self.run("keys", "create", "prod", "b", "--no-push") == 0
        assert "COUNT FOR NOTHING" not in capsys.readouterr().err
        assert self.run("keys", "create", "prod", "c", "--no-push", "--tier", "t") == 0
        assert "COUNT FOR NOTHING on gw1" in capsys.readouterr().err

    def test_to_a_file_only_the_path_is_printed(
        self, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "k"
        assert self.run("keys", "create", "prod", "chat", "--out", str(out), "--no-push") == 0
        printed = capsys.readouterr()
        assert printed.out == ""
        assert str(out) in printed.err
        assert out.read_text().strip()[11:] not in printed.err
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        assert "No host knows of it yet" in printed.err

    def test_a_revocation_that_missed_a_host_fails_and_names_it(
        self, fleet: Fleet, pushes: list[push.Pushed], capsys: pytest.CaptureFixture[str]
    ) -> None:
        keyfile.create(keyfile.keys_path(fleet), "chat")
        pushes.append(push.Pushed(("gw1",), ("gw2",), "timed out"))
        assert self.run("keys", "revoke", "prod", "chat") == 1
        printed = capsys.readouterr().err
        assert "NOT in force on: gw2" in printed
        assert "THE KEY STILL WORKS THERE" in printed
        assert "fleet keys push prod" in printed
        assert keyfile.read(keyfile.keys_path(fleet)).keys == ()
        pushes.append(push.Pushed(("gw1", "gw2"), ()))
        assert self.run("keys", "push", "prod") == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            ("keys", "revoke", "prod", "nobody"),
            ("keys", "create", "prod", ""),
            ("keys", "create", "prod", "x", "--expires", "soon"),
            ("keys", "push", "prod"),
            ("ca", "show", "prod"),
        ],
    )
    def test_a_mistake_is_a_message_and_no_push(
        self, fleet: Fleet, pushes: list[push.Pushed], capsys: Any, arguments: tuple[str, ...]
    ) -> None:
        assert self.run(*arguments) == 1
        printed = capsys.readouterr().err
        assert "why: " in printed
        assert "fix: " in printed

    def test_the_ca_is_made_and_shown(
        self, fleet: Fleet, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run("ca", "init", "prod") == 0
        assert "Made the CA of prod" in capsys.readouterr().out
        assert self.run("ca", "init", "prod") == 0
        assert "nothing was changed" in capsys.readouterr().out
        assert self.run("ca", "show", "prod") == 0
        assert "may sign: gw1, llm.example.com" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90d", "2026-05-01T09:00:00Z"),
        ("2026-12-31", "2027-01-01T00:00:00Z"),
        ("2026-12-31T18:00:00+08:00", "2026-12-31T10:00:00Z"),
    ],
)
def test_expiry(text: str, expected: str) -> None:
    now = datetime(2026, 1, 31, 9, tzinfo=UTC)
    assert keyfile.format_time(commands.parse_expiry(text, now)) == expected


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "2026-12-31T18:00:00", "99999999d"])
def test_expiry_that_cannot_be_read(text: str) -> None:
    with pytest.raises(KeysError, match="cannot read --expires"):
        commands.parse_expiry(text, datetime(2026, 1, 31, 9, tzinfo=UTC))
