"""Whole inventories: finding them, warnings, membership, speed, and pyinfra's view of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from pyinfra_deploy.settings import Fleet, SettingsError, load_fleet
from pyinfra_deploy.settings.mutual_tls import NOBODY, as_data
from pyinfra_deploy.settings.pyinfra_hosts import pyinfra_groups, pyinfra_inventory

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

REPOSITORY = Path(__file__).parents[3]


def _warnings(repository: Repository) -> list[str]:
    return [str(warning) for warning in load_fleet("prod", repository.root).warnings]


def _refusal(repository: Repository, inventory: str = "prod") -> str:
    with pytest.raises(SettingsError) as caught:
        load_fleet(inventory, repository.root)
    return str(caught.value)


@pytest.mark.parametrize("how", ["prod", "inventories/prod.py", "inventories/prod/hosts.yml"])
def test_an_inventory_by_any_of_its_names(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(repository.root)
    # A directory of the inventory's name, as lab/ is, must not be taken for it.
    (repository.root / "prod").mkdir()
    fleet = load_fleet(how)
    assert fleet.name == "prod"
    assert fleet.root == repository.root
    assert fleet.directory == repository.root / "inventories/prod"
    assert fleet.groups == {
        "all": ["gpu01", "gpu02"],
        "ungrouped": [],
        "prod": ["gpu01", "gpu02"],
        "gpu": ["gpu01", "gpu02"],
        "gateway": ["gpu01", "gpu02"],
    }
    assert fleet.hosts["gpu01"].groups == {"prod", "gpu", "gateway"}
    assert fleet.warnings == []


def test_an_inventory_that_is_not_there(repository: Repository) -> None:
    assert "inventories here: prod" in _refusal(repository, "prdo")
    assert "inventories/lab/hosts.yml" in _refusal(repository, "lab")
    assert "make lab" in _refusal(repository, "inventories/lab.py")


def test_files_that_cannot_be_read_are_all_named(repository: Repository) -> None:
    repository.write("group_vars/gpu.yml", "a:\n\tb: 1\n")
    repository.write("group_vars/all.yml", "- a\n")
    repository.write("host_vars/gpu01/x.yml", "a: 1\na: 2\n")
    text = _refusal(repository)
    assert text.index("group_vars/all.yml:1") < text.index("group_vars/gpu.yml:2")
    assert "host_vars/gpu01/x.yml:2" in text
    assert text.endswith("3 problems in the settings.")


def test_hosts_outside_the_inventorys_group(repository: Repository) -> None:
    path = repository.root / "inventories/prod/hosts.yml"
    path.write_text(path.read_text().replace("gpu[01:02]", "gpu01", 1))
    text = _refusal(repository)
    assert "prod (host gpu02)" in text
    assert 'not in the group "prod"' in text


def test_a_gateway_without_an_engine(repository: Repository) -> None:
    path = repository.root / "inventories/prod/hosts.yml"
    path.write_text(
        path.read_text().replace(
            "gpu:\n      hosts:\n        gpu[01:02]", "gpu:\n      hosts:\n        gpu01"
        )
    )
    text = _refusal(repository)
    assert "no host of the inventory has an engine for it" in text
    assert "host gpu02" in text


def test_an_engine_without_a_gateway(repository: Repository) -> None:
    path = repository.root / "inventories/prod/hosts.yml"
    path.write_text(
        path.read_text().replace(
            "gateway:\n      hosts:\n        gpu[01:02]", "gateway:\n      hosts:\n        gpu01"
        )
    )
    # The service of gpu01 comes to the engine of gpu02; Nginx alone, in mode direct, does not.
    assert _warnings(repository) == []
    settings = repository.root / "group_vars/prod.yml"
    settings.write_text(settings.read_text() + "  mode: direct\n")
    (warning,) = _warnings(repository)
    assert "nothing will forward to" in warning
    assert "gpu02" in warning


def test_no_hosts(repository: Repository) -> None:
    repository.write("inventories/prod/hosts.yml", "prod:\n  hosts:\n")
    assert "has no hosts" in _refusal(repository)


def test_two_local_hosts(repository: Repository) -> None:
    repository.write("group_vars/gpu.yml", "ansible_connection: local\n")
    assert "gpu01, gpu02 all have ansible_connection: local" in _refusal(repository)


def test_merging_is_refused(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.write("ansible.cfg", "[defaults]\nhash_behaviour = merge\n")
    assert "hash_behaviour" in _refusal(repository)
    monkeypatch.setenv("ANSIBLE_HASH_BEHAVIOUR", "replace")
    assert load_fleet("prod", repository.root).warnings == []


def test_many_hosts_are_one_problem(repository: Repository) -> None:
    path = repository.root / "inventories/prod/hosts.yml"
    path.write_text(path.read_text().replace("01:02", "01:30"))
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace("Qwen/", ""))
    assert "model.id (hosts gpu01, gpu02, gpu03 and 27 more)" in _refusal(repository)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gatway", "gateway"),
        ("run-time", "runtime"),
        ("engines", "engine"),
        ("llm_rot", "llm_root"),
    ],
)
def test_nearly_ours(repository: Repository, name: str, meant: str) -> None:
    repository.write("group_vars/gpu.yml", f"{name}: 1\n")
    (warning,) = _warnings(repository)
    assert warning.startswith(f"group_vars/gpu.yml:1: {name} (hosts gpu01, gpu02)")
    assert f'"{meant}"' in warning


def test_other_variables_pass_untouched(repository: Repository) -> None:
    text = "ntp_servers: [a]\nmotd: '{{ inventory_hostname }}'\nansible_pipelining: true\n"
    repository.write("group_vars/all.yml", text)
    assert _warnings(repository) == []
    variables = load_fleet("prod", repository.root).hosts["gpu01"].variables
    assert variables["motd"] == "{{ inventory_hostname }}"
    assert variables["ntp_servers"] == ["a"]


def test_dropped_keys(repository: Repository) -> None:
    """Named: both places and the keys; not what the default restores or the new level sets."""
    text = (
        "engine:\n"
        "  drain_seconds: 300\n"
        "  stall_timeout_seconds: 600\n"
        "  args:\n"
        "    max-model-len: 1\n"
        "    enable-expert-parallel: true\n"
    )
    repository.write("group_vars/gpu.yml", text)
    (warning,) = _warnings(repository)
    assert warning.startswith("group_vars/prod.yml:6: engine (hosts gpu01, gpu02)")
    assert "of group_vars/gpu.yml:1" in warning
    assert "engine.drain_seconds, engine.args.enable-expert-parallel." in warning
    assert "stall_timeout_seconds" not in warning


def test_dropping_on_purpose(repository: Repository) -> None:
    repository.write("group_vars/gpu.yml", "engine: {args: {enable-expert-parallel: true}}\n")
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace("16384", "16384\n    enable-expert-parallel: null"))
    fleet = load_fleet("prod", repository.root)
    assert fleet.warnings == []
    assert fleet.hosts["gpu01"].settings.engine.args == {"max-model-len": 16384}


def test_a_weak_group_of_the_inventory(repository: Repository) -> None:
    text = "prod:\n  children:\n    gpu: {hosts: {gpu01: }}\n    gateway: {hosts: {gpu01: }}\n"
    repository.write("inventories/prod/hosts.yml", text)
    warnings = _warnings(repository)
    assert len(warnings) == 2
    assert "group_vars/prod.yml is weaker than group_vars/gateway.yml" in "".join(warnings)
    assert "gpu lies below prod" in "".join(warnings)


def test_files_and_groups_that_are_misspelt(repository: Repository) -> None:
    repository.write("group_vars/gatway.yml", "a: 1\n")
    repository.write("inventories/prod/group_vars/gpus.yml", "a: 1\n")
    repository.write("inventories/staging.py", "")
    repository.write("group_vars/staging.yml", "a: 1\n")
    first, second = _warnings(repository)
    assert "group_vars/gatway.yml" in first
    assert 'the group "gateway"' in first
    assert "inventories/prod/group_vars/gpus.yml" in second


def test_no_gpu_group(repository: Repository) -> None:
    text = "prod: {hosts: {a: }}\ngpus: {hosts: {a: }}\n"
    repository.write("inventories/prod/hosts.yml", text)
    (warning,) = _warnings(repository)
    assert 'has no group "gpu"' in warning
    assert '"gpus"' in warning


def test_names_that_look_secret(repository: Repository) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace("engine:", "engine:\n  env: {MY_TOKENS: x}"))
    (warning,) = _warnings(repository)
    assert "engine.env.MY_TOKENS" in warning
    assert "group_vars/prod.yml:7" in warning


def test_a_host_may_differ(repository: Repository) -> None:
    repository.write("host_vars/gpu02.yml", "llm_root: /data/llm\n")
    hosts = load_fleet("prod", repository.root).hosts
    assert hosts["gpu01"].settings.llm_root == "/srv/llm"
    assert hosts["gpu02"].settings.llm_root == "/data/llm"
    assert hosts["gpu01"].settings is not hosts["gpu02"].settings


def test_a_hundred_hosts(repository: Repository) -> None:
    path = repository.root / "inventories/prod/hosts.yml"
    path.write_text(path.read_text().replace("01:02", "001:100"))
    for number in range(1, 101):
        repository.write(f"host_vars/gpu{number:03}.yml", f"ansible_host: 10.0.0.{number}\n")
    assert len(load_fleet("prod", repository.root).hosts) == 100


def test_pyinfra_groups(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_PASSWORD", "pw")
    text = (
        "ansible_host: 10.0.0.1\nansible_become: true\nrole_var: 1\nssh_user: not-for-pyinfra\n"
        "_sudo_user: neither\nansible_become_password: \"{{ lookup('env', 'SUDO_PASSWORD') }}\"\n"
    )
    repository.write("host_vars/gpu01.yml", text)
    fleet = load_fleet("prod", repository.root)
    groups = pyinfra_groups(fleet)
    assert list(groups) == ["all", "prod", "gpu", "gateway"]
    (name, data), (other, _) = groups["all"][0]
    assert (name, other) == ("gpu01", "gpu02")
    assert data == {
        "role_var": 1,
        "ssh_hostname": "10.0.0.1",
        "_sudo": True,
        "_sudo_password": "pw",
        "settings": fleet.hosts["gpu01"].settings,
        "fleet": {
            "name": "prod",
            "directory": str(repository.root / "inventories/prod"),
            "root": str(repository.root),
            "host": "gpu01",
            "sharing": 0,
            "mutual_tls": as_data(NOBODY),
            "engines": [],
        },
    }


def test_a_local_host(repository: Repository) -> None:
    repository.write("host_vars/gpu01.yml", "ansible_connection: local\n")
    groups = pyinfra_groups(load_fleet("prod", repository.root))
    assert [name for name, _ in groups["gpu"][0]] == ["@local", "gpu02"]


def test_a_jump_host(repository: Repository) -> None:
    text = "ansible_host: 10.0.0.1\nansible_ssh_common_args: -J ops@bastion -F ssh/config\n"
    repository.write("host_vars/gpu01.yml", text)
    for _ in range(2):
        data = dict(pyinfra_groups(load_fleet("prod", repository.root))["all"][0])["gpu01"]
        (written,) = (repository.root / ".fleet/ssh").iterdir()
        assert data["ssh_config_file"] == str(written)
    assert written.read_text() == (
        f"Host 10.0.0.1\n  ProxyJump ops@bastion\nHost *\nInclude {repository.root}/ssh/config\n"
    )
    assert written.stat().st_mode & 0o077 == 0


def test_the_operator_sees_texts_only(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write("group_vars/gpu.yml", "llm_root: x\n")
    with pytest.raises(SystemExit) as caught:
        pyinfra_inventory(str(repository.root / "inventories/prod.py"))
    assert caught.value.code == 1
    shown = capsys.readouterr().err
    assert "group_vars/gpu.yml:1: llm_root (hosts gpu01, gpu02)" in shown
    assert "no host was contacted" in shown


def test_warnings_are_shown(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    repository.write("group_vars/gpu.yml", "gatway: x\n")
    pyinfra_inventory(str(repository.root / "inventories/prod.py"))
    assert "warning: group_vars/gpu.yml:1: gatway" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "meant"), [("gup", "gpu"), ("gpu1", "gpu01"), ("zzz*", "groups: all, ")]
)
def test_a_limit_that_matches_nothing_is_an_error(
    repository: Repository, capsys: pytest.CaptureFixture[str], pattern: str, meant: str
) -> None:
    """pyinfra 3.10 warns, does nothing, and exits with 0. Its options are in click's context."""
    with click.Context(click.Command("pyinfra")) as context:
        context.params = {"limit": ("gpu", pattern), "exclude": ()}
        with pytest.raises(SystemExit):
            pyinfra_inventory(str(repository.root / "inventories/prod.py"))
    shown = capsys.readouterr().err
    assert f"--limit {pattern}" in shown
    assert meant in shown


