"""New hardware under an old name."""

from __future__ import annotations

from pyinfra_deploy.keys.audit_heads import HEADS, read_heads, write_heads
from pyinfra_deploy.runbooks import add_host, common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step


def old_host_key(scene: Scene) -> None:
    found = scene.fleet.hosts[scene.host].connection
    address = found.get("ssh_hostname", scene.host)
    scene.say(f"  where its old host key is refused: ssh-keygen -R {address}")


def log_begins_anew(scene: Scene) -> None:
    """The new machine's event log has another beginning than the one that was seen last, and `fleet
    audit verify` would call it broken for ever."""
    path = scene.fleet.directory / HEADS
    heads = read_heads(path)
    was = heads.pop(scene.host, None)
    if was is None:
        return
    write_heads(path, heads)
    scene.say(f"  the former machine's log had {was['events']} events, head {was['head'][:12]}")
    scene.say(f"  its entry is taken out of {path.name}: commit that file")


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
        Step("do", f"take the old machine's event log out of {HEADS}", log_begins_anew),
        common.DEPLOY,
        common.ANSWERS,
        common.WELL,
    ),
    one=True,
    options=common.ALONE,
    after_failure="What is there is kept: run it, or fleet deploy, again.",
)
