"""Ansible's connection variables as pyinfra's host data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.connectors.ssh import ConnectorData

from pyinfra_deploy.settings.connection import map_connection
from pyinfra_deploy.settings.inventory_file import Located
from pyinfra_deploy.settings.pyinfra_hosts import CONNECTOR_DATA
from pyinfra_deploy.settings.secret import Secret
from pyinfra_deploy.settings.yaml_source import Reader

if TYPE_CHECKING:
    from pyinfra_deploy.settings.connection import Connection
    from tests.fakes.repository import Repository


def _map(repository: Repository, text: str) -> Connection:
    document = Reader(repository.root).read(repository.write("host_vars/h.yml", text))
    located = {key: Located(v, document, (key,)) for key, v in document.value.items()}
    return map_connection(located, repository.root)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("ansible_host: 10.0.0.1", {"ssh_hostname": "10.0.0.1"}),
        ("ansible_ssh_host: a\nansible_host: b", {"ssh_hostname": "b"}),
        ("ansible_host: b\nansible_ssh_host: a", {"ssh_hostname": "b"}),
        ("ansible_user: ops\nansible_port: '2222'", {"ssh_user": "ops", "ssh_port": 2222}),
        ("ansible_ssh_private_key_file: k", {"ssh_key": "ROOT/k"}),
        ("ansible_private_key_file: /k", {"ssh_key": "/k"}),
        ("ansible_become: true", {"_sudo": True}),
        ("ansible_become: yes\nansible_become_user: root", {"_sudo": True}),
        ("ansible_become: 'yes'\nansible_become_user: db", {"_sudo": True, "_sudo_user": "db"}),
        ("ansible_become: false\nansible_become_password: x", {}),
        ("ansible_become: true\nansible_become_method: su", {"_su_user": "root"}),
        ("ansible_become: true\nansible_become_method: ansible.builtin.sudo", {"_sudo": True}),
        (
            "ansible_become: true\nansible_become_method: doas\nansible_become_user: d",
            {"_doas": True, "_doas_user": "d"},
        ),
        ("ansible_host_key_checking: false", {"ssh_strict_host_key_checking": "no"}),
        ("ansible_connection: ssh", {}),
        ("ansible_ssh_common_args: -F lab/ssh", {"ssh_config_file": "ROOT/lab/ssh"}),
        ("ansible_ssh_common_args: -A -p 23", {"ssh_forward_agent": True, "ssh_port": 23}),
        ("ansible_ssh_extra_args: -i k", {"ssh_key": "ROOT/k"}),
        (
            "ansible_ssh_common_args: -o UserKnownHostsFile=k -oStrictHostKeyChecking=accept-new",
            {
                "ssh_known_hosts_file": "ROOT/k",
                "ssh_strict_host_key_checking": "accept-new",
            },
        ),
        (
            "ansible_ssh_common_args: -o UserKnownHostsFile=/dev/null -o 'User me'",
            {"ssh_known_hosts_file": "/dev/null", "ssh_user": "me"},
        ),
        ("ansible_ssh_args: -o ControlMaster=auto -o ControlPersist=60s -C", {}),
        ("ansible_python_interpreter: /usr/bin/python3\nansible_pipelining: true", {}),
        ("my_var: '{{ x }}'", {}),
        ("ansible_host:", {}),
    ],
)
def test_mapped(empty: Repository, text: str, data: dict[str, Any]) -> None:
    connection = _map(empty, text)
    expected = {
        key: value.replace("ROOT", str(empty.root)) if isinstance(value, str) else value
        for key, value in data.items()
    }
    assert connection.data == expected
    assert connection.problems == []
    assert connection.warnings == []
    assert not connection.is_local


@pytest.mark.parametrize(
    "arguments",
    [
        "-o ProxyJump=ops@bastion",
        "-J ops@bastion",
        "-Jops@bastion",
        "-o 'ProxyJump ops@bastion'",
        "-o ProxyJump=ops@bastion -o ControlMaster=auto",
    ],
)
def test_jump_hosts_go_into_an_ssh_configuration(empty: Repository, arguments: str) -> None:
    connection = _map(empty, f"ansible_ssh_common_args: {arguments}")
    assert connection.ssh_config == ["ProxyJump ops@bastion"]
    assert connection.warnings == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ansible_port: 0", "1 to 65535"),
        ("ansible_port: ssh", "1 to 65535"),
        ("ansible_connection: docker", "by ssh"),
        ("ansible_become: true\nansible_become_method: runas", "sudo, su or doas"),
        ("ansible_host: '{{ inventory_hostname }}.x'", "only Ansible could evaluate"),
        ("ansible_become_password: '{{ vault_become }}'", "only Ansible could evaluate"),
        ('ansible_ssh_common_args: "-o \'a"', "cannot be split"),
    ],
)
def test_refused(empty: Repository, text: str, what: str) -> None:
    (problem,) = _map(empty, text).problems
    assert problem.file == "host_vars/h.yml"
    assert what in problem.message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ansible_ssh_common_args: -o Ciphers=aes256", "Ciphers"),
        ("ansible_ssh_common_args: -D 1080", '"-D"'),
        ("ansible_become_flags: -H", "no counterpart"),
        ("ansible_ssh_executable: /opt/ssh", "no counterpart"),
        (
            "ansible_become: true\nansible_become_method: su\nansible_become_password: x",
            "no password to su",
        ),
    ],
)
def test_what_cannot_be_mapped_is_warned_about(empty: Repository, text: str, what: str) -> None:
    (warning,) = _map(empty, text).warnings
    assert what in warning.message


def test_passwords_are_looked_up_late(empty: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "ansible_become: true\n"
        "ansible_become_password: \"{{ lookup('env', 'SUDO_PASSWORD') }}\"\n"
        "ansible_ssh_pass: plain\n"
    )
    data = _map(empty, text).data
    assert data["ssh_password"].reveal() == "plain"
    secret = data["_sudo_password"]
    assert isinstance(secret, Secret)
    monkeypatch.setenv("SUDO_PASSWORD", "later")
    assert secret.reveal() == "later"


def test_local(empty: Repository) -> None:
    assert _map(empty, "ansible_connection: local").is_local


def test_pyinfras_connection_data_is_known() -> None:
    assert frozenset(ConnectorData.__annotations__) == CONNECTOR_DATA
