"""A host from which everything of ours is taken serves again after a deploy, without a new pull."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.hosts import rollouts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell
from tests.hosts.standin_inventory import NAME

if TYPE_CHECKING:
    from tests.hosts.standin_inventory import Checkout

LEFT = """
ls -d /etc/systemd/system/llm-* /etc/systemd/system/*.wants/llm-* /etc/llm /run/llm /var/lib/llm-* \
   /var/cache/llm-* /etc/nginx/conf.d/llm-* /etc/sysusers.d/llm-* /etc/tmpfiles.d/llm-* \
   /srv/llm/bin /srv/llm/engines /srv/llm/runtimes 2>/dev/null
systemctl list-units --all --plain --no-legend 'llm-*'
getent passwd llm llm-gateway; getent group llm-http; :
"""


def test_nothing_of_ours_is_left_and_a_deploy_brings_it_back(steady: Checkout) -> None:
    other = rollouts.release_of(DEBIAN12)
    would = rollouts.fleet(steady, "uninstall", NAME, DEBIAN13, "--dry")
    would.ended(0, "/etc/systemd/system/llm-engine@.service", "stays: /srv/llm/models: the models")
    assert steady.service(DEBIAN13).answers()
    rollouts.fleet(steady, "uninstall", NAME, DEBIAN13).ended(1, "nothing was changed")
    rollouts.fleet(steady, "uninstall", NAME, DEBIAN13, "--yes").ended(
        0, f"{DEBIAN13}: uninstalled"
    )
    assert shell(DEBIAN13, LEFT) == ""
    assert shell(DEBIAN13, "systemctl is-active nginx").strip() == "active"
    assert rollouts.release_of(DEBIAN12) == other
    ran = steady.deploy().done()
    assert "will pull" not in ran.log
    assert steady.service(DEBIAN13).answers()
    whats = [event["what"] for event in rollouts.events_of(DEBIAN13)]
    assert "uninstalled" in whats
    assert whats[-1] != "uninstalled"
    assert steady.deploy().done().unchanged
