"""A fleet as pyinfra's inventory files want it: module-level groups of (hosts, data)."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from pyinfra_deploy.settings.control_machine import make_known_hosts
from pyinfra_deploy.settings.fleet import (
    Fleet,
    FleetHost,
    hosts_sharing,
    load_fleet,
    refuse_missing,
)
from pyinfra_deploy.settings.interrupt import exit_as_interrupted
from pyinfra_deploy.settings.mutual_tls import as_data, mutual_tls_of
from pyinfra_deploy.settings.problems import Problem, SettingsError
from pyinfra_deploy.settings.remote_engines import remote_engines
from pyinfra_deploy.settings.schema import Settings
from pyinfra_deploy.settings.secret import Secret, Unprinted
from pyinfra_deploy.settings.sudo_password import keep_sudo_password_out_of_argv
from pyinfra_deploy.settings.unreachable import tell_next_moves

HostWithData = tuple[str, dict[str, Any]]
Groups = dict[str, tuple[list[HostWithData], dict[str, Any]]]

# Data by these names tells pyinfra how to connect (ConnectorData of its ssh connector): an
# organisation's own variable that happens to be called so must not. Tests compare with pyinfra.
OURS = frozenset(Settings.model_fields)
CONNECTOR_DATA = frozenset(
    {
        "ssh_hostname",
        "ssh_port",
        "ssh_user",
        "ssh_password",
        "ssh_key",
        "ssh_key_password",
        "ssh_allow_agent",
        "ssh_look_for_keys",
        "ssh_forward_agent",
        "ssh_config_file",
        "ssh_known_hosts_file",
        "ssh_strict_host_key_checking",
        "ssh_paramiko_connect_kwargs",
        "ssh_connect_retries",
        "ssh_connect_retry_min_delay",
        "ssh_connect_retry_max_delay",
        "ssh_file_transfer_protocol",
    }
)


def pyinfra_inventory(inventory_file: str) -> Groups:
    """All groups of the inventory beside `inventory_file`, for `globals().update(...)` in it.

    Host data: the variables outside our namespace, `settings` (Settings) and `fleet` (name,
    directory, root and host, as text). Ends the program with exit code 1, the problems on stderr
    and no traceback when something is wrong: pyinfra passes SystemExit through, and would wrap any
    other exception. From here on Ctrl-C ends the run with 130, not with pyinfra's 0.
    """
    exit_as_interrupted()
    try:
        fleet = load_fleet(inventory_file)
        _check_limits(fleet)
        refuse_missing(fleet)
        groups = pyinfra_groups(fleet)
    except SettingsError as error:
        print(f"\n{error}\nNothing was changed; no host was contacted.", file=sys.stderr)
        raise SystemExit(1) from None
    for warning in fleet.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    make_known_hosts(fleet)
    tell_next_moves()
    keep_sudo_password_out_of_argv()
    return groups


def _check_limits(fleet: Fleet) -> None:
    """pyinfra warns about a --limit that matches nothing, does nothing, and exits with 0."""
    context = click.get_current_context(silent=True)
    for option in ("limit", "exclude"):
        patterns = (context.params.get(option) or ()) if context else ()
        for pattern in patterns:
            names = [_pyinfra_name(host) for host in fleet.hosts.values()]
            if pattern in fleet.groups or fnmatch.filter(names, pattern):
                continue
            close = difflib.get_close_matches(pattern, [*fleet.groups, *names], 1)
            raise SettingsError(
                [
                    Problem(
                        f"--{option} {pattern}",
                        None,
                        "",
                        None,
                        None,
                        f"matches no group and no host of {fleet.name}.",
                        f'did you mean "{close[0]}"?'
                        if close
                        else f"groups: {', '.join(fleet.groups)}; hosts: {', '.join(names[:10])}",
                    )
                ]
            )


def pyinfra_groups(fleet: Fleet) -> Groups:
    """Raises SettingsError when a connection's password cannot be had."""
    data = {name: (_pyinfra_name(host), _data(fleet, host)) for name, host in fleet.hosts.items()}
    return {
        group: ([data[name] for name in members], {})
        for group, members in fleet.groups.items()
        if members or group == "all"
    }


def _pyinfra_name(host: FleetHost) -> str:
    return "@local" if host.is_local else host.name


def _data(fleet: Fleet, host: FleetHost) -> dict[str, Any]:
    data = {
        key: value
        for key, value in host.variables.items()
        if key not in CONNECTOR_DATA | OURS and not key.startswith(("_", "ansible_"))
    }
    for key, value in host.connection.items():
        # pyinfra's connectors take plain text only, and `debug-inventory` prints it.
        reveal = isinstance(value, Secret) and not _only_printed()
        data[key] = Unprinted(value.reveal()) if reveal else value
    if host.ssh_config:
        data["ssh_config_file"] = str(_ssh_config(fleet, host))
    data["settings"] = host.settings
    data["fleet"] = {
        "name": fleet.name,
        "directory": str(fleet.directory),
        "root": str(fleet.root),
        "host": host.name,
        "sharing": hosts_sharing(fleet, host),
        "mutual_tls": as_data(mutual_tls_of(fleet, host)),
        "engines": remote_engines(fleet, host),
    }
    return data


def _only_printed() -> bool:
    """Whether this is `pyinfra INVENTORY debug-inventory`, which connects nowhere."""
    context = click.get_current_context(silent=True)
    operations = context.params.get("operations") if context else None
    return "debug-inventory" in (operations or ())


def _ssh_config(fleet: Fleet, host: FleetHost) -> Path:
    """A configuration for options that pyinfra takes from a file only, such as ProxyJump."""
    inherited = host.connection.get("ssh_config_file", "~/.ssh/config")
    address = host.connection.get("ssh_hostname", host.name)
    # Not "Host *": pyinfra reads the same file for the jump host, and would jump for ever.
    lines = [f"Host {address}", *(f"  {option}" for option in host.ssh_config)]
    text = "\n".join([*lines, "Host *", f"Include {inherited}", ""])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = fleet.root / ".fleet" / "ssh" / f"{fleet.name}-{digest}.conf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        Path(name).replace(path)
    return path
