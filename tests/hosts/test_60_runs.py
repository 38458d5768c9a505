"""Hosts that cannot be reached, runs that are killed, and two runs at once."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from lab.commands import run_checked
from lab.hub.faults import Fault
from tests.hosts import host_state, pyinfra_run
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, upper_of, wait_for
from tests.hosts.pyinfra_run import REPOSITORY
from tests.hosts.standin_inventory import MODELS, SETTINGS, Checkout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.hosts.pyinfra_run import Ran, Running

LEASE = "srv/llm/state/lease.json"
BIN = "/srv/llm/bin"
SHARD = "model-00002-of-00003.safetensors"

pytestmark = pytest.mark.usefixtures("steady")


def named(ran: Ran, host: str, step: str, cause: str, move: str) -> None:
    """The run names host, step, cause (a pattern) and next move, fails, and the other host has been
    dealt with."""
    assert ran.code == 1, ran.log
    ran.said(step, move)
    assert re.search(rf"\[{host}\] +{cause}", ran.log), ran.log
    assert ran.finished(DEBIAN12)


def test_a_host_that_is_down(checkout: Checkout) -> None:
    hosts.kill(DEBIAN13)
    ran = checkout.deploy()
    hosts.boot(DEBIAN13)
    named(
        ran,
        DEBIAN13,
        "Connecting to hosts",
        r"(Could not connect|SSH error) \(.*\n +nothing was changed on it\. Next: ",
        f"ansible_port right? Without it for now: --exclude {DEBIAN13}",
    )
    checkout.service(DEBIAN13).wait(30)
    assert checkout.deploy().done().unchanged


def test_a_wrong_ssh_key(checkout: Checkout, tmp_path: Path) -> None:
    key = tmp_path / "wrong"
    run_checked(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], what="a key")
    checkout.write(
        host_variables={DEBIAN13: {"ansible_ssh_private_key_file": str(key)}},
    )
    named(
        checkout.deploy(),
        DEBIAN13,
        "Connecting to hosts",
        r"Authentication error \(.*\n +nothing was changed on it\. Next: ",
        "put the public key into its authorized_keys",
    )
    checkout.write()


def test_a_user_without_sudo(checkout: Checkout) -> None:
    shell(
        DEBIAN13,
        "id nosudo >/dev/null 2>&1 || { useradd -m nosudo && mkdir -p ~nosudo/.ssh && "
        "cp ~admin/.ssh/authorized_keys ~nosudo/.ssh/ && chown -R nosudo: ~nosudo/.ssh; }",
    )
    checkout.write(host_variables={DEBIAN13: {"ansible_user": "nosudo"}})
    named(
        checkout.deploy(),
        DEBIAN13,
        "why: the user may not run sudo without one, or not at all",
        "connection: sudo asks for a password",
        "fix: allow it in the host's sudoers (NOPASSWD: ALL)",
    )
    checkout.write()


@pytest.fixture
def vaulted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Encrypts a text as `ansible-vault encrypt_string` does, for runs that have the password."""
    password = tmp_path / "vault-password"
    password.write_text("of the vault\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))

    def encrypt(text: str) -> str:
        program = pyinfra_run.BIN / "ansible-vault"
        done = subprocess.run(
            [program, "encrypt"], input=text, capture_output=True, text=True, check=True
        )
        return done.stdout

    return encrypt


def test_a_sudo_password_from_a_vaulted_host_variable(
    checkout: Checkout, vaulted: Callable[[str], str]
) -> None:
    user, password = "careful", "pass-8f21c7-word"
    shell(
        DEBIAN13,
        f"id {user} >/dev/null 2>&1 || useradd -m -G sudo -s /bin/bash {user}; chpasswd; "
        f"mkdir -p ~{user}/.ssh && cp ~admin/.ssh/authorized_keys ~{user}/.ssh/ && "
        f"chown -R {user}: ~{user}/.ssh; rm /etc/tmpfiles.d/llm-fleet.conf",
        input_text=f"{user}:{password}\n",
    )
    variables = checkout.root / "host_vars" / f"{DEBIAN13}.yml"
    variables.parent.mkdir(exist_ok=True)
    text = "".join(f"  {line}\n" for line in vaulted(password).splitlines())
    variables.write_text(f"ansible_become_password: !vault |\n{text}")
    checkout.write(host_variables={DEBIAN13: {"ansible_user": user}})
    try:
        # What pyinfra itself shows and says, at its most talkative.
        ran = checkout.deploy("-vvv", "--debug", "--limit", DEBIAN13).done()
        assert not ran.unchanged
        ran.said("will write /etc/tmpfiles.d/llm-fleet.conf")
        assert password not in ran.log
        assert checkout.deploy("--limit", DEBIAN13).done().unchanged
        assert host_state.places_of(DEBIAN13, password) == []
        left = shell(
            DEBIAN13, "ls -d /run/user/*/pyinfra-* /dev/shm/pyinfra-* /tmp/pyinfra-sudo-*; :"
        )
        assert left == ""
    finally:
        variables.unlink()
        checkout.write()
        shell(DEBIAN13, f"loginctl terminate-user {user}; userdel -rf {user} 2>/dev/null; :")
    assert checkout.deploy().done().unchanged


GPUS = {**SETTINGS["gpu_host"], "expected_gpus": 8}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "for its GPUs": ("fallen-off", {"gpu_host": GPUS}, "gpu.fallen-off"),
    # 3 divides no number of heads of the lab's models.
    "for its settings": (
        "ok",
        {"gpu_host": GPUS,
         "engine": {**SETTINGS["engine"], "args": {"tensor-parallel-size": 3}}},
        "parallel.heads",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_host_serves_on_unchanged_and_the_other_is_changed(
    checkout: Checkout, why: str
) -> None:
    state, own, refusal = REFUSED[why]
    hosts.gpu(DEBIAN13, state)
    # A change for both: the size of bodies that Nginx takes.
    checkout.write(host_variables={DEBIAN13: own}, gateway={"max_body_mb": 17})
    before = host_state.tree(DEBIAN13), host_state.invocations(DEBIAN13)
    ran = checkout.deploy()
    after = host_state.tree(DEBIAN13), host_state.invocations(DEBIAN13)
    hosts.gpu(DEBIAN13, "ok")
    sizes = "grep -rh client_max_body_size /etc/nginx"
    changed = shell(DEBIAN12, sizes)
    checkout.write()
    checkout.deploy().done()
    ran.said(refusal)
    assert ran.failed == {DEBIAN13}
    assert host_state.differences(before[0], after[0]) == []
    assert before[1] == after[1]
    assert "17m" in changed
    assert "17m" not in shell(DEBIAN12, sizes)
    assert checkout.service(DEBIAN13).answers()


def test_an_unknown_group(checkout: Checkout) -> None:
    ran = checkout.deploy("--limit", "gatewya")
    assert ran.code == 1
    ran.said("matches no group and no host", 'did you mean "gateway"?')


def begin_slow_pull(checkout: Checkout, hub_faults: Callable[..., None]) -> Running:
    """A run that has Debian 12's host for some seconds."""
    model = "/srv/llm/models/lab--tiny-qwen3-moe"
    shell(DEBIAN12, f"rm -rf {model} /srv/llm/models/.incoming/*")
    hub_faults(Fault("slow", model=MODELS[DEBIAN12], path=SHARD, value=40_000))
    running = checkout.start()
    wait_for((upper_of(DEBIAN12) / LEASE).exists)
    return running


def test_two_runs_at_once_never_interleave(
    checkout: Checkout, hub_faults: Callable[..., None]
) -> None:
    first = begin_slow_pull(checkout, hub_faults)
    second = checkout.deploy()
    assert first.process.poll() is None, "the first run was too quick for this test"
    assert second.code == 1
    assert second.failed == {DEBIAN12}
    second.said("another run is at work on this host", "Wait for it")
    first.finish().done()
    assert checkout.deploy().done().unchanged


def test_a_run_from_another_commit_leaves_the_program_of_the_run_that_has_the_host(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a refused run has brought does not replace what the other one calls."""
    other = Checkout(tmp_path)
    for name in ("pyinfra_deploy", "files"):
        (tmp_path / name).unlink()  # a link to this checkout's
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    with (tmp_path / "files/fleet_host/__init__.py").open("a") as file:
        file.write("# another commit\n")
    shutil.copytree(checkout.inventory, other.inventory, dirs_exist_ok=True)
    other.base = checkout.base
    other.write()
    run = {"owner": "alice@desk", "machine": "desk:1:2", "run": "alices", "pid": 1, "pid_start": 1}
    asked = json.dumps({**run, "ttl_seconds": 600, "generation_seen": None})
    shell(DEBIAN12, f"{BIN}/fleet-host lease acquire", input_text=asked)
    before = shell(DEBIAN12, f"cd {BIN}; ls -a; sha256sum fleet-host")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        refused = other.deploy("--limit", DEBIAN12)
        assert refused.code == 1
        refused.said("will install the host program", "another run is at work", "alice@desk")
        assert shell(DEBIAN12, f"cd {BIN}; ls -a; sha256sum fleet-host") == before
    shell(DEBIAN12, f"{BIN}/fleet-host lease release", input_text=asked)
    assert checkout.deploy("--limit", DEBIAN12).done().unchanged


def test_the_lease_of_a_killed_run_is_taken_over_at_once(
    checkout: Checkout, hub_faults: Callable[..., None]
) -> None:
    begin_slow_pull(checkout, hub_faults).kill()
    assert (upper_of(DEBIAN12) / LEASE).exists()
    checkout.deploy().done().said("was killed: taking over")
    assert not (upper_of(DEBIAN12) / LEASE).exists()
    assert checkout.deploy().done().unchanged
