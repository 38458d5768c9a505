"""Models damaged after publication, on running hosts: found, named, repaired alone.

The engine serves on until the deploy that mends; a file that is only touched restarts nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub import control
from tests.hosts import pyinfra_run
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, wait_for
from tests.hosts.standin_inventory import NAME

if TYPE_CHECKING:
    import subprocess

    from tests.hosts.standin_inventory import Checkout

BIN = Path(sys.executable).parent
SHARD = "model-00002-of-00003.safetensors"
UNIT = "llm-engine@main.service"

pytestmark = pytest.mark.usefixtures("steady")


def fleet(checkout: Checkout, *words: str) -> subprocess.CompletedProcess[str]:
    return pyinfra_run.run([str(BIN / "fleet"), *words], root=checkout.root)


def model(host: str) -> str:
    return shell(host, "readlink -f /srv/llm/engines/main/current/model").strip()


def main_pid(host: str) -> str:
    return shell(host, f"systemctl show --value -p MainPID {UNIT}").strip()


def flip(host: str, path: str) -> None:
    """Eight bytes in the middle, with the mtime that the file had."""
    shell(
        host,
        f"touch -r {path} /run/then && chmod u+w {path} && "
        f"printf XXXXXXXX | dd of={path} bs=1 seek=5000 conv=notrunc 2>/dev/null && "
        f"chmod u-w {path} && touch -r /run/then {path}",
    )


def events(host: str, what: str) -> list[dict[str, Any]]:
    answer = shell(host, "echo '{\"lines\": 200}' | /srv/llm/bin/fleet-host events tail")
    return [event for event in json.loads(answer)["events"] if event["what"] == what]


def test_models_that_nobody_touched_are_as_they_were_verified(checkout: Checkout) -> None:
    quick = fleet(checkout, "model", "verify", NAME)
    assert quick.returncode == 0, quick.stdout + quick.stderr
    assert quick.stdout.count("as it was verified (0 of ") >= 2
    deep = fleet(checkout, "model", "verify", NAME, "--deep")
    assert deep.returncode == 0, deep.stdout + deep.stderr
    for host in (DEBIAN12, DEBIAN13):
        assert events(host, "model verified")[-1]["model_digest"]


def test_a_flipped_bit_is_found_named_and_repaired_alone(checkout: Checkout) -> None:
    before = {host: main_pid(host) for host in (DEBIAN12, DEBIAN13)}
    path = f"{model(DEBIAN12)}/{SHARD}"
    good = shell(DEBIAN12, f"sha256sum {path}")
    flip(DEBIAN12, path)
    found = fleet(checkout, "model", "verify", NAME)
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"{SHARD} has SHA-256" in found.stdout
    assert f"{DEBIAN13}: " in found.stdout
    # The engine is left alone, and goes on serving.
    assert main_pid(DEBIAN12) == before[DEBIAN12]
    assert checkout.service(DEBIAN12).answers()
    assert events(DEBIAN12, "model damaged")[-1]["damaged"] == [SHARD]
    control.reset_counters()
    checkout.deploy().done()
    assert shell(DEBIAN12, f"sha256sum {path}") == good
    weights = [name for name in control.counters()["bytes"] if name.endswith(".safetensors")]
    assert [name.rsplit("/", 1)[-1] for name in weights] == [SHARD]
    # It may have loaded what was damaged; the other host has nothing to do with it.
    assert main_pid(DEBIAN12) != before[DEBIAN12]
    assert main_pid(DEBIAN13) == before[DEBIAN13]
    assert events(DEBIAN12, "model mended")
    assert checkout.deploy().done().unchanged


def test_files_that_were_only_touched_or_do_not_belong_restart_nothing(checkout: Checkout) -> None:
    """What does not belong is moved away by the deploy, where an operator finds it."""
    before = main_pid(DEBIAN13)
    shell(DEBIAN13, f"touch {model(DEBIAN13)}/{SHARD}; echo hello > {model(DEBIAN13)}/notes.txt")
    found = fleet(checkout, "model", "verify", NAME)
    assert found.returncode == 1
    assert "notes.txt does not belong" in found.stdout
    checkout.deploy().done()
    assert main_pid(DEBIAN13) == before
    assert "notes.txt" not in shell(DEBIAN13, f"ls {model(DEBIAN13)}")
    place = model(DEBIAN13).replace("/models/", "/models/.incoming/")
    assert shell(DEBIAN13, f"cat {place}-aside/*-notes.txt").strip() == "hello"
    assert checkout.deploy().done().unchanged
    assert fleet(checkout, "model", "verify", NAME).returncode == 0


def test_a_truncated_file_is_found_named_and_repaired_alone(checkout: Checkout) -> None:
    path = f"{model(DEBIAN13)}/{SHARD}"
    good, before = shell(DEBIAN13, f"sha256sum {path}"), main_pid(DEBIAN12)
    shell(DEBIAN13, f"chmod u+w {path} && truncate -s -1 {path} && chmod u-w {path}")
    found = fleet(checkout, "model", "verify", NAME)
    assert found.returncode == 1
    assert f"{SHARD} holds" in found.stdout
    control.reset_counters()
    checkout.deploy().done()
    assert shell(DEBIAN13, f"sha256sum {path}") == good
    weights = [name for name in control.counters()["bytes"] if name.endswith(".safetensors")]
    assert [name.rsplit("/", 1)[-1] for name in weights] == [SHARD]
    assert main_pid(DEBIAN12) == before
    assert checkout.deploy().done().unchanged


def test_the_timer_runs_the_job_that_reads_what_is_due(checkout: Checkout) -> None:
    assert shell(DEBIAN12, "systemctl is-active llm-verify.timer").strip() == "active"
    record = f"{model(DEBIAN12)}.json"
    shell(
        DEBIAN12, f'sed -i \'s/"deep_verified_at": "20[0-9]*/"deep_verified_at": "2001/\' {record}'
    )
    shell(DEBIAN12, "systemctl start llm-verify@scheduled.service")
    wait_for(
        lambda: "inactive" in shell(DEBIAN12, "systemctl is-active llm-verify@scheduled; true")
    )
    assert events(DEBIAN12, "model verified")[-1]["who"] == "llm-verify.timer"
    assert '"deep_verified_at": "2001' not in shell(DEBIAN12, f"cat {record}")


def test_the_logs_are_whole_until_somebody_changes_them(checkout: Checkout) -> None:
    whole = fleet(checkout, "audit", "verify", NAME)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    shown = fleet(checkout, "audit", "show", NAME, "--containing", "model ")
    assert "model mended" in shown.stdout
    log = "/srv/llm/state/events.jsonl"
    shell(DEBIAN12, f"cp -p {log} /run/events.kept && sed -i '$d' {log}")
    try:
        cut = fleet(checkout, "audit", "verify", NAME)
        assert cut.returncode == 1
        assert f"{DEBIAN12}: BROKEN" in cut.stdout
        assert f"{DEBIAN13}: whole" in cut.stdout
    finally:
        shell(DEBIAN12, f"cp -p /run/events.kept {log}")
    assert fleet(checkout, "audit", "verify", NAME).returncode == 0
