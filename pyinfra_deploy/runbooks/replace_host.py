"""New hardware under an old name."""

from __future__ import annotations

from pyinfra_deploy.runbooks import add_host, common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step


def old_host_key(scene: Scene) -> None:
    found = scene.fleet.hosts[scene.host].connection
    address = found.get("ssh_hostname", scene.host)
    scene.say(f"  where its old host key is refused: ssh-keygen -R {address}")


RUNBOOK = Runbook(
    "replace-host",
    "bring new hardware into service under an old host's name",
    "The old machine is gone: its release, keys and certificates come from the repository, its "
    "model from the neighbours or the hub. Correct ansible_host in hosts.yml where the address is "
    "another; a GPU's UUID in host_vars is the old card's. The old machine must not come back "
    "under this name: fleet uninstall it, or wipe it.",
    (
        Step("before", "what the new host key needs", old_host_key),
        add_host.BARE,
        common.FREE,
        common.OTHERS_SERVE,
        common.PLAN,
        common.DEPLOY,
        common.ANSWERS,
        common.WELL,
    ),
    one=True,
    options=common.ALONE,
    after_failure="What is there is kept: run it, or fleet deploy, again.",
)
