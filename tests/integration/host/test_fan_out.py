"""Hosts that get a model from each other: real processes on addresses of the loopback network."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import durable, hashing, peers
from fleet_host.listing import FileEntry

from tests.fakes.model_hub import FIRST, SECOND, entry_of
from tests.fakes.sharing_hosts import MODEL, NO_HUB, TOKEN, all_pull, ask, end_group, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.sharing_hosts import SharingHosts

KILLS = int(os.environ.get("FLEET_KILLS", "2"))
# The client asks for these after the second shard.
LATER = ("assets/tokenizer.json", ".gitattributes")


def test_three_hosts_pull_at_once_and_the_hub_sends_each_file_once(
    sharing_hosts: SharingHosts,
) -> None:
    answers = all_pull(sharing_hosts.hosts)
    assert [answer["state"] for answer in answers] == ["pulled"] * 3
    assert all(host.has_all() for host in sharing_hosts.hosts)
    assert set(sharing_hosts.downloads().values()) == {1}
    assert answers[0]["peers"]["from"] == {}
    for answer in answers[1:]:
        assert answer["peers"]["files"] == len(sharing_hosts.hub.files)
        assert answer["peers"]["dropped"] == {}
        assert answer["peers"]["unreachable"] == []


def test_without_a_hub_a_host_that_has_the_model_is_enough(sharing_hosts: SharingHosts) -> None:
    first, *others = sharing_hosts.hosts
    first.publish()
    first.open(pulling=False)
    answers = all_pull(others, endpoint=NO_HUB)
    assert all(host.has_all() for host in others)
    assert sharing_hosts.hub.requests == []
    for answer in answers:
        assert sum(answer["peers"]["from"].values()) == sum(
            map(len, sharing_hosts.hub.files.values())
        )


def test_files_are_given_one_by_one_while_the_first_host_still_pulls(
    sharing_hosts: SharingHosts,
) -> None:
    first, second, _ = sharing_hosts.hosts
    first.client_does("hang", path=SECOND, times=1)
    first.open()
    second.open()
    first.pull()
    second.pull()
    wait_for((second.staged / FIRST).exists)
    assert not first.final.exists()
    assert set(sharing_hosts.downloads().values()) <= {0, 1}
    sha256 = entry_of(FIRST, sharing_hosts.hub.files[FIRST])["Sha256"]
    wait_for(lambda: sha256 in ask(second)["files"])


def test_hosts_go_on_when_the_first_dies_in_the_middle(sharing_hosts: SharingHosts) -> None:
    """And it goes on itself when it is back, from them."""
    first, *others = sharing_hosts.hosts
    first.client_does("hang", path=SECOND, times=1)
    for host in sharing_hosts.hosts:
        host.open()
    pulls = [host.pull() for host in sharing_hosts.hosts]
    early = [path for path in sharing_hosts.hub.files if path not in (SECOND, *LATER)]
    wait_for(lambda: all((host.staged / path).exists() for host in others for path in early))
    before = sharing_hosts.downloads()
    assert first.server is not None
    first.server.kill()
    end_group(pulls[0])
    for job in pulls[1:]:
        assert job.result()["state"] == "pulled"
    assert all(host.has_all() for host in others)
    after = sharing_hosts.downloads()
    assert {path: after[path] - before[path] for path in after} == {
        path: int(path in (SECOND, *LATER)) for path in after
    }
    first.open()
    again = first.pull().result()
    assert first.has_all()
    assert sharing_hosts.downloads() == after
    assert again["peers"]["files"] >= 1


def test_a_pull_that_is_killed_goes_on_in_the_middle_of_a_file(
    sharing_hosts: SharingHosts,
) -> None:
    giver, taker, _ = sharing_hosts.hosts
    sharing_hosts.grow(12_000_000)
    giver.publish()
    giver.open(pulling=False, idle_seconds=3.0, rate_bytes_per_second=4_000_000)
    taker.open()
    first = taker.pull(endpoint=NO_HUB, files_at_once=1)
    whole = sum(map(len, sharing_hosts.hub.files.values()))
    wait_for(lambda: taker.staged_bytes() > 2_000_000)
    first.kill()
    assert not taker.final.exists()
    giver.configure(pulling=False)
    answer = taker.pull(endpoint=NO_HUB, files_at_once=1).result()
    assert taker.has_all()
    assert answer["peers"]["from"]["gpu01"] >= whole - 6_100_000
    assert giver.server is not None
    served = giver.server.result()["served_bytes"]
    assert served < whole + 5_000_000, "it began anew"
    assert answer["peak_kib"] < 200 << 10


def test_a_cut_in_the_middle_leaves_no_half_model(sharing_hosts: SharingHosts) -> None:
    """kill -9 at moments of the transfer; each time the next pull goes on."""
    giver, taker, _ = sharing_hosts.hosts
    sharing_hosts.grow(10_000_000, shards=5)
    giver.publish()
    giver.open(pulling=False, rate_bytes_per_second=20_000_000)
    taker.open()
    for number in range(KILLS):
        job = taker.pull(endpoint=NO_HUB)
        least = 10_000_000 * (number + 1) // (KILLS + 1)
        while taker.staged_bytes() < least and not taker.final.exists():
            time.sleep(0.01)
        job.kill()
        assert not taker.final.exists() or taker.has_all()
    taker.pull(endpoint=NO_HUB).result()
    assert taker.has_all()


def test_two_pulls_of_one_model_on_one_host(sharing_hosts: SharingHosts) -> None:
    giver, taker, _ = sharing_hosts.hosts
    sharing_hosts.grow(4_000_000)
    giver.publish()
    giver.open(pulling=False, rate_bytes_per_second=2_000_000)
    taker.open()
    first = taker.pull(endpoint=NO_HUB)
    wait_for(taker.telling.exists)
    refused = taker.pull(endpoint=NO_HUB).ended()
    assert "is being pulled already" in refused["error"]["what"]
    first.result()
    assert taker.has_all()


def test_files_copied_to_any_host_are_waited_for_and_the_hub_is_not_asked(
    sharing_hosts: SharingHosts,
) -> None:
    """The last by rank has them, not verified yet, when the first looks around."""
    sharing_hosts.hosts[2].copy_in()
    for host in sharing_hosts.hosts:
        host.open()
    last = sharing_hosts.hosts[2].pull(endpoint=NO_HUB)
    others = [host.pull(endpoint=NO_HUB) for host in sharing_hosts.hosts[:2]]
    for job in (*others, last):
        job.result()
    assert all(host.has_all() for host in sharing_hosts.hosts)


def test_hosts_with_a_half_each_need_no_hub(sharing_hosts: SharingHosts) -> None:
    paths = sorted(sharing_hosts.hub.files)
    sharing_hosts.hosts[0].copy_in(*paths[:3])
    sharing_hosts.hosts[1].copy_in(*paths[3:])
    all_pull(sharing_hosts.hosts, endpoint=NO_HUB)
    assert all(host.has_all() for host in sharing_hosts.hosts)


def test_damage_is_mended_from_another_host(sharing_hosts: SharingHosts) -> None:
    giver, damaged, _ = sharing_hosts.hosts
    giver.publish()
    damaged.publish()
    (damaged.final / SECOND).chmod(0o644)
    (damaged.final / SECOND).write_bytes(b"\0" * 200_000)
    giver.open(pulling=False)
    damaged.open()
    answer = damaged.pull(endpoint=NO_HUB).result()
    assert answer["state"] == "mended"
    assert damaged.has_all()
    assert answer["peers"]["files"] == 1


def test_damaged_files_are_not_given(sharing_hosts: SharingHosts) -> None:
    giver = sharing_hosts.hosts[0]
    giver.publish()
    (giver.final / SECOND).chmod(0o644)
    giver.open(pulling=False)
    given = ask(giver)["files"]
    assert entry_of(SECOND, sharing_hosts.hub.files[SECOND])["Sha256"] not in given
    assert entry_of(FIRST, sharing_hosts.hub.files[FIRST])["Sha256"] in given


def test_what_is_not_verified_is_not_given(sharing_hosts: SharingHosts) -> None:
    giver = sharing_hosts.hosts[0]
    giver.copy_in()
    giver.open()
    assert ask(giver)["files"] == set()


def test_a_firewall_between_hosts_is_said_with_its_port_and_the_hub_used(
    sharing_hosts: SharingHosts,
) -> None:
    only = sharing_hosts.hosts[2]
    answer = all_pull([only])[0]
    assert only.has_all()
    lines = answer["peers"]["unreachable"]
    assert [line.split()[1] for line in lines] == ["gpu01", "gpu02"]
    assert f"TCP port {sharing_hosts.port} through between the gpu hosts" in lines[0]
    assert "it refuses the connection" in lines[0]


def test_without_hub_and_peers_both_are_said(sharing_hosts: SharingHosts) -> None:
    only = sharing_hosts.hosts[2]
    only.open()
    failed = only.pull(endpoint=NO_HUB, stall_timeout_seconds=2).ended()["error"]
    assert "the download of Qwen/Tiny at master failed" in failed["what"]
    assert any("peer gpu01" in line for line in failed["detail"])


def test_a_host_that_nobody_opened_pulls_from_the_hub(sharing_hosts: SharingHosts) -> None:
    only = sharing_hosts.hosts[0]
    answer = only.pull().result()
    assert only.has_all()
    assert answer["peers"] == {"files": 0, "from": {}, "dropped": {}, "unreachable": []}


def test_when_the_hub_fails_no_host_waits_for_ever(sharing_hosts: SharingHosts) -> None:
    for host in sharing_hosts.hosts:
        host.open()
    jobs = [host.pull(endpoint=NO_HUB, stall_timeout_seconds=4) for host in sharing_hosts.hosts]
    for job in jobs:
        assert "error" in job.ended()


def test_while_one_host_has_no_way_to_the_hub_another_asks_it(sharing_hosts: SharingHosts) -> None:
    """Its proxy, its route: the first of the order, and the fleet would wait for it."""
    cut_off, second = sharing_hosts.hosts[:2]
    for host in (cut_off, second):
        host.open()
    jobs = [cut_off.pull(endpoint=NO_HUB), second.pull()]
    answers = [job.result() for job in jobs]
    assert cut_off.has_all()
    assert second.has_all()
    assert answers[0]["peers"]["files"] == len(sharing_hosts.hub.files)


def test_one_that_the_hub_refuses_waits_for_another_that_still_pulls(
    sharing_hosts: SharingHosts,
) -> None:
    """Its token has expired, or its address is not on the hub's list."""
    refused, second = sharing_hosts.hosts[:2]
    refused.client_does("refused", times=99)
    for host in (refused, second):
        host.open()
    jobs = [refused.pull(), second.pull()]
    answers = [job.result() for job in jobs]
    assert refused.has_all()
    assert second.has_all()
    assert answers[0]["peers"]["files"] == len(sharing_hosts.hub.files)
    assert "refused by" in answers[0]["log"]


