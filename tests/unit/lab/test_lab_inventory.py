from pathlib import Path

import yaml

from lab.inventory import render_inventory, render_ssh_config, write_inventory
from lab.layout import Layout
from lab.plan import wanted_hosts
from lab.state import State


def layout_in(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "lab", repository=tmp_path / "repository")


def test_inventory_is_ansibles_yaml(tmp_path: Path) -> None:
    hosts = wanted_hosts(2, "bookworm", 1, ["gateway"])
    document = yaml.safe_load(render_inventory(layout_in(tmp_path), hosts))
    children = document["all"]["children"]
    assert list(children) == ["lab", "gpu", "gateway", "debian13"]
    assert children["lab"]["hosts"] == {
        "gpu1": {"ansible_host": "10.213.77.10"},
        "gpu2": {"ansible_host": "10.213.77.11"},
        "t1": {"ansible_host": "10.213.77.150"},
    }
    assert list(children["gpu"]["hosts"]) == ["gpu1", "gpu2"]
    assert list(children["gateway"]["hosts"]) == ["gpu1", "gpu2", "t1"]
    assert list(children["debian13"]["hosts"]) == ["t1"]
    assert children["lab"]["vars"] == {
        "ansible_user": "admin",
        "ansible_become": True,
        "ansible_ssh_private_key_file": f"{tmp_path}/lab/keys/admin_ed25519",
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={tmp_path}/lab/known_hosts"
        " -o StrictHostKeyChecking=yes",
    }


def test_ssh_trusts_only_the_labs_host_keys(tmp_path: Path) -> None:
    text = render_ssh_config(layout_in(tmp_path), wanted_hosts(1, "bookworm", 0, []))
    assert "Host gpu1\n  HostName 10.213.77.10\n" in text
    assert "StrictHostKeyChecking yes" in text
    assert "GlobalKnownHostsFile none" in text


def test_written_files(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    state = State(hosts={host.name: host for host in wanted_hosts(1, "bookworm", 0, [])})
    public = layout.host_key("gpu1").with_suffix(".pub")
    public.parent.mkdir(parents=True)
    public.write_text("ssh-ed25519 AAAA gpu1\n")
    write_inventory(layout, state)
    assert layout.inventory == tmp_path / "repository/inventories/lab/hosts.yml"
    assert "gpu1" in layout.inventory.read_text()
    assert layout.known_hosts.read_text().startswith("10.213.77.10,gpu1 ssh-ed25519")
