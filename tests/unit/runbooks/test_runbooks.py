"""Each runbook over hosts that are not there: what it does, what it refuses, and a dry run that
does nothing."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.runbook_commands import hosts_for
from pyinfra_deploy.runbooks import registry
from pyinfra_deploy.settings.fleet import load_fleet
from tests.fakes.repository import GOOD
from tests.unit.runbooks.world import KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.runbooks.world import World


GPU = ["drain gpu01", "stop gpu01", "reset gpu01 [3]", "start gpu01", "undrain gpu01"]
# What each does where all is well.
GOOD_DAYS: dict[str, tuple[dict[str, str], list[str]]] = {
    "emergency-stop": ({}, ["stop gpu01 now"]),
    "take-out": ({"stop": "yes"}, ["drain gpu01", "stop gpu01"]),
    "put-in": ({}, ["start gpu01", "undrain gpu01"]),
    "reset-gpu": ({"gpus": "3"}, GPU),
    "repair-model": (
        {},
        ["fleet model verify prod --limit gpu01 --deep", "fleet deploy prod --limit gpu01 --yes",
         "fleet model verify prod --limit gpu01 --deep"],
    ),
    "upgrade-driver": ({}, ["fleet deploy prod --limit gpu01 --yes"] * 2),
    "rotate-keys": (
        {"key": "chat", "out": "/nowhere/new", "revoke": "now"},
        ["fleet keys create prod chat-2 --out /nowhere/new", "fleet keys revoke prod k1"],
    ),
    "rotate-certificates": ({}, ["fleet ca show prod", "deploy rotate_certificate.py gpu01"]),
    "add-host": ({}, ["fleet deploy prod --limit gpu01 --yes"]),
    "replace-host": ({}, ["fleet deploy prod --limit gpu01 --yes"]),
    "collect-diagnostics": ({}, []),
}  # fmt: skip


def prepared(there: World, name: str, tmp_path: Path) -> dict[str, str]:
    options = dict(GOOD_DAYS[name][0])
    if name in ("add-host", "replace-host"):
        there.one.release = None
    if name == "collect-diagnostics":
        options["out"] = str(tmp_path / "bundle.tar.gz")
    if name == "rotate-keys":
        options["name"] = "chat-2"
        there.doors.printed["keys list"] = KEYS
    if name == "upgrade-driver":
        there.repository.write(
            "group_vars/prod.yml", f"{GOOD}gpu_driver: install\ngpu_driver_packages: [a-driver]\n"
        )
    return options


@pytest.mark.parametrize("name", registry.NAMES)
def test_on_a_good_day(there: World, name: str, tmp_path: Path) -> None:
    options = prepared(there, name, tmp_path)
    if name == "rotate-keys":
        gone = json.dumps({"keys": [{"id": "k2", "name": "chat-2"}]})
        listed = [KEYS, gone]
        fleet = there.doors.fleet

        def then(words: Any) -> tuple[int, str]:
            code, printed = fleet(words)
            return code, listed.pop(0) if list(words[:2]) == ["keys", "list"] else printed

        there.doors.fleet = then  # type: ignore[method-assign]
    code = there.run(name, options=options)
    assert code == 0, there.doors.text
    assert there.doors.did == GOOD_DAYS[name][1]
    assert there.doors.said[-1] == f"{name}: done"
    assert there.doors.leased == set()


@pytest.mark.parametrize("name", registry.NAMES)
def test_a_dry_run_does_nothing_and_says_what_it_would(
    there: World, name: str, tmp_path: Path
) -> None:
    options = prepared(there, name, tmp_path)
    assert there.run(name, dry=True, options=options) == 0, there.doors.text
    assert [line for line in there.doors.did if line != "fleet ca show prod"] == []
    assert not list(tmp_path.glob("bundle*"))
    book = registry.runbook(name)
    would = [line for line in there.doors.said if line.startswith("would ")]
    assert len(would) == sum(step.when != "before" for step in book.steps) > 0


@pytest.mark.parametrize("name", registry.NAMES)
def test_each_says_what_it_does_and_checks_first(name: str) -> None:
    book = registry.runbook(name)
    assert book.name == name
    whens = [step.when for step in book.steps]
    assert whens[0] == "before"
    assert "do" in whens
    shown = book.described
    assert book.does in shown
    assert all(step.text in shown for step in book.steps)
    assert all(f"  {option}: " in shown for option in book.options)


LOCKED = [name for name in registry.NAMES
          if name not in ("emergency-stop", "rotate-keys", "collect-diagnostics")]  # fmt: skip


@pytest.mark.parametrize("name", LOCKED)
def test_nothing_is_begun_on_a_host_where_another_run_is_at_work(
    there: World, name: str, tmp_path: Path
) -> None:
    options = prepared(there, name, tmp_path)
    there.one.locked_by = "bob@other"
    assert there.run(name, options=options) == 1
    assert [line for line in there.doors.did if "ca show" not in line] == []
    assert "another run is at work on gpu01 (bob@other)" in there.doors.text


def test_a_host_that_another_run_takes_meanwhile_is_left_alone(there: World) -> None:
    there.other.taken_meanwhile = True
    assert there.run("take-out", "gpu01", "gpu02") == 1
    assert there.doors.did == []
    assert "refused: gpu02: another run is at work" in there.doors.text
    assert there.doors.leased == set()


@pytest.mark.parametrize("name", ["take-out", "put-in", "reset-gpu"])
def test_the_lock_of_a_killed_run_of_this_machine_is_taken_over(there: World, name: str) -> None:
    there.one.lease = own_run().as_spec() | {"pid_start": 1}
    assert there.run(name, options=GOOD_DAYS[name][0]) == 0, there.doors.text
    assert there.doors.did == GOOD_DAYS[name][1]
    assert "a run of this machine was killed on gpu01" in there.doors.text


def test_the_lock_of_a_run_of_this_machine_that_lives_is_not(there: World) -> None:
    there.one.lease = own_run().as_spec()
    assert there.run("put-in") == 1
    assert there.doors.did == []


def test_somebody_who_says_no_changes_nothing(there: World) -> None:
    there.doors.agrees = False
    assert there.run("take-out", yes=False) == 1
    assert there.doors.did == []
    assert there.doors.questions == ["take hosts out of service, on gpu01?"]


def test_a_gpu_is_not_reset_while_a_process_has_it(there: World) -> None:
    there.one.holders = [{"pid": 77, "name": "python3"}]
    assert there.run("reset-gpu", gpus="3") == 3
    assert not any(line.startswith("reset") for line in there.doors.did)
    assert "FAILED: gpu01: the GPUs are still open" in there.doors.text
    assert "runbook put-in" in there.doors.text
    assert there.doors.leased == set()


def test_a_gpu_is_not_reset_while_requests_run(there: World) -> None:
    there.one.running = 2
    assert there.run("reset-gpu", gpus="3") == 3
    assert there.doors.did == ["drain gpu01"]
    assert "requests still run on gpu01" in there.doors.text
    assert there.run("reset-gpu", gpus="3", cut="yes") == 0


def test_a_gpu_that_is_gone_after_the_reset_is_told(there: World) -> None:
    there.one.lost_in_reset = 1
    assert there.run("reset-gpu", gpus="3") == 3
    assert "7 GPUs are left of 8" in there.doors.text
    assert "undrain gpu01" not in there.doors.did


@pytest.mark.parametrize("gpus", ["", "a", "8", "0,-1"])
def test_which_gpu_has_to_be_said(there: World, gpus: str) -> None:
    assert there.run("reset-gpu", gpus=gpus) == 1
    assert there.doors.did == []


def test_a_host_that_an_operator_drained_stays_drained(there: World) -> None:
    there.one.drained_by = "bob"
    assert there.run("reset-gpu", gpus="3") == 0
    assert "undrain gpu01" not in there.doors.did
    assert "gpu01 was drained before, and stays so" in there.doors.text


def test_the_last_host_that_serves_is_not_taken_out_unasked(there: World) -> None:
    there.other.active = "failed"
    assert there.run("take-out") == 1
    assert "none of gpu02 answers for Qwen/Qwen3-32B and takes requests" in there.doors.text
    assert there.run("take-out", alone="yes") == 0


def test_a_host_of_another_model_does_not_stand_in(there: World) -> None:
    there.repository.write("host_vars/gpu02.yml", "model: {id: BAAI/bge-m3}\n")
    assert there.run("take-out") == 0
    assert "DOWNTIME: no other host serves Qwen/Qwen3-32B" in there.doors.text
    assert there.run("put-in") == 0


def test_one_that_is_not_reached_serves_nobody(there: World) -> None:
    there.other.unreachable = True
    assert there.run("take-out") == 1
    assert "none of gpu02 answers for" in there.doors.text


def test_drivers_go_one_by_one_and_the_others_stand_in(there: World) -> None:
    prepared(there, "upgrade-driver", there.repository.root)
    assert there.run("upgrade-driver", "gpu01", "gpu02") == 0
    assert "DOWNTIME" not in there.doors.text


def test_a_driver_is_not_installed_where_the_others_have_died_meanwhile(there: World) -> None:
    prepared(there, "upgrade-driver", there.repository.root)
    fleet = there.doors.fleet

    def dies(words: Any) -> tuple[int, str]:
        if words[0] == "status":
            there.one.active = "failed"
        return fleet(words)

    there.doors.fleet = dies  # type: ignore[method-assign]
    assert there.run("upgrade-driver", "gpu01", "gpu02") == 3
    assert "FAILED: gpu02: none of gpu01 answers for" in there.doors.text
    assert "fleet deploy prod --limit gpu02 --yes" not in there.doors.did


def test_an_engine_that_does_not_come_back_stays_drained(there: World) -> None:
    there.one.active, there.one.drained_by, there.one.dies = "inactive", "ada", True
    assert there.run("put-in") == 3
    assert there.doors.did == ["start gpu01"]
    assert "the engine of gpu01 died at its start" in there.doors.text


def test_an_emergency_stops_what_answers_and_names_what_does_not(there: World) -> None:
    there.other.unreachable, there.one.locked_by = True, "bob"
    assert there.run("emergency-stop", "gpu01", "gpu02") == 3
    assert there.doors.did == ["stop gpu01 now"]
    assert "FAILED: gpu02 was not reached" in there.doors.text


def test_drivers_stop_at_the_first_host_that_fails(there: World) -> None:
    prepared(there, "upgrade-driver", there.repository.root)
    there.doors.codes["deploy"] = [1, 1]
    assert there.run("upgrade-driver", "gpu01", "gpu02") == 3
    assert there.doors.did == ["fleet deploy prod --limit gpu01 --yes"] * 2
    assert "FAILED: gpu01: fleet deploy ended with 1" in there.doors.text
    assert "not touched: gpu02" in there.doors.text


def test_a_driver_that_the_settings_do_not_ask_for_is_refused(there: World) -> None:
    assert there.run("upgrade-driver") == 1
    assert "the settings of gpu01 do not ask for a driver" in there.doors.text


def test_a_host_that_has_a_release_is_not_added(there: World) -> None:
    assert there.run("add-host") == 1
    assert "gpu01 has release r1 already" in there.doors.text


def test_the_log_of_a_replaced_machine_begins_anew(there: World) -> None:
    there.one.release = None
    heads = {"gpu01": {"events": 9, "head": "a" * 64, "when": "x"},
             "gpu02": {"events": 3, "head": "b" * 64, "when": "x"}}  # fmt: skip
    path = there.repository.write(
        "inventories/prod/audit.json", json.dumps({"schema": 1, "hosts": heads})
    )
    assert there.run("replace-host", dry=True) == 0
    assert set(json.loads(path.read_text())["hosts"]) == {"gpu01", "gpu02"}
    assert there.run("replace-host") == 0
    assert json.loads(path.read_text())["hosts"] == {"gpu02": heads["gpu02"]}
    assert "had 9 events, head aaaaaaaaaaaa" in there.doors.text


def test_a_bundle_is_masked_and_its_owners(there: World, tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    there.other.unreachable = True
    assert there.run("collect-diagnostics", "gpu01", "gpu02", out=str(out)) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as archive:
        texts = {
            entry.name: archive.extractfile(entry).read().decode()  # type: ignore[union-attr]
            for entry in archive.getmembers()
            if entry.isfile()
        }
    assert texts["bundle/hosts/gpu01/engine.log"] == "engine: password is [masked]\n"
    assert texts["bundle/hosts/gpu02/nginx.log"] == "not read: the host was not reached\n"
    assert "bundle/facts/gpu01/nvidia-smi" in texts


def test_hosts_have_to_be_said(there: World) -> None:
    fleet = load_fleet("prod", there.repository.root)
    assert hosts_for(registry.runbook("take-out"), fleet, []) == (
        "take-out wants hosts: name them, or a group such as prod"
    )
    assert hosts_for(registry.runbook("take-out"), fleet, ["gpu"]) == ["gpu01", "gpu02"]
    assert "takes one host at a time" in str(
        hosts_for(registry.runbook("reset-gpu"), fleet, ["gpu"])
    )
    assert hosts_for(registry.runbook("rotate-keys"), fleet, []) == ["gpu01", "gpu02"]