def test_where_the_hub_refuses_all_each_says_so(sharing_hosts: SharingHosts) -> None:
    for host in sharing_hosts.hosts:
        host.client_does("refused", times=99)
        host.open()
    jobs = [host.pull() for host in sharing_hosts.hosts]
    for job in jobs:
        error = job.ended()["error"]
        assert "is refused by" in error["what"]
        assert "401" in error["why"]


def test_a_full_disk_is_said_and_what_came_is_kept(
    sharing_hosts: SharingHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver = sharing_hosts.hosts[0]
    sharing_hosts.grow(6_000_000)
    giver.publish()
    giver.open(pulling=False)
    body = sharing_hosts.hub.files[FIRST]
    row = entry_of(FIRST, body)
    entry = FileEntry(FIRST, row["Size"], row["Sha256"])
    real, room = os.write, [1_500_000]

    def write(descriptor: int, data: Any) -> int:
        if len(data) > room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= len(data)
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    origins = peers.Origins(set())
    arguments = (giver.peer, MODEL, (TOKEN,), entry, tmp_path / "model", origins, hashing.Tally())
    with pytest.raises(durable.StorageError, match="could not be written"):
        peers.take(*arguments)
    assert (tmp_path / "model" / f"{FIRST}.incomplete").stat().st_size > 0
    assert not (tmp_path / "model" / FIRST).exists()
    monkeypatch.undo()
    peers.take(*arguments)
    assert (tmp_path / "model" / FIRST).read_bytes() == body
