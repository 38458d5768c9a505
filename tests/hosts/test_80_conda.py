"""Runtimes of conda's on real hosts: an existing conda on Debian 12, Miniforge on Debian 13.

conda is the stand-in, whose switches turn on the traps of the real one; everything else is
as an operator has it: the units, their users, the settings, vLLM's wheel by uv from its lock.
FLEET_KILLS says how often the environment's job is killed in the middle (default 2).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from lab import hosts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, upper_of, wait_for
from tests.hosts.mended import ROOT, assert_nothing_is_half_visible, restore
from tests.hosts.standin_inventory import python_of
from tests.standin import conda_channel

if TYPE_CHECKING:
    from tests.hosts.pyinfra_run import Ran
    from tests.hosts.standin_inventory import Checkout

BOTH = (DEBIAN12, DEBIAN13)
KILLS = int(os.environ.get("FLEET_KILLS", "2"))
PREFIX = "/opt/conda"
INSTALLER = "/srv/files/Miniforge3-Linux-x86_64.sh"
HOME = "/var/cache/llm-environment/home"
MAIN = conda_channel.host_channel("main")
CONSENT = {
    "accepted_by": "Ada Lovelace",
    "accepted_on": datetime.date(2026, 11, 30),
    "channels": [MAIN],
}

pytestmark = pytest.mark.usefixtures("steady", "condas")


@pytest.fixture(scope="module")
def condas(steady: Checkout) -> None:
    """Channels on both hosts, a conda on one, an installer on the other."""
    place = conda_channel.HOST_CHANNELS
    # The archive has the modes of the temporary directory it was made in.
    unpack = f"mkdir -p {place} && base64 -d | tar -C {place} -xf - && chmod -R a+rX {place}"
    for host in BOTH:
        shell(host, unpack, input_text=conda_channel.host_channels_archive())
    install = f"install -D -m 0755 /dev/stdin {PREFIX}/bin/conda"
    shell(DEBIAN12, install, input_text=conda_channel.PROGRAM.read_text())
    shell(DEBIAN12, f"mkdir -p {PREFIX}/conda-meta && : >{PREFIX}/conda-meta/history")
    text = conda_channel.installer_text()
    shell(DEBIAN13, f"install -D -m 0644 /dev/stdin {INSTALLER}", input_text=text)


def switch(**switched: Any) -> None:
    """What the conda of Debian 12 does, from now on."""
    text = json.dumps(switched)
    shell(DEBIAN12, f"cat >{PREFIX}/standin.json; rm -f {HOME}/standin.hangs", input_text=text)


def of_conda(checkout: Checkout, host: str, channel: str = "forge", **more: Any) -> dict[str, Any]:
    """Host variables with a runtime of conda's."""
    python = python_of(host)
    sha256 = hashlib.sha256(conda_channel.installer_text().encode()).hexdigest()
    source: dict[str, Any] = {"prefix": PREFIX}
    if host == DEBIAN13:
        source = {"miniforge": {"path": INSTALLER, "sha256": sha256}}
    conda = {
        **source,
        "lock": conda_channel.HOST_LOCKS[channel, python],
        "channels": [conda_channel.host_channel(channel)],
        **more,
    }
    return {"runtime": {**checkout.base["runtime"], "kind": "conda", "conda": conda}}


def write(checkout: Checkout, channel: str = "forge", **more: Any) -> None:
    """Both hosts with conda; `channel` and `more` are of Debian 12's."""
    checkout.write(
        host_variables={
            DEBIAN12: of_conda(checkout, DEBIAN12, channel, **more),
            DEBIAN13: of_conda(checkout, DEBIAN13),
        }
    )


def record_of(host: str) -> dict[str, Any]:
    """Of the runtime that the live release runs from."""
    path = "/srv/llm/engines/main/current/runtime"
    shell(host, f"test -f {path}/conda-meta/history")
    found: dict[str, Any] = json.loads(shell(host, f"cat {path}/.fleet-complete.json"))
    return found


def refused(ran: Ran, checkout: Checkout, *words: str) -> None:
    """Debian 12 failed with these words, nothing is half visible, and it still serves."""
    assert ran.code == 1
    assert ran.failed == {DEBIAN12}
    ran.said(*words)
    assert_nothing_is_half_visible(DEBIAN12)
    assert checkout.service(DEBIAN12).answers()


def test_conda_on_both(checkout: Checkout) -> None:
    switch()
    write(checkout)
    checkout.deploy().done().said("install Miniforge")
    for host in BOTH:
        assert checkout.service(host).answers()
        record = record_of(host)
        assert record["python"].startswith(python_of(host))
        assert record["conda"]["terms"] == {}
        assert_nothing_is_half_visible(host)
    assert record_of(DEBIAN12)["conda"]["root"] == PREFIX
    assert record_of(DEBIAN13)["conda"]["root"].startswith("/srv/llm/tools/miniforge-")


def test_second_run_changes_nothing(checkout: Checkout) -> None:
    """Also without the installer, which has done its work."""
    shell(DEBIAN13, f"rm {INSTALLER}")
    ran = checkout.deploy().done()
    assert ran.unchanged, ran.log
    text = conda_channel.installer_text()
    shell(DEBIAN13, f"install -D -m 0644 /dev/stdin {INSTALLER}", input_text=text)


