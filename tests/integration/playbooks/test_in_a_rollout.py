"""Playbooks around a host's turn in a rollout: their failures stop it as a gate's do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import yaml

from tests.fakes.rollout_host import DRIVER, PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.fakes.rollout_host import RolloutHost

WITH_PLAYBOOKS = DRIVER.replace(
    "import PyinfraHosts", "import PyinfraHosts\n"
    "from pyinfra_deploy.rollout.playbooks import HostsWithPlaybooks"
).replace("hosts = PyinfraHosts(", "hosts = HostsWithPlaybooks(").replace(
    "{}, console.line)", "{}, console.line, note=console.note)"
)  # fmt: skip


def settings(host: RolloutHost, **tasks: dict[str, Any]) -> None:
    for phase, task in tasks.items():
        play = {"hosts": "gpu", "gather_facts": False, "tasks": [task],
                "vars": {"ansible_python_interpreter": sys.executable}}  # fmt: skip
        host.repository.write(f"playbooks/{phase}.yml", yaml.safe_dump([play]))
    path = host.root / "group_vars/prod.yml"
    named = {phase: [f"playbooks/{phase}.yml"] for phase in tasks}
    path.write_text(path.read_text() + yaml.safe_dump({"ansible": named}))


def drive(host: RolloutHost) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", WITH_PLAYBOOKS], cwd=host.root, env=host.environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_around_a_turn_that_ends_well(rollout_host: RolloutHost) -> None:
    for name in ("before", "after"):
        assert not (rollout_host.root / name).exists()
    touch = {"name": "mark", "ansible.builtin.shell": "ls begun; touch {{ playbook_dir }}/../"}
    settings(
        rollout_host,
        before=touch | {"ansible.builtin.shell": f"test ! -e {rollout_host.root}/begun"},
        after=touch | {"ansible.builtin.shell": f"test -e {rollout_host.root}/begun"},
    )
    rollout_host.behave(tell={"result": {"release": "r2", "seconds": 3.0}})
    code, printed = drive(rollout_host)
    assert code == 0, printed
    report = rollout_host.report()
    assert report["hosts"]["gpu01"]["outcome"]["notes"] == [
        "playbooks/before.yml: 1 changed (mark)",
        "playbooks/after.yml: 1 changed (mark)",
    ]
    told = [event["what"] for event in report["events"] if event["what"].startswith("playbook")]
    assert [text.partition(", ")[0] for text in told] == [
        "playbook playbooks/before.yml: 1 changed (gpu01)",
        "playbook playbooks/after.yml: 1 changed (gpu01)",
    ]
    assert any("[gpu01] changed: mark" in line for line in report["log"])


def test_a_failure_before_leaves_the_host_as_it_was(rollout_host: RolloutHost) -> None:
    settings(rollout_host, before={"name": "refuse", "ansible.builtin.fail": {"msg": "not yet"}})
    rollout_host.behave()
    code, printed = drive(rollout_host)
    assert code == 3, printed
    assert not (rollout_host.root / "begun").exists()
    said = "gpu01: failed before it was switched: playbook playbooks/before.yml failed"
    assert f"{said} task 'refuse': not yet" in printed
    assert rollout_host.state("lease.json") is None
    assert rollout_host.state("rollout.json")["result"] == "failed"


def test_a_failure_after_stops_it_and_the_host_serves(rollout_host: RolloutHost) -> None:
    rollout_host.engine("done", "ro1", "r2")
    settings(rollout_host, after={"name": "refuse", "ansible.builtin.fail": {"msg": "not yet"}})
    rollout_host.behave(tell={"result": {"release": "r2", "seconds": 3.0}})
    code, printed = drive(rollout_host)
    assert code == 3, printed
    assert "gpu01: serves the release, and what comes after it failed: playbook" in printed
    outcome = rollout_host.report()["hosts"]["gpu01"]["outcome"]
    assert (outcome["kind"], outcome["serves"]) == ("after", "r2")
    assert json.dumps(outcome).count("not yet") >= 1
