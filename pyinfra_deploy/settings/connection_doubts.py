"""Warnings about connection variables: allowed, and probably not meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyinfra_deploy.settings.inventory_file import Located
    from pyinfra_deploy.settings.variables import Merged

# ansible-core 2.19: the variables of its ssh connection, of sudo and su, and of the shell.
_KNOWN = """
    async_dir become become_exe become_flags become_method become_pass become_password
    become_user common_remote_group connection control_path control_path_dir facts_modules
    group_priority host host_key_checking module_compression network_os password pipelining port
    private_key private_key_file private_key_passphrase python_interpreter remote_tmp
    scp_executable scp_extra_args sftp_batch_mode sftp_executable sftp_extra_args
    shell_allow_world_readable_temp shell_executable shell_type ssh_args ssh_common_args
    ssh_executable ssh_extra_args ssh_host ssh_host_key_checking ssh_pass ssh_password
    ssh_password_mechanism ssh_pipelining ssh_pkcs11_provider ssh_port ssh_private_key
    ssh_private_key_file ssh_private_key_passphrase ssh_retries ssh_timeout ssh_transfer_method
    ssh_use_tty ssh_user ssh_verbosity sshpass_prompt su_exe su_flags su_pass su_user sudo_chdir
    sudo_exe sudo_flags sudo_pass sudo_user system_tmpdirs system_warnings user
"""
KNOWN = tuple(f"ansible_{name}" for name in _KNOWN.split())
PASSWORDS = (
    "ansible_become_pass",
    "ansible_become_password",
    "ansible_password",
    "ansible_private_key_passphrase",
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_ssh_private_key_passphrase",
    "ansible_su_pass",
    "ansible_sudo_pass",
)


def connection_doubts(merged: Merged) -> Iterator[Problem]:
    """Of one host, which is not named yet."""
    for name, located in merged.variables.items():
        if not name.startswith("ansible_"):
            continue
        if name in PASSWORDS:
            if _is_plain(located):
                yield _doubt(
                    located,
                    name,
                    "is a password in plain text, in a file that goes into the repository.",
                    "encrypt it: ansible-vault encrypt_string, or write "
                    "\"{{ lookup('env', 'NAME') }}\"; and change it on the hosts.",
                )
        elif name not in KNOWN and (close := difflib.get_close_matches(name, KNOWN, 1, 0.87)):
            yield _doubt(
                located,
                name,
                f"is no connection variable of Ansible's and has no effect here; did you mean \""
                f'{close[0]}"?',
                f"rename it to {close[0]}, or leave it if it belongs to a role of yours.",
            )


def _is_plain(located: Located) -> bool:
    value = located.value
    # A vault value has been read as a Secret; a template looks it up elsewhere.
    is_text = isinstance(value, str | int) and "{{" not in str(value)
    return is_text and value != "" and not located.document.encrypted


def shared_addresses(
    hosts: Iterable[tuple[str, dict[str, Any], tuple[str, ...], Merged]],
) -> Iterator[Problem]:
    """Two names for one machine: each run of one would undo the other's. Each item is a host's
    name, its connection's data, its lines of ssh_config and its variables. Behind jump hosts one
    address can be two machines."""
    first: dict[Any, str] = {}
    for name, data, ssh_config, merged in hosts:
        address = data.get("ssh_hostname", name)
        port = data.get("ssh_port", 22)
        key = (address, port, ssh_config, data.get("ssh_config_file"))
        if (other := first.setdefault(key, name)) == name:
            continue
        variable = "ansible_host"
        located = merged.variables.get(variable) or merged.variables.get("ansible_ssh_host")
        if located is None:
            continue
        yield _doubt(
            located,
            variable,
            f"{name} has the same address and port as {other} ({address}:{port}), so both names "
            "are one machine, which would be deployed twice.",
            "mend the address of one, or remove it.",
        )


def shared_storage_addresses(merged: Mapping[str, Merged]) -> Iterator[Problem]:
    """One address for two hosts, as group_vars give it: it is a host's own."""
    first: dict[Any, str] = {}
    for host, one in merged.items():
        located = one.variables.get("storage_address")
        if located is None or located.value is None:
            continue
        if (other := first.setdefault(located.value, host)) != host:
            yield _doubt(
                located,
                "storage_address",
                f"{host} and {other} have the same ({located.value}): others would take one for "
                "the other.",
                "write each host's own under its name in hosts.yml, or in host_vars.",
            )


def _doubt(located: Located, name: str, message: str, fix: str) -> Problem:
    return Problem(located.document.shown, located.line(), name, None, None, message, fix)
