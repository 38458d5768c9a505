"""What can be a host's address and the user to log in as, and what is refused of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.settings import load_fleet
from pyinfra_deploy.settings.host_names import port_of, wrong_address, wrong_user
from pyinfra_deploy.settings.problems import SettingsError

if TYPE_CHECKING:
    from tests.fakes.repository import Repository


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.11",
        "2001:db8::1",
        "fe80::1%eth0",
        "gpu01",
        "gpu01.example.com",
        "gpu01.example.com.",
        "GPU_01-x",  # an alias of ~/.ssh/config
        "_alias",
        "xn--grn-ioa.example.com",
        "x" * 63 + ".de",
    ],
)
def test_addresses(address: str) -> None:
    assert wrong_address(address) is None


@pytest.mark.parametrize(
    ("address", "what", "fix"),
    [
        ("", "empty", "10.0.0.11"),
        ("1.2.3.4 -o x", "' '", "10.0.0.11"),
        ("$(id)", "'$'", "host name"),
        ("a\nb", r"'\n'", "host name"),
        ("gpu01\n", r"'\n'", "host name"),
        ("-oProxyCommand=touch", "'='", "host name"),
        ("-oProxyCommand", "begins with a dash", "host name"),
        ("gpu01:22", "':'", "host name"),
        ("ops@gpu01", "'@'", "host name"),
        ("10.0.0.256", "no IP address", "0 to 255"),
        ("10.0.0", "no IP address", "0 to 255"),
        ("fe80::1%$(id)", "':'", "address"),
        ("grün.example.com", "outside ASCII", "xn--grn-ioa.example.com"),
        ("ü" * 70, "outside ASCII", "10.0.0.11"),
        ("a..b", "empty or longer", "host name"),
        ("x" * 64, "longer than 63", "host name"),
        (".".join(["x" * 60] * 5), "253", "host name"),
        (10, "must be text", "10.0.0.11"),
        (True, "must be text", "10.0.0.11"),
        (["gpu01"], "must be text", "10.0.0.11"),
    ],
)
def test_wrong_addresses(address: object, what: str, fix: str) -> None:
    message, how = wrong_address(address) or ("", "")
    assert what in message
    assert fix in how


@pytest.mark.parametrize("user", ["ops", "ops@example.com", "EXAMPLE\\ops", "host$", "a.b", 1000])
def test_users(user: object) -> None:
    assert wrong_user(user) is None


@pytest.mark.parametrize(
    ("user", "what"),
    [
        ("", "empty"),
        ("-oProxyCommand=x", "begins with a dash"),
        ("a b", "' '"),
        ("a\n", r"'\n'"),
        ("a\x1b[2J", r"'\x1b'"),
        ("$(id)", "'('"),
        ("ö", "'ö'"),
        ("a" * 257, "256"),
        (True, "name of a user"),
        ({"a": 1}, "name of a user"),
    ],
)
def test_wrong_users(user: object, what: str) -> None:
    message, fix = wrong_user(user) or ("", "")
    assert what in message
    assert "id -un" in fix


def test_ports() -> None:
    assert [port_of(value) for value in (22, "2222", 1, 65_535)] == [22, 2222, 1, 65_535]
    wrong = (0, 65_536, "²", "٣", "", "22\n", " 22", -1, True, 22.5, None, "9" * 5_000)
    assert [port_of(value) for value in wrong] == [None] * len(wrong)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("ansible_host: $(id)", "ansible_host"),
        ("ansible_host: ''", "ansible_host"),
        ("ansible_ssh_host: -x", "ansible_ssh_host"),
        ('ansible_host: "a\\nb"', "ansible_host"),
        ("ansible_user: -x", "ansible_user"),
        ("ansible_ssh_user: a b", "ansible_ssh_user"),
        ("ansible_port: ²", "ansible_port"),
        ("ansible_ssh_common_args: -l -x", "ansible_ssh_common_args"),
        ("ansible_ssh_common_args: -p 99999", "ansible_ssh_common_args"),
    ],
)
def test_refused_with_file_and_line(repository: Repository, line: str, key: str) -> None:
    repository.write("host_vars/gpu01.yml", f"# one\n{line}\n")
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key_path) == ("host_vars/gpu01.yml", 2, key)


def test_the_user_to_become_is_one_too(repository: Repository) -> None:
    repository.write("host_vars/gpu01.yml", "ansible_become: true\nansible_become_user: -x\n")
    with pytest.raises(SettingsError, match="begins with a dash"):
        load_fleet("prod", repository.root)


def test_a_vault_value_is_no_address(repository: Repository) -> None:
    repository.write("host_vars/gpu01.yml", "ansible_user: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n")
    with pytest.raises(SettingsError, match="is a vault value"):
        load_fleet("prod", repository.root)


def test_what_a_terminal_would_obey_is_not_repeated(repository: Repository) -> None:
    repository.write("host_vars/gpu01.yml", 'ansible_host: "a\\e[2J\\nb"\n')
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    assert r'found: "a\x1b[2J\nb" (text)' in str(caught.value)
