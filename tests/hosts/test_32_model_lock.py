"""A locked model on real hosts: the lock counts and not the hub, copying in, and what can go."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub import control
from lab.hub.faults import Fault
from lab.hub.places import hub_directory, models_directory
from lab.hub.store import revision
from lab.layout import current_layout
from tests.hosts import pyinfra_run
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell
from tests.hosts.pyinfra_run import BIN, REPOSITORY
from tests.hosts.standin_inventory import MODELS, NAME, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.hosts.standin_inventory import Checkout

    Faults = Callable[..., None]

BOTH = (DEBIAN12, DEBIAN13)
NOWHERE = "http://10.213.77.1:8099"

pytestmark = pytest.mark.usefixtures("steady")


def lock_file(host: str) -> str:
    return f"models-locked/{MODELS[host].replace('/', '--')}.json"


def fleet(checkout: Checkout, *words: str, code: int = 0) -> str:
    done = pyinfra_run.run([str(BIN / "fleet"), *words], root=checkout.root)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def with_locks(**more: str) -> dict[str, Any]:
    """Host variables that name each host's lock."""
    return {
        host: {"model": {**SETTINGS["model"], "id": MODELS[host], "lock": lock_file(host), **more}}
        for host in BOTH
    }


def locked(checkout: Checkout, host: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((checkout.root / lock_file(host)).read_text())
    return document


def directory(checkout: Checkout, host: str) -> str:
    """Of the locked model, below models/."""
    name = f"master-{locked(checkout, host)['digest'][:12]}"
    return f"{MODELS[host].replace('/', '--')}/{name}"


@pytest.fixture(scope="module", autouse=True)
def from_no_locks_and_back(checkout: Checkout) -> Iterator[None]:
    checkout.locked = False
    yield
    checkout.locked = True
    checkout.write()
    checkout.deploy().done()


def test_locks_are_made_for_the_hosts_of_an_inventory(checkout: Checkout) -> None:
    checkout.write(host_variables=with_locks())
    said = fleet(checkout, "model", "lock", NAME)
    for host in BOTH:
        assert f"{lock_file(host)}: written" in said
        assert len(locked(checkout, host)["commit"]) == 40
    assert fleet(checkout, "model", "lock", NAME).count("as it was") == len(BOTH)


def test_the_model_goes_live_from_its_lock_while_the_hubs_listing_is_broken(
    checkout: Checkout, hub_faults: Faults
) -> None:
    """The listing has lost the weights' hashes: what arrives is compared with the lock's."""
    for host in BOTH:
        slug, name = directory(checkout, host).split("/")
        script = f"[ ! -d {name} ] || {{ mv {name} older && mv {name}.json older.json; }}"
        shell(host, f"cd /srv/llm/models/{slug} && {script}")
    hub_faults(Fault("no_sha256", path="*.safetensors"))
    checkout.deploy().done()
    for host in BOTH:
        place = directory(checkout, host)
        record = json.loads(shell(host, f"cat /srv/llm/models/{place}.json"))
        assert record["model_digest"] == locked(checkout, host)["digest"]
        live = shell(host, "readlink -f /srv/llm/engines/main/current/model").strip()
        assert live == f"/srv/llm/models/{place}"
        assert checkout.service(host).answers()
    assert checkout.deploy().done().unchanged


def test_status_and_list_say_what_is_where(checkout: Checkout) -> None:
    status = fleet(checkout, "model", "status", NAME)
    listed = fleet(checkout, "model", "list", NAME)
    for host in BOTH:
        assert re.search(rf"^{host} +{directory(checkout, host)}: ", status, re.MULTILINE)
        assert "used by main/" in status
        assert f"{directory(checkout, host)}: " in listed


def test_what_a_release_refers_to_does_not_go(checkout: Checkout) -> None:
    place = directory(checkout, DEBIAN12)
    said = fleet(checkout, "model", "remove", NAME, place, code=1)
    assert "refers to it" in said
    assert shell(DEBIAN12, f"ls /srv/llm/models/{place}").split()


def test_an_unused_model_goes_when_asked(checkout: Checkout) -> None:
    stray = "lab--nobodys/master"
    shell(
        DEBIAN12,
        f"install -d -o llm-build /srv/llm/models/{stray} && cd /srv/llm/models/lab--nobodys && "
        'echo \'{"schema": 1, "files": []}\' > master.json && chown -R llm-build: .',
    )
    would = fleet(checkout, "model", "remove", NAME, stray, "--dry-run")
    assert f"{DEBIAN12}: {stray}" in would
    assert shell(DEBIAN12, f"ls -d /srv/llm/models/{stray}").strip()
    said = fleet(checkout, "model", "remove", NAME, stray)
    assert f"{DEBIAN12}: removed" in said
    assert f"{DEBIAN13}: nothing to remove" in said
    assert not shell(DEBIAN12, f"ls -d /srv/llm/models/{stray} 2>/dev/null; true").strip()


def documented_copy(checkout: Checkout, directory_here: Path) -> str:
    """The lines of docs/models.md, "Without internet", for one host of the lab."""
    text = (REPOSITORY / "docs/models.md").read_text()
    lines = re.findall(r"^    (?:PLACE=|ssh gpu01 |tar -C DIRECTORY ).*$", text, re.MULTILINE)
    assert len(lines) == 3, lines
    script = "\n".join(line.strip() for line in lines)
    for word, meant in (
        ("OWNER--NAME/REVISION-DIGEST", directory(checkout, DEBIAN12)),
        ("gpu01", DEBIAN12),
        ("-C DIRECTORY", f"-C {directory_here}"),
    ):
        assert word in script
        script = script.replace(word, meant)
    return script


def test_files_that_were_copied_in_need_no_hub(checkout: Checkout, tmp_path: Path) -> None:
    """By the very lines of the docs, from a directory as the hub's client leaves it."""
    place = directory(checkout, DEBIAN12)
    models = "/srv/llm/models"
    shell(DEBIAN12, f"rm -rf {models}/{place} {models}/{place}.json {models}/.incoming/*")
    here = revision(models_directory(hub_directory()), MODELS[DEBIAN12], "master").directory
    # An operator's ~/.ssh/config knows the hosts; the lab has a file of its own.
    ssh = tmp_path / "ssh"
    config = current_layout().ssh_config
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F "{config}" "$@"\n')
    ssh.chmod(0o755)
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", documented_copy(checkout, here)],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
    )
    copied = shell(DEBIAN12, f"find {models}/.incoming/{place}/model -type f").split()
    assert len(copied) == len(locked(checkout, DEBIAN12)["files"])
    control.reset_counters()
    checkout.write(host_variables=with_locks(endpoint=NOWHERE))
    checkout.deploy().done()
    assert shell(DEBIAN12, f"ls /srv/llm/models/{place}").split()
    assert not control.counters()["requests"]
    checkout.write(host_variables=with_locks())
