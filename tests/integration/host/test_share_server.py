"""The server of a host's model files: for whom, and for how long."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest
from fleet_host import peers

from tests.fakes.model_hub import FIRST, SECOND, entry_of
from tests.fakes.sharing_hosts import (
    MODEL,
    NO_HUB,
    TOKEN,
    SharingHosts,
    ask,
    end_group,
    listens,
    wait_for,
)


def test_nobody_listens_once_all_have_it(sharing_hosts: SharingHosts) -> None:
    first, second, _ = sharing_hosts.hosts
    first.publish()
    first.open(pulling=False, idle_seconds=15.0)
    second.open(idle_seconds=15.0)
    second.pull(endpoint=NO_HUB).result()
    for host in (first, second):
        assert host.server is not None
        host.server.result()
        assert not listens(host.address, sharing_hosts.port)


def test_nobody_listens_after_the_only_pull_was_killed(sharing_hosts: SharingHosts) -> None:
    first = sharing_hosts.hosts[0]
    first.client_does("hang", path=SECOND, times=1)
    first.open(idle_seconds=1.5)
    job = first.pull()
    wait_for((first.root / "plan.json.hangs").exists)
    end_group(job)
    assert first.server is not None
    first.server.result()
    assert not listens(first.address, sharing_hosts.port)


def test_addresses_outside_of_the_inventory_are_turned_away(sharing_hosts: SharingHosts) -> None:
    giver = sharing_hosts.hosts[0]
    giver.publish()
    giver.open(pulling=False, idle_seconds=2.0, allowed=["192.0.2.1"])
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(giver)
    assert giver.server is not None
    assert giver.server.result()["refused"] == ["127.0.0.1"]


def test_without_the_runs_secret_nothing_is_told_or_given(sharing_hosts: SharingHosts) -> None:
    giver = sharing_hosts.hosts[0]
    giver.publish()
    giver.open(pulling=False, idle_seconds=2.0)
    sha256 = entry_of(FIRST, sharing_hosts.hub.files[FIRST])["Sha256"]
    for target in (f"/{MODEL}", f"/{MODEL}/{sha256}", "/", "/../run", "/Other--Model/master"):
        for proof in ("", "Bearer x", f"Fleet-HMAC x:{'0' * 64}"):
            connection = http.client.HTTPConnection(giver.address, sharing_hosts.port)
            connection.request("GET", target, headers={"Authorization": proof} if proof else {})
            response = connection.getresponse()
            assert (response.status, response.read()) == (403, b"{}")
            connection.close()
    with pytest.raises(peers.PeerFailed, match="secret"):
        ask(giver, "f" * 64)
    assert giver.server is not None
    ended = giver.server.result()
    assert ended["unproven"] == ["127.0.0.1"]
    assert ended["served_bytes"] == 0


def test_the_secret_is_in_no_argument_and_no_log(sharing_hosts: SharingHosts) -> None:
    first, second, _ = sharing_hosts.hosts
    first.publish()
    first.open(pulling=False, idle_seconds=5.0)
    second.open(idle_seconds=5.0)
    job = second.pull(endpoint=NO_HUB)
    assert first.server is not None
    for process in (job.process, first.server.process):
        assert TOKEN.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert TOKEN not in str(job.result())
    assert TOKEN not in str(first.server.result())
