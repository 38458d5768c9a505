"""Installing packages of the distribution, with a failure told as host, step, cause, next move."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pyinfra import logger
from pyinfra.api import StringCommand, operation

from pyinfra_deploy.operations.calling import on_host
from pyinfra_deploy.operations.program import (
    LOST_CONNECTION,
    HostRefused,
    connection_is_dead,
    connector_arguments,
    report_refusal,
)
from pyinfra_deploy.planning.package_failures import MARK, package_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyinfra.api import Host, State

    from pyinfra_deploy.operations.calling import Commands

STEP = "packages"
# As Ubuntu's own timer and pyinfra's apt.update write it.
STAMP = "/var/lib/apt/periodic/update-success-stamp"
# A slow mirror may take its time; a network that is cut gives no error by itself.
INSTALL_SECONDS = 3600
# Two runs on a bare host, or unattended-upgrades, may hold dpkg's lock: wait for it (apt.conf(5)).
# dpkg --configure: a power cut in the middle of an installation leaves packages half configured.
# An update that fails is not the end: one broken source of many, and the lists may do. Error-Mode:
# else apt-get update exits with 0 when no mirror was reached.
SCRIPT = """\
exec 2>&1 </dev/null
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 NEEDRESTART_SUSPEND=1
dpkg --configure -a --force-confdef --force-confold
if [ -z "$(find {stamp} -mmin -10 2>/dev/null)" ]; then
  apt-get -q -o DPkg::Lock::Timeout=600 -o APT::Update::Error-Mode=any update &&
  mkdir -p "$(dirname {stamp})" && touch {stamp}
fi
echo {mark}
exec apt-get -y -q -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confdef \
-o Dpkg::Options::=--force-confold install {packages}
"""


@operation()
def install_packages(packages: Sequence[str]) -> Commands:
    """Install packages that are missing, from the host's own apt sources.

    + packages: their names

    **Example:**

    .. code:: python

        install_packages(name="Install packages", packages=["nginx"])
    """
    yield on_host(lambda state, host: _install(state, host, packages))


def script(packages: Sequence[str], stamp: str = STAMP) -> str:
    """What a shell of the host runs; its exit code is that of `apt-get install`."""
    return SCRIPT.format(
        stamp=shlex.quote(stamp), mark=shlex.quote(MARK), packages=shlex.join(packages)
    )


def _install(state: State, host: Host, packages: Sequence[str]) -> bool:
    if not host.connected:
        return _lost(host, "the host does not answer")
    try:
        ok, output = host.run_shell_command(
            StringCommand(script(packages)),
            print_output=state.print_output,
            print_input=state.print_input,
            **(connector_arguments(state, host) | {"_timeout": INSTALL_SECONDS}),
        )
    except LOST_CONNECTION as error:
        return _lost(host, f"{type(error).__name__}: {error}")
    if not ok and connection_is_dead(host):
        return _lost(host, "it closed before apt-get had ended")
    if not ok:
        report_refusal(host, STEP, HostRefused(package_failure(packages, output.stdout_lines)))
    return bool(ok)


def _lost(host: Host, how: str) -> bool:
    host.log_styled(
        f"{STEP}: the connection to the host was lost ({how}). Run the same command again: what "
        "was left half installed is finished first.",
        fg="red",
        log_func=logger.error,
    )
    return False
