"""Ansible's connection variables -> pyinfra's host data.

pyinfra 3.10: connectors/ssh.py (ConnectorData) and api/arguments.py (_sudo and the like, which are
read from host data under the same names). ssh options that pyinfra reads only from an ssh_config
file (ProxyJump, ServerAliveInterval) are collected for one.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings.control_machine import missing_key
from pyinfra_deploy.settings.host_names import port_of, wrong_address, wrong_user
from pyinfra_deploy.settings.problems import Problem, describe
from pyinfra_deploy.settings.secret import (
    Secret,
    environment_name,
    environment_secret,
    plain_secret,
)

if TYPE_CHECKING:
    from pyinfra_deploy.settings.inventory_file import Located, Variables

# Later names win, as in Ansible's own list of variables for an option.
_TEXT = {
    "ansible_ssh_host": "ssh_hostname",
    "ansible_host": "ssh_hostname",
    "ansible_ssh_user": "ssh_user",
    "ansible_user": "ssh_user",
}
_PORTS = ("ansible_ssh_port", "ansible_port")
_KEY_FILES = ("ansible_private_key_file", "ansible_ssh_private_key_file")
_SECRETS = {
    "ansible_ssh_pass": "ssh_password",
    "ansible_ssh_password": "ssh_password",
    "ansible_password": "ssh_password",
    "ansible_ssh_private_key_passphrase": "ssh_key_password",
    "ansible_sudo_pass": "_sudo_password",
    "ansible_become_pass": "_sudo_password",
    "ansible_become_password": "_sudo_password",
}
_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_UNMAPPED = (
    "ansible_become_exe",
    "ansible_become_flags",
    "ansible_scp_extra_args",
    "ansible_sftp_extra_args",
    "ansible_shell_executable",
    "ansible_shell_type",
    "ansible_ssh_executable",
    "ansible_ssh_transfer_method",
)
# Sharing one TCP connection between many ssh processes: pyinfra keeps a single one open anyway.
_NEEDLESS = ("controlmaster", "controlpersist", "controlpath", "batchmode", "compression")
_FROM_CONFIG = (
    "proxyjump",
    "proxycommand",
    "serveraliveinterval",
    "connecttimeout",
    "identityagent",
    "certificatefile",
)
_STRICT = {"yes": "yes", "true": "yes", "no": "no", "false": "no", "off": "off", "ask": "ask"}
_STRICT["accept-new"] = "accept-new"


@dataclass(eq=False)
class Connection:
    """data: pyinfra host data, in which passwords are Secrets. ssh_config: lines of options.
    missing: what this machine lacks to connect, though the settings are right."""

    is_local: bool = False
    data: dict[str, Any] = field(default_factory=dict)
    ssh_config: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)


def map_connection(variables: Variables, root: Path) -> Connection:
    """`root`: what relative paths (keys, known hosts) start from; Ansible is run from there."""
    connection = Connection()
    plain = _readable(variables, connection)
    for name, target in _TEXT.items():
        if name in plain:
            _text(plain[name], name, target, connection)
    for name in _PORTS:
        if name in plain:
            _port(plain[name], name, connection)
    for name in _KEY_FILES:
        if name in plain:
            connection.data["ssh_key"] = _path(str(plain[name].value), root)
    for name, target in _SECRETS.items():
        if name in plain:
            connection.data[target] = _secret(plain[name], name)
    _kind(plain, connection)
    _host_key_checking(plain, connection)
    for name in _ARGUMENTS:
        if name in plain:
            _ssh_arguments(plain[name], name, root, connection)
    _become(plain, connection)
    for name in _UNMAPPED:
        if name in plain:
            _warn(
                connection,
                plain[name],
                name,
                "has no counterpart in pyinfra; only Ansible uses it.",
            )
    named = [name for name in (*reversed(_KEY_FILES), *_ARGUMENTS) if name in plain]
    if "ssh_key" in connection.data and named:
        key_file = connection.data["ssh_key"]
        connection.missing += missing_key(key_file, named[0], plain[named[0]])
    return connection


def _readable(variables: Variables, connection: Connection) -> Variables:
    """The ansible_* variables without templates, which only Ansible can evaluate."""
    relevant = {*_TEXT, *_PORTS, *_KEY_FILES, *_ARGUMENTS, "ansible_connection"}
    relevant |= {name for name in variables if name.startswith("ansible_become")}
    plain = {}
    for name, located in variables.items():
        if not name.startswith("ansible_"):
            continue
        is_template = isinstance(located.value, str) and "{{" in located.value
        is_secret = name in _SECRETS and (
            not is_template or environment_name(located.value) is not None
        )
        if is_template and not is_secret and (name in relevant or name in _SECRETS):
            connection.problems.append(
                Problem(
                    located.document.shown,
                    located.line(),
                    name,
                    None,
                    describe(located.value),
                    "is a template, which only Ansible could evaluate, and pyinfra needs it to "
                    "connect.",
                    "write the value itself"
                    + (", or \"{{ lookup('env', 'NAME') }}\"." if name in _SECRETS else "."),
                )
            )
        elif (located.value is not None and not is_template) or is_secret:
            plain[name] = located
    return plain


def _text(located: Located, name: str, target: str, connection: Connection) -> None:
    if isinstance(located.value, Secret):
        message = "is a vault value, and what a run says of a host names its address and its user."
        _refuse(connection, located, name, message, "write it in plain text.")
        return
    check = wrong_address if target == "ssh_hostname" else wrong_user
    if wrong := check(located.value):
        _refuse(connection, located, name, *wrong)
        return
    connection.data[target] = str(located.value)


def _port(located: Located, name: str, connection: Connection) -> None:
    port = port_of(located.value)
    if port is None:
        _refuse(connection, located, name, "must be a port, 1 to 65535.", "for example 22")
        return
    connection.data["ssh_port"] = port


def _kind(plain: Variables, connection: Connection) -> None:
    located = plain.get("ansible_connection")
    if located is None:
        return
    value = str(located.value).rsplit(".", 1)[-1]
    if value == "local":
        connection.is_local = True
    elif value not in ("ssh", "smart", "paramiko", "paramiko_ssh"):
        _refuse(
            connection,
            located,
            "ansible_connection",
            "hosts are reached by ssh, or are this machine (local).",
            "write ssh or local, or remove the line.",
        )


def _host_key_checking(plain: Variables, connection: Connection) -> None:
    for name in ("ansible_host_key_checking", "ansible_ssh_host_key_checking"):
        if name in plain and str(plain[name].value).lower() in ("false", "no", "0"):
            connection.data["ssh_strict_host_key_checking"] = "no"


def _become(plain: Variables, connection: Connection) -> None:
    located = plain.get("ansible_become")
    wanted = located is not None and str(located.value).lower() in ("true", "yes", "1")
    method_at = plain.get("ansible_become_method")
    method = str(method_at.value).rsplit(".", 1)[-1] if method_at else "sudo"
    user_at = plain.get("ansible_become_user")
    user = str(user_at.value) if user_at else "root"
    if not wanted:
        connection.data.pop("_sudo_password", None)
        return
    if user_at and (wrong := wrong_user(user_at.value)):
        _refuse(connection, user_at, "ansible_become_user", *wrong)
        return
    if method == "sudo":
        connection.data["_sudo"] = True
        if user != "root":
            connection.data["_sudo_user"] = user
    elif method in ("su", "doas"):
        connection.data[f"_{method}" if method == "doas" else "_su_user"] = (
            True if method == "doas" else user
        )
        if method == "doas" and user != "root":
            connection.data["_doas_user"] = user
        if connection.data.pop("_sudo_password", None) is not None and method_at:
            _warn(
                connection,
                method_at,
                "ansible_become_method",
                f"pyinfra gives no password to {method}; use sudo, or {method} without a password.",
            )
    elif method_at is not None:
        _refuse(
            connection,
            method_at,
            "ansible_become_method",
            "pyinfra becomes another user by sudo, su or doas.",
            "write sudo.",
        )


def _ssh_arguments(located: Located, name: str, root: Path, connection: Connection) -> None:
    try:
        words = shlex.split(str(located.value))
    except ValueError as error:
        _refuse(connection, located, name, f"cannot be split into words: {error}.", "close quotes.")
        return
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        flag, value = word[:2], word[2:]
        if flag in ("-A", "-a", "-C", "-q", "-T", "-4", "-6", "-v") and not value:
            if flag == "-A":
                connection.data["ssh_forward_agent"] = True
            continue
        if not value and position < len(words):
            value = words[position]
            position += 1
        option = {"-i": "IdentityFile", "-p": "Port", "-l": "User", "-J": "ProxyJump"}.get(flag)
        if flag == "-F":
            connection.data["ssh_config_file"] = _path(value, root)
        elif flag == "-o":
            key, _, setting = re.sub(r"[\s=]+", "=", value.strip(), count=1).partition("=")
            _ssh_option(key, setting.strip('"'), located, name, root, connection)
        elif option is not None:
            _ssh_option(option, value, located, name, root, connection)
        else:
            _warn(connection, located, name, f'"{word}" has no counterpart in pyinfra.')


def _ssh_option(
    key: str, value: str, located: Located, name: str, root: Path, connection: Connection
) -> None:
    data, option = connection.data, key.lower()
    if option == "userknownhostsfile":
        if value != "/dev/null":
            data["ssh_known_hosts_file"] = _path(value.split()[0], root)
        else:
            data["ssh_known_hosts_file"] = value
    elif option == "stricthostkeychecking" and value.lower() in _STRICT:
        data["ssh_strict_host_key_checking"] = _STRICT[value.lower()]
    elif option == "identityfile":
        data.setdefault("ssh_key", _path(value, root))
    elif option == "port":
        if (port := port_of(value)) is None:
            _refuse(connection, located, name, f'has the port "{value}": 1 to 65535.', "mend it.")
        else:
            data.setdefault("ssh_port", port)
    elif option == "user":
        if wrong := wrong_user(value):
            _refuse(connection, located, name, f'has the user "{value}": {wrong[0]}', wrong[1])
        else:
            data.setdefault("ssh_user", value)
    elif option == "forwardagent":
        data["ssh_forward_agent"] = value.lower() == "yes"
    elif option in _FROM_CONFIG:
        connection.ssh_config.append(f"{key} {value}")
    elif option not in _NEEDLESS:
        _warn(connection, located, name, f"ssh's option {key} has no counterpart in pyinfra.")


def _secret(located: Located, name: str) -> Secret:
    value = located.value
    if isinstance(value, Secret):
        return value
    if (variable := environment_name(str(value))) is not None:
        return environment_secret(variable, located.document.shown, located.line(), name)
    return plain_secret(str(value))


def _path(value: str, root: Path) -> str:
    return str(root / Path(value).expanduser())


def _refuse(connection: Connection, located: Located, name: str, message: str, fix: str) -> None:
    connection.problems.append(
        Problem(
            located.document.shown,
            located.line(),
            name,
            None,
            describe(located.value),
            message,
            fix,
        )
    )


def _warn(connection: Connection, located: Located, name: str, message: str) -> None:
    connection.warnings.append(
        Problem(located.document.shown, located.line(), name, None, None, message, "")
    )
