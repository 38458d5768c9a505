"""Keys and certificates that are rotated, over hosts that are not there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.fakes.repository import GOOD
from tests.unit.runbooks.world import KEYS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.unit.runbooks.world import World

ROTATED = json.dumps({"keys": [{"id": "k1", "name": "chat"}, {"id": "k2", "name": "chat-2"}]})


TWO_TIERS = """\
all:
  children:
    prod: {vars: {ansible_group_priority: 10}, hosts: {gpu01: , gpu02: }}
    gpu: {hosts: {gpu01: }}
    gateway: {hosts: {gpu02: }}
"""


def test_certificates_between_hosts_are_rotated_and_the_lock_is_held(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.repository.write("inventories/prod/hosts.yml", TWO_TIERS)
    there.repository.write("group_vars/prod.yml", f"{GOOD}  mode: full\n")
    deploy, held = there.doors.deploy, []

    def watched(hosts: Any, name: str) -> Any:
        held.append(set(there.doors.leased))
        return deploy(hosts, name)

    monkeypatch.setattr(there.doors, "deploy", watched)
    assert there.run("rotate-certificates", "gpu01", "gpu02") == 0, there.doors.text
    assert there.doors.did[1:] == [
        "deploy rotate_certificate.py gpu01", "deploy rotate_certificate.py gpu02",
    ]  # fmt: skip
    assert held == [{"gpu01", "gpu02"}] * 2


def test_a_host_without_a_certificate_of_ours_has_none_to_rotate(there: World) -> None:
    hosts = TWO_TIERS.replace("gateway: {hosts: {gpu02: }}", "gateway: {hosts: {}}")
    there.repository.write("inventories/prod/hosts.yml", hosts)
    assert there.run("rotate-certificates", "gpu01") == 1
    assert "gpu01 has no certificate of the inventory's CA" in there.doors.text


def test_a_key_is_revoked_only_when_it_is_said(there: World, tmp_path: Path) -> None:
    there.doors.printed["keys list"] = ROTATED
    assert there.run("rotate-keys", key="chat", name="chat-2") == 0
    assert there.doors.did == []
    assert "chat still works" in there.doors.text
    assert there.run("rotate-keys", key="chat", name="chat-2", yes=False) == 3
    assert there.doors.did == ["fleet keys revoke prod k1"]
    assert "chat is still in keys.json" in there.doors.text


def test_a_key_file_is_never_overwritten(there: World, tmp_path: Path) -> None:
    there.doors.printed["keys list"] = KEYS
    (tmp_path / "key").write_text("x")
    assert there.run("rotate-keys", key="chat", out=str(tmp_path / "key")) == 1
    assert there.doors.did == []


def test_a_certificate_that_is_not_made_stops_at_its_host(there: World) -> None:
    there.doors.deploy_code = 1
    assert there.run("rotate-certificates", "gpu01", "gpu02") == 3
    assert there.doors.did == ["fleet ca show prod", "deploy rotate_certificate.py gpu01"]
    assert "  | the last words" in there.doors.text


def test_a_certificate_that_clients_do_not_take_is_told(there: World) -> None:
    there.one.dies = True
    assert there.run("rotate-certificates") == 3
    assert "FAILED: gpu01: a client was refused" in there.doors.text
    there.one.drained_by = "bob"
    assert there.run("rotate-certificates") == 0
