"""The control machine and one host are lost: a clone, the vault's password, a deploy, and all is as
before: keys, CA, releases."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from lab import hosts
from tests.hosts import rollouts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13
from tests.hosts.pyinfra_run import BIN
from tests.hosts.rollouts import BOTH, release_of
from tests.hosts.standin_inventory import NAME, Checkout

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# What an operator has committed (docs/keys.md).
COMMITTED = ("hosts.yml", "keys.json", "ca.crt", "ca.key")
COMMITTED_PLACES = (f"inventories/{NAME}", "group_vars")


def git(*words: str, at: Path) -> str:
    who = ("-c", "user.name=operator", "-c", "user.email=operator@example.com")
    done = subprocess.run(["git", *who, *words], cwd=at, check=True, capture_output=True, text=True)
    return done.stdout


def test_a_clone_the_vaults_password_and_a_deploy(
    steady: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "repository"
    vaulted(steady, kept, tmp_path / "password", monkeypatch)
    before = {host: release_of(host) for host in BOTH}
    service = steady.service(DEBIAN13)  # its key and CA: what clients have
    since = rollouts.events_of(DEBIAN12)
    hosts.reset(DEBIAN13)
    assert service.request("GET", "/v1/models").status == 0

    git("clone", "--quiet", str(kept), "clone", at=tmp_path)
    clone = Checkout(tmp_path / "clone", restored=True)
    ran = clone.deploy().done()
    changed = {host for one in ran.results["operations"] for host in one["success"]}
    assert changed == {DEBIAN13}, ran.log
    assert {host: release_of(host) for host in BOTH} == before
    assert service.answers()
    assert steady.service(DEBIAN12).answers()
    assert [
        one for one in rollouts.events_of(DEBIAN12)[len(since) :] if "live" in one["what"]
    ] == []
    assert git("status", "--porcelain", *COMMITTED_PLACES, at=clone.root) == ""
    assert clone.deploy().done().unchanged


def vaulted(
    checkout: Checkout, kept: Path, password: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository of what is committed of this checkout, its CA's key encrypted."""
    password.write_text("of the vault\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))
    checkout.write(gateway={"plaintext_ca_key": False})
    place = kept / "inventories" / NAME
    place.mkdir(parents=True)
    for name in COMMITTED:
        shutil.copy(checkout.inventory / name, place / name)
    for name in ("group_vars", "models-of-this-session"):
        shutil.copytree(checkout.root / name, kept / name)
    checkout.write()
    subprocess.run(
        [str(BIN / "ansible-vault"), "encrypt", str(place / "ca.key")],
        check=True, capture_output=True,
    )  # fmt: skip
    assert "PRIVATE KEY" not in (place / "ca.key").read_text()
    git("init", "--quiet", at=kept)
    git("add", ".", at=kept)
    git("commit", "--quiet", "-m", "The fleet", at=kept)
