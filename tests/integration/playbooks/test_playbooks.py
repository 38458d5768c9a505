"""Playbooks by the real ansible-runner, in its own process, on hosts that are this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pyinfra_deploy import playbook_plan
from pyinfra_deploy.rollout import playbooks
from pyinfra_deploy.settings.fleet import load_fleet
from tests.fakes.repository import GOOD
from tests.fakes.rollout_host import wait_for

if TYPE_CHECKING:
    from pyinfra_deploy.rollout.playbooks import Played
    from tests.fakes.repository import Repository

SCRIPTS = Path(sysconfig.get_path("scripts"))
PASSWORD = "only-for-this-test"
BOTH = ("gpu01", "gpu02")


class World:
    def __init__(self, repository: Repository, tmp_path: Path) -> None:
        self.repository, self.root = repository, repository.root
        self.made = tmp_path / "made"
        self.made.mkdir()
        self.lines: list[str] = []

    def write(self, name: str, *tasks: Any, **play: Any) -> str:
        """A playbook in a directory of its own, whose tasks run here."""
        path = f"playbooks/{name}.yml"
        one = {"hosts": "gpu", "connection": "local", "gather_facts": False, "tasks": list(tasks)}
        variables = {"ansible_python_interpreter": sys.executable, "ansible_become": False}
        self.repository.write(path, yaml.safe_dump([{**one, "vars": variables, **play}]))
        return path

    def touch(self, name: str) -> str:
        return self.write(name, self.copy(f"{name}-{{{{ inventory_hostname }}}}", "here"))

    def copy(self, name: str, content: str) -> dict[str, Any]:
        copy = {"dest": f"{self.made}/{name}", "content": content}
        return {"name": f"write {name.partition('-')[0]}", "ansible.builtin.copy": copy}

    def settings(self, more: str = "", **ansible: Any) -> None:
        text = yaml.safe_dump({"ansible": ansible})
        self.repository.write("group_vars/prod.yml", f"{GOOD}{text}{more}")

    def play(self, *hosts: str, **how: Any) -> Played:
        fleet = load_fleet("prod", self.root)
        return playbooks.play(fleet, hosts or BOTH, "before", self.lines.append, **how)

    def has(self) -> list[str]:
        return sorted(path.name for path in self.made.iterdir())


@pytest.fixture
def there(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    return World(repository, tmp_path)


def test_only_the_batch_and_with_the_inventorys_variables(there: World) -> None:
    name = "said-{{ inventory_hostname }}"
    there.settings(
        before=[
            there.write("one", there.copy(name, "{{ engine.args['max-model-len'] }} {{ own }}"))
        ],
        more="own: of group_vars\n",
    )
    played = there.play("gpu02")
    assert played.failed == {}
    assert there.has() == ["said-gpu02"]
    assert (there.made / "said-gpu02").read_text() == "16384 of group_vars"
    assert played.changed == {"gpu02": ["playbooks/one.yml: 1 changed (write said)"]}
    assert "[gpu02] changed: write said" in there.lines
    assert played.told[0].startswith("playbook playbooks/one.yml: 1 changed (gpu02), 0 failed")
    assert there.play("gpu02").changed == {}
    # Runner's files, which hold the environment, are gone.
    assert list(Path(os.environ["TMPDIR"]).iterdir()) == []


def test_a_host_that_fails_is_left_out_of_what_comes_next(there: World) -> None:
    """And one on which a failure is ignored or rescued is not."""
    refuse = {"name": "refuse", "ansible.builtin.fail": {"msg": "no room\non this disk"},
              "when": "inventory_hostname == 'gpu01'"}  # fmt: skip
    bad = {"name": "bad", "ansible.builtin.command": "/bin/false"}
    debug = {"ansible.builtin.debug": {"msg": "mended"}}
    tasks = ({**bad, "ignore_errors": True}, {"block": [bad], "rescue": [debug]}, refuse)
    there.settings(before=[there.write("one", *tasks), there.touch("two")])
    played = there.play()
    assert there.has() == ["two-gpu02"]
    assert played.failed == {
        "gpu01": {
            "what": "playbook playbooks/one.yml failed",
            "why": "task 'refuse': no room",
            "fix": "mend the playbook or the host, or take it out of ansible.before",
            "detail": ["on this disk"],
        }
    }


def test_a_play_that_ends_for_all_has_failed_on_all(there: World) -> None:
    bad = {"name": "bad", "ansible.builtin.command": "/bin/false",
           "when": "inventory_hostname == 'gpu01'"}  # fmt: skip
    later = there.copy("later-{{ inventory_hostname }}", "here")
    there.settings(before=[there.write("one", bad, later, any_errors_fatal=True)])
    failed = there.play().failed
    assert there.has() == []
    assert "task 'bad'" in failed["gpu01"]["why"]
    assert failed["gpu02"]["why"] == "it was ended for all hosts after gpu01"


def test_a_playbook_for_other_hosts_concerns_none(there: World) -> None:
    there.settings(before=[there.write("one", there.copy("x", "y"), hosts="gpu01")])
    played = there.play("gpu02")
    assert (played.failed, there.has()) == ({}, [])
    assert "playbook playbooks/one.yml concerned none of these hosts" in there.lines


def test_check_mode_changes_nothing_and_tells_what_it_would(there: World) -> None:
    refuse = {"name": "refuse", "ansible.builtin.fail": {"msg": "no"},
              "when": "inventory_hostname == 'gpu02'"}  # fmt: skip
    there.settings(before=[there.touch("one")], after=[there.write("two", refuse)])
    found = playbook_plan.check_mode(load_fleet("prod", there.root), BOTH)
    assert there.has() == []
    assert list(playbook_plan.check_lines(found)) == [
        "playbooks, in check mode, on gpu01:",
        "    before: playbooks/one.yml: 1 changed (write one)",
        "playbooks, in check mode, on gpu02:",
        "    before: playbooks/one.yml: 1 changed (write one)",
        "    after: CHECK MODE FAILED: playbook playbooks/two.yml failed: task 'refuse': no",
    ]
    assert playbook_plan.any_failed(found)


def test_one_that_ansible_cannot_read_is_refused_before(
    there: World, capsys: pytest.CaptureFixture[str]
) -> None:
    there.settings(before=[there.write("one", {"no.such.module": {}})])
    assert playbook_plan.refused(load_fleet("prod", there.root), BOTH)
    said = capsys.readouterr().err
    assert said.count("ansible.before: playbook playbooks/one.yml failed") == 1
    assert "no.such.module" in said
    there.settings(before=[there.touch("one")])
    assert not playbook_plan.refused(load_fleet("prod", there.root), BOTH)
    assert there.has() == []


def test_vault_values_without_the_password_in_a_command_or_a_readable_file(
    there: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))
    secret = subprocess.run(
        [SCRIPTS / "ansible-vault", "encrypt_string", "--name", "own", "of the vault"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    # As Ansible has it by itself; runner would turn it off.
    check = {"ansible.builtin.assert": {"that": [
        "lookup('config', 'HOST_KEY_CHECKING')",
    ]}}  # fmt: skip
    look = (
        f"cat /proc/[0-9]*/cmdline > {there.made}/argv 2>/dev/null; "
        f"find {os.environ['TMPDIR']} -mindepth 1 -maxdepth 1 -perm /077 > {there.made}/open; :"
    )
    tasks = check, there.copy("own", "{{ own }}"), {"ansible.builtin.shell": look}
    there.settings(before=[there.write("one", *tasks)], more=secret)
    assert there.play("gpu01").failed == {}
    assert (there.made / "own").read_text() == "of the vault"
    argv = (there.made / "argv").read_bytes()
    assert b"ansible-playbook" in argv
    assert PASSWORD.encode() not in argv
    assert b"of the vault" not in argv
    assert (there.made / "open").read_text() == ""


def offline(there: World, collections: bool = True) -> None:
    build = there.root / "build"
    role = build / "own_role/tasks"
    role.mkdir(parents=True)
    (role / "main.yml").write_text(yaml.safe_dump([there.copy("role", "of the role")]))
    (build / "own_role/meta").mkdir()
    (build / "own_role/meta/main.yml").write_text("galaxy_info: {author: a, description: b}\n")
    vendor = there.root / "vendor"
    (vendor / "roles").mkdir(parents=True)
    (vendor / "collections").mkdir()
    subprocess.run(["tar", "-C", build, "-czf", vendor / "roles/own_role.tar.gz", "own_role"],
                   check=True)  # fmt: skip
    if collections:
        collection = build / "acme/tools"
        (collection / "playbooks").mkdir(parents=True)
        (collection / "roles/greet/tasks").mkdir(parents=True)
        (collection / "roles/greet/tasks/main.yml").write_text(
            yaml.safe_dump([there.copy("collection", "of the collection")])
        )
        about = {"namespace": "acme", "name": "tools", "version": "1.2.3", "authors": ["a"],
                 "readme": "README.md"}  # fmt: skip
        (collection / "galaxy.yml").write_text(yaml.safe_dump(about))
        (collection / "README.md").write_text("x")
        subprocess.run([SCRIPTS / "ansible-galaxy", "collection", "build", collection,
                        "--output-path", vendor / "collections"], check=True)  # fmt: skip
    there.repository.write(
        "playbooks/requirements.yml",
        "roles: [{name: own_role, src: https://nowhere.invalid/own_role.tar.gz}]\n"
        "collections: [acme.tools]\n",
    )
    path = there.write("one", roles=["own_role", "acme.tools.greet"])
    there.settings(
        before=[path], requirements="playbooks/requirements.yml", requirements_directory="vendor"
    )


def test_roles_and_collections_from_a_directory(there: World) -> None:
    offline(there)
    assert there.play("gpu01").failed == {}
    assert there.has() == ["collection", "role"]
    (place,) = (there.root / ".fleet/ansible").iterdir()
    before = place.stat().st_mtime_ns
    assert there.play("gpu01").failed == {}
    assert place.stat().st_mtime_ns == before
    assert list((there.root / ".fleet/ansible").iterdir()) == [place]


def test_a_directory_that_lacks_one_is_refused(there: World) -> None:
    offline(there, collections=False)
    failed = there.play().failed
    assert set(failed) == set(BOTH)
    assert failed["gpu01"]["what"].endswith("vendor lacks acme.tools")
    assert there.has() == []


def test_one_that_takes_too_long_has_failed(there: World) -> None:
    sleep = {"ansible.builtin.command": "sleep 600"}
    there.settings(before=[there.write("one", sleep)], timeout_seconds=3)
    failed = there.play("gpu01").failed
    assert "ansible.timeout_seconds = 3" in failed["gpu01"]["why"]


def sleeping(there: World) -> list[int]:
    """ansible-playbook's processes of this test, by its inventory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"ansible-playbook" in line and str(there.root).encode() in line:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_it_does_not_outlive_its_parent(there: World, number: int) -> None:
    sleep = {"ansible.builtin.shell": f"touch {there.made}/begun; sleep 600"}
    there.settings(before=[there.write("one", sleep)])
    code = (
        "from pyinfra_deploy.rollout import playbooks\n"
        "from pyinfra_deploy.settings.fleet import load_fleet\n"
        "playbooks.play(load_fleet('prod'), ['gpu01'], 'before', print)\n"
    )
    repository = str(Path(__file__).resolve().parents[3])
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=there.root, text=True,
        env={**os.environ, "PYTHONPATH": repository},
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        # A shell's background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    wait_for((there.made / "begun").exists, parent)
    assert sleeping(there)
    parent.send_signal(number)
    parent.wait()
    wait_for(lambda: not sleeping(there))


def test_the_child_is_not_patched_by_gevent() -> None:
    """ansible-runner hangs where it is."""
    code = (
        "import pyinfra_deploy.playbooks.__main__, ansible_runner\n"
        "from gevent import monkey\nprint(monkey.saved)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{}\n"
