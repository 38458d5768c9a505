"""What is allowed in hosts.yml and accept_findings, and probably not meant; and what is missing on
the machine that deploys."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
import yaml

from pyinfra_deploy.cli import main
from pyinfra_deploy.planning.findings_table import known_ids
from pyinfra_deploy.settings import SettingsError, load_fleet
from pyinfra_deploy.settings.acceptance_doubts import finding_ids
from pyinfra_deploy.settings.connection import _SECRETS
from pyinfra_deploy.settings.connection_doubts import KNOWN, PASSWORDS
from pyinfra_deploy.settings.pyinfra_hosts import pyinfra_inventory
from tests.fakes.repository import GOOD

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

ACCEPTED = """
accept_findings:
  - {id: gpu.pcie-width, hosts: ["gpu*"], reason: r, until: 2027-01-31, by: a}
  - id: ID
    hosts: [HOSTS]
    reason: r
    until: 2027-01-31
    by: a
"""


def _warnings(repository: Repository) -> list[str]:
    return [str(one) for one in load_fleet("prod", repository.root).warnings]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ansible_hots: 10.0.0.1", ("ansible_hots", 'did you mean "ansible_host"?')),
        ("ansible_usr: ops", ('did you mean "ansible_user"?',)),
        ("ansible_becom: true", ('did you mean "ansible_become"?',)),
        ("ansible_ssh_private_key: k", ()),
        ("ansible_role_of_ours: 1", ()),
        ("ansible_become_password: hunter2", ("plain text", "ansible-vault")),
        ("ansible_password: 4711", ("plain text",)),
        ("ansible_ssh_pass: hunter2", ("plain text",)),
        ("ansible_ssh_pass: \"{{ lookup('env', 'P') }}\"", ()),
        ("ansible_ssh_pass:", ()),
    ],
)
def test_variables_of_ansible(repository: Repository, text: str, said: tuple[str, ...]) -> None:
    repository.write("host_vars/gpu01.yml", text + "\n")
    warnings = _warnings(repository)
    assert len(warnings) == (1 if said else 0)
    for words in said:
        assert words in warnings[0]
        assert "host_vars/gpu01.yml:1" in warnings[0]
    assert "hunter2" not in "".join(warnings)
    assert "4711" not in "".join(warnings)


def test_every_password_that_is_read_is_looked_at() -> None:
    assert set(_SECRETS) <= set(PASSWORDS)
    assert set(_SECRETS) <= set(KNOWN)


@pytest.mark.parametrize(
    ("one", "other", "warned"),
    [
        ("ansible_host: 10.0.0.1", "ansible_host: 10.0.0.1", True),
        ("ansible_host: 10.0.0.1", "ansible_host: 10.0.0.2", False),
        ("ansible_host: 10.0.0.1", "ansible_host: 10.0.0.1\nansible_port: 2222", False),
        ("ansible_host: 10.0.0.1\nansible_port: 22", "ansible_host: 10.0.0.1", True),
        (
            "ansible_host: 10.0.0.1\nansible_ssh_common_args: -J ops@a",
            "ansible_host: 10.0.0.1\nansible_ssh_common_args: -J ops@b",
            False,
        ),
    ],
)
def test_two_names_for_one_machine(
    repository: Repository, one: str, other: str, warned: bool
) -> None:
    repository.write("host_vars/gpu01.yml", one + "\n")
    repository.write("host_vars/gpu02.yml", other + "\n")
    warnings = _warnings(repository)
    assert len(warnings) == warned
    if warned:
        assert "gpu02 has the same address and port as gpu01 (10.0.0.1:22)" in warnings[0]
        assert "host_vars/gpu02.yml:1" in warnings[0]


@pytest.mark.parametrize(
    ("identifier", "hosts", "said"),
    [
        ("gpu.pcie-width", "gpu01", None),
        ("gpu.pcie-widht", "gpu01", "accept_findings.1.id (hosts gpu01, gpu02)"),
        ("gpu.pcie-widht", "gpu01", 'did you mean "gpu.pcie-width"?'),
        ("gpu.pcie-width", "gpu0l", "accept_findings.1.hosts.0"),
        ("gpu.pcie-width", "gpu-01", 'did you mean "gpu01"?'),
        ("gpu.pcie-width", "prod", "groups are not looked at"),
    ],
)
def test_acceptances_of_nothing(
    repository: Repository, identifier: str, hosts: str, said: str | None
) -> None:
    text = GOOD + ACCEPTED.replace("ID", identifier, 1).replace("HOSTS", hosts)
    repository.write("group_vars/prod.yml", text)
    warnings = _warnings(repository)
    assert len(warnings) == (said is not None)
    if said is not None:
        assert said in warnings[0]


def test_the_ids_are_those_of_the_table() -> None:
    assert sorted(finding_ids()) == sorted(known_ids())


@pytest.mark.parametrize("name", ["gatway", "modle", "run_time"])
def test_a_section_that_is_missing_for_a_slip(repository: Repository, name: str) -> None:
    section = {"gatway": "gateway", "modle": "model", "run_time": "runtime"}[name]
    text = GOOD.replace(f"{section}:\n", f"{name}:\n")
    line = text[: text.index(f"{name}:")].count("\n") + 1
    repository.write("group_vars/prod.yml", text)
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    (problem,) = caught.value.problems
    assert problem.key_path == section
    assert f'group_vars/prod.yml:{line} has "{name}": is "{section}" meant?' in problem.fix


@pytest.mark.parametrize("key", ["/nowhere/key", "~/.ssh/key", "keys/key", "."])
def test_a_key_that_is_not_there(
    repository: Repository, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    repository.write("host_vars/gpu02.yml", f"a: 1\nansible_ssh_private_key_file: {key}\n")
    place = "host_vars/gpu02.yml:2: ansible_ssh_private_key_file (host gpu02)"
    assert main(["settings", "check", "prod"]) == 1
    said = capsys.readouterr().err
    assert place in said
    assert "no such file" in said
    with pytest.raises(SystemExit):
        pyinfra_inventory(str(repository.root / "inventories/prod.py"))
    assert place in capsys.readouterr().err
    # Planning from facts needs no key.
    assert len(load_fleet("prod", repository.root).missing) == 1


def test_a_key_that_is_there(repository: Repository, tmp_path: str) -> None:
    repository.write("keys/key", "")
    repository.write("home/.ssh/key", "")
    repository.write("host_vars/gpu01.yml", "ansible_ssh_private_key_file: keys/key\n")
    repository.write("host_vars/gpu02.yml", "ansible_ssh_private_key_file: ~/.ssh/key\n")
    assert load_fleet("prod", repository.root).missing == []


def _mode(repository: Repository, path: str) -> int:
    return stat.S_IMODE((repository.root / path).stat().st_mode)


@pytest.mark.parametrize("arguments", [None, "-o StrictHostKeyChecking=accept-new"])
def test_known_hosts_are_made_as_ssh_makes_them(
    repository: Repository, arguments: str | None
) -> None:
    if arguments:
        repository.write(
            "group_vars/gpu.yml", yaml.safe_dump({"ansible_ssh_common_args": arguments})
        )
    pyinfra_inventory(str(repository.root / "inventories/prod.py"))
    assert _mode(repository, "home/.ssh") == 0o700
    assert _mode(repository, "home/.ssh/known_hosts") == 0o600


def test_known_hosts_that_are_there_are_left(repository: Repository) -> None:
    path = repository.write("home/.ssh/known_hosts", "x\n")
    path.chmod(0o644)
    pyinfra_inventory(str(repository.root / "inventories/prod.py"))
    assert path.read_text() == "x\n"
    assert _mode(repository, "home/.ssh/known_hosts") == 0o644


@pytest.mark.parametrize("checking", ["yes", "no"])
def test_no_known_hosts_are_made_where_none_are_written(
    repository: Repository, checking: str
) -> None:
    text = f"ansible_ssh_common_args: -o StrictHostKeyChecking={checking}\n"
    repository.write("group_vars/gpu.yml", text)
    pyinfra_inventory(str(repository.root / "inventories/prod.py"))
    assert not (repository.root / "home").exists()
