"""The real engine's host before its first deploy, and the start of that; its end: test_65."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.demo import lock_model
from tests.hosts import host_state
from tests.hosts.lab_session import REAL, shell
from tests.hosts.real_deploy import deploy

if TYPE_CHECKING:
    from tests.hosts.real_deploy import RealDeploy


def test_dry_run_on_an_untouched_host_changes_nothing(lab_hosts: None) -> None:
    lock_model()
    before = host_state.tree(REAL)
    ran = deploy("--dry").done()
    ran.said("will install the host program", "will pull", "will go live: nothing is live yet")
    assert host_state.differences(before, host_state.tree(REAL)) == []
    assert not shell(REAL, "ls -d /srv/llm /etc/llm 2>/dev/null || true")


def test_first_deploy_begins(real_deploy: RealDeploy) -> None:
    real_deploy.begin()