def test_defaults_without_consent_are_refused_by_the_plan(checkout: Checkout) -> None:
    write(checkout, "main", channels=[MAIN, "defaults"])
    ran = checkout.deploy()
    refused(ran, checkout, "runtime.conda-terms", "pkgs/main", "pkgs/r", "accepted_by")


TRAPS: list[tuple[dict[str, Any], Any, str]] = [
    # Without consent conda itself refuses, whatever would have it accept in silence.
    ({}, None, "are not accepted"),
    ({"auto_accept": True}, None, "are not accepted"),
    # With consent: what exits 0 and accepted nothing, or says so and did not, or cannot.
    ({"serves": {MAIN: "file:///nowhere"}}, CONSENT, "accepted nothing"),
    ({"forgets": True}, CONSENT, "still not accepted"),
    ({"no_plugin": True}, CONSENT, "does not know `conda tos`"),
    ({}, {**CONSENT, "accepted_on": datetime.date(2026, 7, 14)}, "newer than the consent"),
]


@pytest.mark.parametrize(("switched", "terms", "words"), TRAPS)
def test_traps(checkout: Checkout, switched: dict[str, Any], terms: Any, words: str) -> None:
    switch(**switched)
    write(checkout, "main", terms=terms)
    refused(checkout.deploy(), checkout, words)
    assert shell(DEBIAN12, f"find {HOME}/.conda -name '*.json' 2>/dev/null || true") == ""


def test_ci_in_the_unit_s_environment_accepts_nothing(checkout: Checkout) -> None:
    """An operator's drop-in for all units of the host, say: conda takes CI=true for a yes."""
    drop_in = "/run/systemd/system/llm-environment@.service.d/ci.conf"
    text = "[Service]\nEnvironment=CI=true\n"
    shell(DEBIAN12, f"install -D -m 0644 /dev/stdin {drop_in}", input_text=text)
    shell(DEBIAN12, "systemctl daemon-reload")
    switch()
    write(checkout, "main")
    try:
        refused(checkout.deploy("--limit", DEBIAN12), checkout, "are not accepted")
    finally:
        shell(DEBIAN12, f"rm -r {drop_in.rpartition('/')[0]}; systemctl daemon-reload")
    assert shell(DEBIAN12, f"find {HOME}/.conda -name '*.json' 2>/dev/null || true") == ""


def test_consent_to_one_of_two_channels_is_none_to_the_other(checkout: Checkout) -> None:
    """As with main and r, which Linux' `defaults` are."""
    directory = conda_channel.HOST_CHANNELS
    shell(DEBIAN12, f"mkdir {directory}/r && cp {directory}/main/terms.json {directory}/r/")
    other = conda_channel.host_channel("r")
    switch()
    write(checkout, "main", channels=[MAIN, other], terms=CONSENT)
    refused(checkout.deploy("--limit", DEBIAN12), checkout, f"the terms of {other} are not")
    found = shell(DEBIAN12, f"cat $(find {HOME}/.conda/tos -name '*.json')")
    assert json.loads(found)["base_url"] == MAIN
    shell(DEBIAN12, f"rm -r {HOME}/.conda {directory}/r")


def test_with_consent_the_terms_are_accepted_for_the_builder(checkout: Checkout) -> None:
    switch()
    write(checkout, "main", terms=CONSENT)
    ran = checkout.deploy().done()
    ran.said(f"accept the terms of {MAIN}", "as Ada Lovelace did on 2026-11-30")
    found = shell(DEBIAN12, f"find {HOME}/.conda/tos -name '*.json' -user llm-build").split()
    assert len(found) == 1
    assert record_of(DEBIAN12)["conda"]["consent"]["accepted_by"] == "Ada Lovelace"
    assert checkout.deploy().done().unchanged


@pytest.mark.parametrize("number", range(KILLS))
def test_kill_in_the_middle(checkout: Checkout, number: int) -> None:
    """kill -9 of the job with conda in it: the run says so, the next one completes."""
    wipe_runtime()
    switch(hangs_at=("link", "download", "done")[number % 3])
    running = checkout.start("--limit", DEBIAN12)
    wait_for((upper_of(DEBIAN12) / HOME[1:] / "standin.hangs").exists, 180)
    shell(DEBIAN12, "systemctl kill --signal=KILL 'llm-environment@*.service'")
    ran = running.finish()
    assert ran.failed == {DEBIAN12}
    assert_nothing_is_half_visible(DEBIAN12)
    switch()
    restore(checkout, DEBIAN12)


def test_power_loss_in_the_middle(checkout: Checkout) -> None:
    wipe_runtime()
    switch(hangs_at="link")
    running = checkout.start("--limit", DEBIAN12)
    wait_for((upper_of(DEBIAN12) / HOME[1:] / "standin.hangs").exists, 180)
    hosts.kill(DEBIAN12)
    hosts.boot(DEBIAN12)
    assert running.finish().failed == {DEBIAN12}
    assert_nothing_is_half_visible(DEBIAN12)
    switch()
    restore(checkout, DEBIAN12)
    assert not list((upper_of(DEBIAN12) / ROOT / "runtimes").glob(".conda-pkgs-*"))


def wipe_runtime() -> None:
    """Debian 12 as before its runtime was built."""
    shell(DEBIAN12, f"systemctl stop llm-engine@main; rm -rf /{ROOT}/runtimes/*")