def test_limits_that_match(repository: Repository) -> None:
    with click.Context(click.Command("pyinfra")) as context:
        context.params = {"limit": ("gpu", "gpu0*"), "exclude": ("gpu02",)}
        assert pyinfra_inventory(str(repository.root / "inventories/prod.py"))


def _shipped(name: str) -> Fleet:
    return load_fleet(name, REPOSITORY)


def test_the_production_inventory_is_right_as_it_is_shipped() -> None:
    fleet = _shipped("prod")
    assert fleet.warnings == []
    settings = fleet.hosts["gpu01"].settings
    assert settings.served_model_name == "Qwen/Qwen3-235B-A22B-FP8"
    assert settings.engine.args["tensor-parallel-size"] == 8
    assert settings.engine.args["enable-expert-parallel"] is True
    assert fleet.hosts["gpu01"].connection["_sudo"] is True


def test_the_labs_settings_are_right(tmp_path: Path) -> None:
    """With hosts as `lab up` writes them."""
    for name in ("group_vars", "locks", "ansible.cfg"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    hosts = tmp_path / "inventories/lab/hosts.yml"
    hosts.parent.mkdir(parents=True)
    group = "{hosts: {lab01: {ansible_host: 10.213.77.11}}}"
    own = "{vars: {ansible_group_priority: 10}, hosts: {lab01: }}"
    hosts.write_text(f"lab: {own}\ngpu: {group}\ngateway: {group}\n")
    fleet = load_fleet(hosts, tmp_path)
    assert fleet.warnings == []
    settings = fleet.hosts["lab01"].settings
    assert settings.runtime is not None
    assert settings.runtime.device == "cpu"
    assert settings.engine.env == {"VLLM_CPU_KVCACHE_SPACE": "1"}
