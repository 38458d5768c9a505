"""Hosts that get a model from each other: real processes on addresses of the loopback network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.model_hub import FIRST

if TYPE_CHECKING:
    from tests.fakes.sharing_hosts import SharingHosts


def test_three_hosts_pull_at_once_and_the_hub_sends_each_file_once(
    sharing_hosts: SharingHosts,
) -> None:
    for host in sharing_hosts.hosts:
        host.open()
    answers = [job.result() for job in [host.pull() for host in sharing_hosts.hosts]]
    assert [answer["state"] for answer in answers] == ["pulled"] * 3
    assert all(host.has_all() for host in sharing_hosts.hosts)
    assert set(sharing_hosts.downloads().values()) == {1}
    assert answers[0]["peers"]["from"] == {}
    for answer in answers[1:]:
        assert answer["peers"]["files"] == len(sharing_hosts.hub.files)
        assert answer["peers"]["dropped"] == {}
    assert FIRST in sharing_hosts.downloads()
