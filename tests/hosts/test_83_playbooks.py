"""An organisation's own playbook on the lab's hosts: on the batch and on no other, in check mode in
the plan, and its failure stops the rollout at the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.hosts import rollouts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell
from tests.hosts.rollouts import BOTH, engine_with, release_of
from tests.hosts.service import Poll
from tests.hosts.standin_inventory import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.standin_inventory import Checkout

# Of /etc, as a hardening role's; root's, so it proves become too.
MARK = "/etc/fleet-test-hardened"
HARDEN: list[dict[str, Any]] = [
    {
        "hosts": "gpu",
        "tasks": [
            {
                "name": "Harden",
                "ansible.builtin.copy": {
                    "dest": MARK,
                    "content": "{{ inventory_hostname }} of {{ engine.name }} {{ group_names }}\n",
                    "mode": "0600",
                },
            },
            {
                "name": "Refuse",
                "ansible.builtin.fail": {"msg": "the scanner found something"},
                "when": "refused is defined",
            },
        ],
    }
]


@pytest.fixture(autouse=True)
def played(steady: Checkout) -> Iterator[Checkout]:
    (steady.root / "playbooks").mkdir(exist_ok=True)
    (steady.root / "playbooks/harden.yml").write_text(yaml.safe_dump(HARDEN))
    steady.base["ansible"] = {"before": ["playbooks/harden.yml"]}
    steady.base["rollout"] = {"soak_seconds": 0}
    yield steady
    del steady.base["ansible"], steady.base["rollout"]
    for host in BOTH:
        shell(host, f"rm -f {MARK}")
    steady.write()


def mark_of(host: str) -> str:
    return shell(host, f"cat {MARK} 2>/dev/null; :")


def test_check_mode_is_in_the_plan_and_changes_nothing(played: Checkout) -> None:
    played.write()
    said = rollouts.fleet(played, "plan", NAME, "--playbooks")
    said.ended(said.code, "before: playbooks/harden.yml: 1 changed (Harden)", "in check mode")
    assert "CHECK MODE FAILED" not in said.text
    assert [mark_of(host) for host in BOTH] == ["", ""]


def test_only_the_hosts_of_the_batch_are_changed(played: Checkout) -> None:
    played.base["engine"] = engine_with(90)
    played.write()
    rollouts.rollout(played, "--only", DEBIAN12).ended(
        0, "playbook playbooks/harden.yml", f"[{DEBIAN12}] changed: Harden", "complete"
    )
    assert mark_of(DEBIAN12).startswith(f"{DEBIAN12} of main")
    assert mark_of(DEBIAN13) == ""
    rollouts.fleet(played, "report", "show", NAME).ended(0, "playbooks/harden.yml: 1 changed")
    rollouts.rollout(played).ended(0)
    assert mark_of(DEBIAN13).startswith(f"{DEBIAN13} of main")
    rollouts.nothing_is_left()


def test_its_failure_stops_the_rollout_at_the_gate(played: Checkout) -> None:
    played.base["engine"] = engine_with(91)
    variables = {DEBIAN12: {"refused": True}}
    played.write(host_variables=variables)
    before = {host: release_of(host) for host in BOTH}
    with Poll(played.service(DEBIAN12)) as one, Poll(played.service(DEBIAN13)) as other:
        said = rollouts.rollout(played)
    said.ended(
        3, f"{DEBIAN12}: failed before it was switched: playbook playbooks/harden.yml failed",
        "task 'Refuse': the scanner found something", f"not touched: {DEBIAN13}",
    )  # fmt: skip
    assert (one.statuses(), other.statuses()) == ({200}, {200})
    assert {host: release_of(host) for host in BOTH} == before
    assert mark_of(DEBIAN13) == ""
    rollouts.nothing_is_left()


def test_a_failure_after_leaves_the_host_serving_and_stops(played: Checkout) -> None:
    played.base["ansible"] = {"after": ["playbooks/harden.yml"]}
    played.base["engine"] = engine_with(92)
    played.write(host_variables={DEBIAN12: {"refused": True}})
    other = release_of(DEBIAN13)
    said = rollouts.rollout(played)
    said.ended(3, f"{DEBIAN12}: serves the release, and what comes after it failed")
    assert played.service(DEBIAN12).answers()
    assert release_of(DEBIAN13) == other
    assert mark_of(DEBIAN12).startswith(DEBIAN12)
    rollouts.nothing_is_left()
    played.write()
    rollouts.rollout(played).ended(0)
