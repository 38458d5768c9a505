"""The table that follows its files, and the application's answers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from llm_gateway.__main__ import listen
from llm_gateway.app import app_from_environment, create_app
from llm_gateway.table import CHECK_INTERVAL_SECONDS, KeyTable

from pyinfra_deploy.keys import keyfile

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime.now(UTC)
ONE = keyfile.new_key("one", NOW, None)
TWO = keyfile.new_key("two ü", NOW, None)
OLD = keyfile.new_key("old", NOW - timedelta(days=9), NOW - timedelta(seconds=1))


def test_what_is_written_is_looked_at_twice_a_second() -> None:
    """ "In force within a second": the tests below step the clock by this interval."""
    assert CHECK_INTERVAL_SECONDS <= 0.5


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        self.now += CHECK_INTERVAL_SECONDS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def table(path: Path, clock: Clock) -> KeyTable:
    return KeyTable([path, path.with_name("verify-key.json")], clock)


def write(path: Path, serial: int, *keys: keyfile.NewKey) -> None:
    """As the deploy does: another file, renamed."""
    temporary = path.with_suffix(".tmp")
    document = keyfile.to_document(serial, [key.record for key in keys])
    temporary.write_text(json.dumps(document))
    temporary.replace(path)


def ids(table: KeyTable) -> set[str] | None:
    keys = table.current()
    return None if keys is None else set(keys)


def test_a_change_is_seen_after_half_a_second(path: Path, clock: Clock, table: KeyTable) -> None:
    write(path, 1, ONE)
    assert ids(table) == {ONE.record.id}
    write(path, 2, TWO)
    assert ids(table) == {ONE.record.id}
    clock.tick()
    assert ids(table) == {TWO.record.id}
    assert table.serial() == 2


def test_a_change_in_place_with_the_same_size_and_time_is_seen(
    path: Path, clock: Clock, table: KeyTable
) -> None:
    write(path, 1, ONE)
    assert ids(table) == {ONE.record.id}
    before = path.stat()
    time.sleep(0.02)  # longer than a tick of the kernel's clock for file times
    other = keyfile.NewKey(ONE.record, "")
    content = path.read_text().replace(other.record.id, "zzzzzzzz")
    path.write_text(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_size == before.st_size
    clock.tick()
    assert ids(table) == {"zzzzzzzz"}


def test_between_checks_no_file_is_touched(
    path: Path, clock: Clock, table: KeyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, 1, ONE)
    table.current()
    looks: list[object] = []

    def look(source: object) -> bool:
        looks.append(source)
        return False

    monkeypatch.setattr("llm_gateway.table._Source.refresh", look)
    for _ in range(1000):
        clock.now += CHECK_INTERVAL_SECONDS / 1001
        table.current()
    assert looks == []
    clock.tick()
    table.current()
    assert len(looks) == 2


@pytest.mark.parametrize("breakage", ["broken", "gone", "directory"])
def test_the_last_good_keys_stay_in_force(
    path: Path,
    clock: Clock,
    table: KeyTable,
    caplog: pytest.LogCaptureFixture,
    breakage: str,
) -> None:
    write(path, 3, ONE)
    assert ids(table) == {ONE.record.id}
    path.unlink()
    if breakage == "broken":
        path.write_text('{"schema": 1,')
    elif breakage == "directory":
        path.mkdir()
    caplog.clear()
    for _ in range(5):
        clock.tick()
        assert ids(table) == {ONE.record.id}
    errors = [record.getMessage() for record in caplog.records]
    assert len(errors) == 1, "said once, not at every check"
    assert str(path) in errors[0]
    assert "the keys of serial 3 stay in force" in errors[0]
    if breakage == "directory":
        path.rmdir()
    write(path, 4, TWO)
    clock.tick()
    assert ids(table) == {TWO.record.id}


def test_without_a_first_file_there_is_no_table(
    path: Path, clock: Clock, table: KeyTable, caplog: pytest.LogCaptureFixture
) -> None:
    write(path.with_name("verify-key.json"), 0, TWO)
    assert ids(table) is None
    assert "every request is refused with 503" in caplog.text
    path.write_text("nonsense")
    clock.tick()
    assert ids(table) is None
    write(path, 1, ONE)
    clock.tick()
    assert ids(table) == {ONE.record.id, TWO.record.id}
    path.with_name("verify-key.json").unlink()
    clock.tick()
    assert ids(table) == {ONE.record.id}


def test_a_file_that_is_too_large_is_refused(
    path: Path, table: KeyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_gateway.table.MAX_FILE_BYTES", 10)
    write(path, 1, ONE)
    assert ids(table) is None


def test_the_first_file_wins_over_a_second_with_the_same_id(path: Path, table: KeyTable) -> None:
    write(path, 1, ONE)
    record = keyfile.KeyRecord(ONE.record.id, "forged", "0" * 64, ONE.record.created, None)
    write(path.with_name("verify-key.json"), 1, keyfile.NewKey(record, ""))
    keys = table.current()
    assert keys is not None
    assert keys[ONE.record.id].name == "one"


Answer = tuple[int, dict[str, str], bytes]


def ask(
    table: KeyTable,
    *authorization: str | bytes,
    path: str = "/auth",
    method: str = "GET",
    type_: str = "http",
) -> Answer:
    raw = [a if isinstance(a, bytes) else a.encode() for a in authorization]
    scope: dict[str, Any] = {
        "type": type_,
        "method": method,
        "path": path,
        "headers": [(b"authorization", value) for value in raw],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        pytest.fail("a body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    async def exchange() -> None:
        await create_app(table)(scope, receive, send)

    asyncio.run(exchange())
    start, body = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, body["body"]


def bearer(key: keyfile.NewKey) -> str:
    return f"Bearer {key.plaintext}"


def test_a_good_key_is_named(path: Path, table: KeyTable) -> None:
    write(path, 1, ONE, TWO)
    status, headers, body = ask(table, bearer(TWO))
    assert (status, body) == (204, b"")
    assert headers == {"x-key-id": TWO.record.id, "x-key-name": "two %C3%BC"}


def test_all_refusals_are_the_same(path: Path, table: KeyTable) -> None:
    write(path, 1, ONE, OLD)
    refusals = [
        ask(table),
        ask(table, "Bearer nonsense"),
        ask(table, bearer(TWO)),
        ask(table, bearer(OLD)),
        ask(table, bearer(ONE), bearer(ONE)),
        ask(table, bearer(ONE).encode() + b"\xff"),
    ]
    assert all(refusal == refusals[0] for refusal in refusals)
    expected = {"www-authenticate": "Bearer", "content-length": "0"}
    assert refusals[0] == (401, expected, b"")


def test_without_a_table_it_fails_closed(table: KeyTable) -> None:
    assert ask(table, bearer(ONE))[0] == 503
    status, _, body = ask(table, path="/ready")
    assert status == 503
    assert json.loads(body) == {"ready": False, "serial": None, "keys": None}


def test_ready_tells_the_serial(path: Path, table: KeyTable) -> None:
    write(path, 12, ONE, TWO)
    status, _, body = ask(table, path="/ready")
    assert status == 200
    assert json.loads(body) == {"ready": True, "serial": 12, "keys": 2}


@pytest.mark.parametrize("wrong", ["/", "/auth/", "//auth", "/AUTH", "/ready/x", ""])
def test_other_paths_do_not_exist(path: Path, table: KeyTable, wrong: str) -> None:
    write(path, 1, ONE)
    assert ask(table, bearer(ONE), path=wrong)[0] == 404


def test_other_methods_are_refused(path: Path, table: KeyTable) -> None:
    write(path, 1, ONE)
    assert ask(table, bearer(ONE), method="POST")[0] == 405


def test_no_key_is_ever_logged(
    path: Path, clock: Clock, table: KeyTable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    write(path, 1, ONE)
    for key in (ONE, TWO):
        ask(table, bearer(key))
    path.write_text(f'{{"{ONE.plaintext}": ')
    clock.tick()
    ask(table, bearer(ONE))
    assert ONE.record.sha256 not in caplog.text
    assert ONE.plaintext[11:] not in caplog.text
    assert TWO.plaintext[11:] not in caplog.text


def test_the_environment_must_name_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_GATEWAY_KEYS", ":")
    with pytest.raises(SystemExit, match="LLM_GATEWAY_KEYS is not set"):
        app_from_environment()


def test_the_socket_is_for_owner_and_group_only(tmp_path: Path) -> None:
    path = tmp_path / "auth.sock"
    for _ in range(2):  # the second time over the socket that the first one left
        listener = listen(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        listener.close()
    path.unlink()
    path.write_text("something else")
    with pytest.raises(SystemExit, match="cannot listen"):
        listen(path)
    assert path.read_text() == "something else"
    assert isinstance(listener, socket.socket)
