"""keys.json: what is written, what is refused, and two operators at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import stat
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from llm_gateway import keys as gateway

from pyinfra_deploy.keys import durable, keyfile
from pyinfra_deploy.keys.errors import KeysError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_has_the_documented_shape_and_its_plaintext_is_nowhere(path: Path) -> None:
    created = keyfile.create(path, "chat")
    assert re.fullmatch(r"sk-[a-z0-9]{8}[A-Za-z0-9_-]{43}", created.plaintext)
    assert created.plaintext[3:11] == created.record.id
    assert created.plaintext[11:] not in path.read_text()
    assert created.plaintext[11:] not in repr(created)
    assert mode(path) == 0o644
    assert keyfile.create(path, "other").plaintext[11:] != created.plaintext[11:]
    assert sorted(each.name for each in path.parent.iterdir()) == ["keys.json"]


def test_every_change_raises_the_serial(path: Path) -> None:
    assert keyfile.read(path) == keyfile.KeyFile(0, ())
    one = keyfile.create(path, "one").record
    two = keyfile.create(path, "two", datetime.now(UTC) + timedelta(days=1)).record
    assert keyfile.read(path) == keyfile.KeyFile(2, (one, two))
    assert keyfile.revoke(path, "one") == one
    assert keyfile.revoke(path, two.id) == two
    assert keyfile.read(path) == keyfile.KeyFile(4, ())


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda p: keyfile.create(p, "one"), "has a key of that name"),
        (lambda p: keyfile.create(p, ""), "1 to 64 printable"),
        (lambda p: keyfile.create(p, "a\nb"), "1 to 64 printable"),
        (lambda p: keyfile.create(p, "x", datetime(2020, 1, 1, tzinfo=UTC)), "expired already"),
        (lambda p: keyfile.revoke(p, "nobody"), "it has: .*one"),
    ],
)
def test_a_refusal_changes_nothing(path: Path, act: Callable[[Path], Any], said: str) -> None:
    keyfile.create(path, "one")
    before = path.read_bytes()
    with pytest.raises(KeysError, match=said):
        act(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "<<<<<<< HEAD",
        '{"schema": 2, "serial": 1, "keys": []}',
        '{"schema": 1, "serial": -1, "keys": []}',
        '{"schema": 1, "serial": 1, "keys": {}}',
        '{"schema": 1, "serial": 1, "keys": [], "more": 1}',
        '{"schema": 1, "serial": 1, "keys": [{"id": "a"}]}',
        '{"schema": 1, "serial": 1, "keys": [{"id": "aaaaaaaa", "name": "n", "sha256": "0",'
        ' "created": "2026-01-31T09:00:00Z", "expires": null}]}',
    ],
)
def test_a_file_that_is_not_understood_is_left_alone(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(KeysError, match=r"keys\.json is not a key file"):
        keyfile.create(path, "x")
    assert path.read_text() == content


class TestPlaintextToAFile:
    def test_only_its_owner_can_read_it(self, path: Path, tmp_path: Path) -> None:
        out = tmp_path / "key.txt"
        previous = os.umask(0)
        try:
            created = keyfile.create(path, "x", out=out)
        finally:
            os.umask(previous)
        assert mode(out) == 0o600
        assert out.read_text() == created.plaintext + "\n"

    @pytest.mark.parametrize("what", ["file", "link", "dangling link", "no directory"])
    def test_nothing_is_overwritten_and_no_key_is_made(
        self, path: Path, tmp_path: Path, what: str
    ) -> None:
        out, other = tmp_path / "key.txt", tmp_path / "other"
        if what == "file":
            out.write_text("precious")
        elif what == "link":
            other.write_text("precious")
            out.symlink_to(other)
        elif what == "dangling link":
            out.symlink_to(other)
        else:
            out = tmp_path / "absent" / "key.txt"
        with pytest.raises(KeysError, match="no key was created"):
            keyfile.create(path, "x", out=out)
        assert not path.exists()
        if what in ("file", "link"):
            assert out.read_text() == "precious"
        else:
            assert not other.exists()


def _create(arguments: tuple[Path, int]) -> None:
    path, number = arguments
    keyfile.create(path, f"key {number}")


def test_operators_at_once_lose_no_key(path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(_create, [(path, number) for number in range(20)], chunksize=1)
    content = keyfile.read(path)
    assert content.serial == 20
    assert {key.name for key in content.keys} == {f"key {number}" for number in range(20)}


def test_a_lock_that_stays_is_told(tmp_path: Path) -> None:
    with (
        durable.locked(tmp_path),
        pytest.raises(KeysError, match="being changed by somebody else"),
        durable.locked(tmp_path, timeout_seconds=0.1),
    ):
        pytest.fail("two writers at once")


def test_a_write_is_synced_before_and_after_the_rename(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, type(path).replace

    def traced_fsync(descriptor: int) -> None:
        calls.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def traced_replace(self: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(type(path), "replace", traced_replace)
    keyfile.create(path, "x")
    assert calls == ["file", "rename", "directory"]


def test_a_failed_write_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyfile.create(path, "one")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keyfile.create(path, "two")
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["keys.json"]


LIMITS = keyfile.Limits("batch", ("org/model", "short"), 60, 100_000)


def test_limits_of_a_key_come_back_and_the_gateway_reads_them(path: Path) -> None:
    limited = keyfile.create(path, "limited", limits=LIMITS).record
    free = keyfile.create(path, "free").record
    assert keyfile.read(path).keys == (limited, free)
    document = json.loads(path.read_bytes())
    assert document["keys"][0]["models"] == ["org/model", "short"]
    assert set(document["keys"][1]) == {"id", "name", "sha256", "created", "expires"}
    first, second = gateway.parse_key_file(path.read_bytes()).keys
    assert (first.tier, first.models) == ("batch", frozenset({"org/model", "short"}))
    assert (first.requests_per_minute, first.tokens_per_minute) == (60, 100_000)
    assert (second.tier, second.models, second.tokens_per_minute) == (None, None, None)


@pytest.mark.parametrize(
    "limits",
    [
        keyfile.Limits(tier=""),
        keyfile.Limits(tier="a\nb"),
        keyfile.Limits(models=()),
        keyfile.Limits(requests_per_minute=0),
        keyfile.Limits(tokens_per_minute=True),
    ],
)
def test_a_limit_that_no_host_would_read_is_not_written(path: Path, limits: keyfile.Limits) -> None:
    with pytest.raises(KeysError, match="cannot create the key"):
        keyfile.create(path, "x", limits=limits)
    assert not path.exists()


def test_rotating_keeps_name_and_limits_and_gives_the_old_key_an_end(path: Path) -> None:
    old = keyfile.create(path, "chat", limits=LIMITS)
    keep = datetime.now(UTC) + timedelta(days=7)
    created, former = keyfile.rotate(path, "chat", keep)
    assert keyfile.read(path) == keyfile.KeyFile(2, (former, created.record))
    assert (former.id, former.sha256) == (old.record.id, old.record.sha256)
    assert (former.expires, former.name) == (keyfile.format_time(keep), f"chat (old {former.id})")
    assert created.record.name == "chat"
    assert created.record.models == LIMITS.models
    assert created.plaintext != old.plaintext
    keys = {key.id: key for key in gateway.parse_key_file(path.read_bytes()).keys}
    for plaintext, later in ((old.plaintext, False), (created.plaintext, True)):
        assert gateway.find_key(keys, plaintext, datetime.now(UTC))
        after = datetime.now(UTC) + timedelta(days=8)
        assert bool(gateway.find_key(keys, plaintext, after)) == later


def test_rotating_again_and_again_and_a_long_name(path: Path) -> None:
    keyfile.create(path, "x" * 64)
    for _ in range(3):
        keyfile.rotate(path, "x" * 64, datetime.now(UTC) + timedelta(days=1))
    assert len(keyfile.read(path).keys) == 4
    assert len(gateway.parse_key_file(path.read_bytes()).keys) == 4


def test_a_key_that_expires_is_not_prolonged_by_rotating(path: Path) -> None:
    ends = datetime.now(UTC) + timedelta(days=3)
    keyfile.create(path, "chat", ends)
    created, former = keyfile.rotate(path, "chat", datetime.now(UTC) + timedelta(days=7))
    assert created.record.expires == former.expires == keyfile.format_time(ends)


def test_what_cannot_be_rotated(path: Path) -> None:
    keyfile.create(path, "chat", datetime.now(UTC) + timedelta(seconds=0.01))
    with pytest.raises(KeysError, match="cannot rotate 'nobody'"):
        keyfile.rotate(path, "nobody", datetime.now(UTC))
    time.sleep(0.02)
    with pytest.raises(KeysError, match="it expired on"):
        keyfile.rotate(path, "chat", datetime.now(UTC))


class TestFirstKey:
    def test_made_once_and_only_where_the_settings_ask(
        self, make_fleet: Callable[..., Fleet]
    ) -> None:
        assert keyfile.ensure_first_key(make_fleet()) is None
        fleet = make_fleet(create_first_key=True)
        assert not keyfile.keys_path(fleet).exists()
        plain = keyfile.ensure_first_key(fleet)
        assert plain == fleet.directory / "first-key.txt"
        assert mode(plain) == 0o600
        content = plain.read_bytes(), keyfile.keys_path(fleet).read_bytes()
        assert json.loads(content[1])["keys"][0]["name"] == "first"
        assert keyfile.ensure_first_key(fleet) == plain
        assert (plain.read_bytes(), keyfile.keys_path(fleet).read_bytes()) == content

    def test_it_does_not_come_back(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet(create_first_key=True)
        plain = keyfile.ensure_first_key(fleet)
        assert plain is not None
        keyfile.revoke(keyfile.keys_path(fleet), "first")
        assert keyfile.ensure_first_key(fleet) is None
        plain.unlink()
        assert keyfile.ensure_first_key(fleet) is None
        assert keyfile.read(keyfile.keys_path(fleet)).keys == ()

    def test_an_interrupted_run_is_mended(self, make_fleet: Callable[..., Fleet]) -> None:
        fleet = make_fleet(create_first_key=True)
        keyfile.first_key_path(fleet).write_text("sk-of-a-run-that-was-killed\n")
        plain = keyfile.ensure_first_key(fleet)
        assert plain is not None
        assert "killed" not in plain.read_text()
        assert mode(plain) == 0o600
