"""Another NVIDIA driver, host by host."""

from __future__ import annotations

from pyinfra_deploy.runbooks import common
from pyinfra_deploy.runbooks.book import Runbook, Scene, Step, StopError

# A deploy that has installed a driver ends so, to be run again (docs/driver.md).
NOT_FINISHED = 1


def asked_for(scene: Scene) -> None:
    for host in scene.hosts:
        settings = scene.fleet.hosts[host].settings
        if settings.gpu_driver != "install" or not settings.gpu_driver_packages:
            raise StopError(
                f"the settings of {host} do not ask for a driver",
                "gpu_driver: install, and gpu_driver_packages with the new branch "
                "(cuda-drivers-580)",
            )


def others_of_each(scene: Scene) -> None:
    """They go one by one, so the others of the group stand in for each."""
    hosts = scene.hosts
    try:
        for host in hosts:
            scene.hosts = [host]
            common.others_serve(scene)
    finally:
        scene.hosts = hosts


def one_by_one(scene: Scene) -> None:
    hosts = scene.hosts
    try:
        for host in hosts:
            scene.hosts = [host]
            scene.say(f"  --- {host}")
            # The others may have died since, of the new driver too.
            common.others_serve(scene)
            words = ("deploy", scene.fleet.name, "--limit", host, "--yes")
            # The driver, its reboot and the engine's answer; then all else, from what is seen now.
            scene.run_fleet(*words, good=(0, NOT_FINISHED))
            scene.run_fleet(*words)
            common.answering(scene)
            common.well(scene)
    except StopError as stop:
        rest = hosts[hosts.index(scene.host) + 1 :]
        left = f"not touched: {', '.join(rest)}" if rest else stop.fix
        raise StopError(f"{scene.host}: {stop.what}", left, stop.lines) from stop
    finally:
        scene.hosts = hosts


RUNBOOK = Runbook(
    "upgrade-driver",
    "install the NVIDIA driver that the settings ask for",
    "Host by host, each serving again before the next: drained, engine stopped, packages installed "
    "and held, reboot where another module is loaded, nvidia-smi and the plan's preflight, engine "
    "started and asked, undrained. It stops at the first host that does not come back well.",
    (
        Step("before", "the settings ask for a driver", asked_for),
        common.FREE,
        Step("before", "for each, another host of its model takes requests", others_of_each),
        common.PLAN,
        Step("do", "fleet deploy on one host, twice: the driver, then the rest", one_by_one),
        common.ANSWERS,
    ),
    options=common.ALONE,
    after_failure="The host that is named needs hands: docs/driver.md. Run it again to go on.",
)
