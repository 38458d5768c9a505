"""This machine as the lab sees it: its package configuration, and the sysctls it lends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.apt_config import pass_on_apt
from lab.commands import SYSTEM_PATH, try_run
from lab.errors import LabError
from lab.passed_on import (
    FileCopy,
    PassedOn,
    environment_files,
    environment_from,
    extra_cas,
)
from lab.pip_config import pass_on_pip
from lab.plan import NETWORK
from lab.report import say
from lab.state import State, SysctlChange

# Value, and whether more than that is fine too. 128 inotify instances last for about 12 hosts.
SYSCTLS = {
    "net.ipv4.ip_forward": (1, False),
    "fs.inotify.max_user_instances": (8192, True),
}
APT_SETTINGS = "/etc/apt/apt.conf.d/50fleet-lab"


def gather_passed_on(root: Path = Path("/")) -> PassedOn:
    """Read the machine's apt, pip, uv, CA and proxy configuration."""
    result = PassedOn()
    has_apt = shutil.which("apt-config", path=SYSTEM_PATH)
    dump = try_run(["apt-config", "dump"]).stdout if has_apt else ""
    settings = pass_on_apt(result, root, dump)
    if settings:
        result.files[APT_SETTINGS] = FileCopy(settings.encode())
    has_extra_cas = extra_cas(result, root)
    variables = pass_on_pip(result, root, Path.home(), os.environ)
    environment_from(result, root, os.environ, NETWORK, has_extra_cas)
    result.environment.update(variables)
    result.files.update(environment_files(result.environment))
    return result


def sysctl_path(key: str) -> Path:
    return Path("/proc/sys") / key.replace(".", "/")


def needed_change(key: str, current: str) -> str | None:
    """The value to write, or None if the current one will do."""
    value, more_is_fine = SYSCTLS[key]
    found = int(current)
    return None if found == value or (more_is_fine and found > value) else str(value)


def lend_sysctls(state: State) -> bool:
    """Note in `state` what is about to change, never over an older note. True if anything is."""
    changed = False
    for key in SYSCTLS:
        current = sysctl_path(key).read_text().strip()
        value = needed_change(key, current)
        if value is not None:
            known = state.sysctls.get(key)
            state.sysctls[key] = SysctlChange(known.before if known else current, value)
            changed = True
    return changed


def write_sysctls(state: State) -> None:
    """Set what the state notes; called after it was saved, so that `down` can always restore."""
    for key, change in state.sysctls.items():
        path = sysctl_path(key)
        if needed_change(key, path.read_text().strip()) is None:
            continue
        try:
            path.write_text(change.now)
        except OSError as error:
            raise LabError(
                what=f"cannot set {key}={change.now} on this machine",
                why=f"{error}; hosts need it for their network and their systemd",
                fix=f"sysctl -w {key}={change.now} where it is allowed (container: its host)",
            ) from error


def restore_sysctls(state: State) -> None:
    """Put back what was there, unless somebody has set another value since."""
    for key, change in state.sysctls.items():
        path = sysctl_path(key)
        current = path.read_text().strip()
        if current == change.now:
            path.write_text(change.before)
        elif current != change.before:
            say(f"{key} is {current}, not what the lab set ({change.now}): left as it is")
