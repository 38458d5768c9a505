"""Key files on a host: an older set never comes back, and the host's own key for its checks."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import keys, verify
from fleet_host.errors import HostError, SpecError
from llm_gateway import keys as gateway

if TYPE_CHECKING:
    from tests.fakes.engine_host import FakeHost


@pytest.fixture(autouse=True)
def _own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test need not be root: the group of the socket's users is not on this machine."""
    monkeypatch.setattr(keys, "reader_gid", os.getgid)


def entry(identity: str = "abcdefgh", digest: str = "0" * 64) -> dict[str, Any]:
    return {
        "id": identity,
        "name": "chat",
        "sha256": digest,
        "created": "2026-01-31T09:00:00Z",
        "expires": None,
    }


def test_an_older_set_of_keys_never_comes_back(host: FakeHost) -> None:
    assert keys.push({"serial": 2, "keys": [entry()]})["changed"] is True
    assert keys.push({"serial": 2, "keys": [entry()]})["changed"] is False
    with pytest.raises(HostError, match="older than"):
        keys.push({"serial": 1, "keys": [entry(), entry("revokedd")]})
    with pytest.raises(HostError, match="two different sets"):
        keys.push({"serial": 2, "keys": []})
    assert keys.push({"serial": 3, "keys": []})["changed"] is True
    assert keys.keys_path().stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "bad", [{}, {**entry(), "scope": "x"}, entry("short"), entry(digest="sk-clear-text-key")]
)
def test_a_malformed_entry_is_refused_before_anything_is_written(
    host: FakeHost, bad: dict[str, Any]
) -> None:
    with pytest.raises(SpecError):
        keys.push({"serial": 1, "keys": [bad]})
    assert not keys.keys_path().exists()


def test_the_gateway_reads_what_is_pushed_and_knows_the_host_s_own_key(host: FakeHost) -> None:
    keys.push({"serial": 5, "keys": [entry()]})
    assert gateway.parse_key_file(keys.keys_path().read_bytes()).serial == 5
    first = keys.verify_key({})
    assert (first["changed"], keys.verify_key({})["changed"]) == (True, False)
    own = keys.verify_key_path().read_text().strip()
    assert keys.verify_key_path().stat().st_mode & 0o777 == 0o600
    assert own not in json.dumps(first)
    parsed = gateway.parse_key_file(keys.verify_file_path().read_bytes())
    known = {key.id: key for key in parsed.keys}
    assert gateway.find_key(known, own, datetime.now(UTC)) is not None
    assert gateway.find_key(known, verify.WRONG_KEY, datetime.now(UTC)) is None


def test_limits_pass_to_the_gateway(host: FakeHost) -> None:
    limits = {"tier": "batch", "models": ["m"], "requests_per_minute": 5, "tokens_per_minute": 7}
    keys.push({"serial": 1, "keys": [entry() | limits]})
    (key,) = gateway.parse_key_file(keys.keys_path().read_bytes()).keys
    assert (key.tier, key.models) == ("batch", frozenset({"m"}))
    assert (key.requests_per_minute, key.tokens_per_minute) == (5, 7)


def test_a_lost_digest_of_the_own_key_is_mended(host: FakeHost) -> None:
    first = keys.verify_key({})
    keys.verify_file_path().unlink()
    again = keys.verify_key({})
    assert (again["changed"], again["sha256"]) == (True, first["sha256"])
