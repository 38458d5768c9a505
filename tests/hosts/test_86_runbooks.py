"""Every runbook on the lab's hosts, with clients asking meanwhile where it is about them."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.hosts import care_host, driver_package, rollouts
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, wait_for
from tests.hosts.rollouts import BOTH, release_of
from tests.hosts.service import Poll, Streaming
from tests.hosts.standin_inventory import NAME, SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.rollouts import Said
    from tests.hosts.standin_inventory import Checkout

pytestmark = pytest.mark.usefixtures("steady")
ENGINE = "llm-engine@main.service"
FLAG = "/run/llm/drain/main"


def book(checkout: Checkout, name: str, *words: str) -> Said:
    return rollouts.fleet(checkout, "runbook", "run", NAME, name, *words, "--yes")


def active(host: str) -> str:
    return shell(host, f"systemctl is-active {ENGINE}; :").strip()


def whats(host: str) -> list[str]:
    return [event["what"] for event in rollouts.events_of(host)]


def serves(checkout: Checkout, host: str) -> None:
    assert shell(host, f"ls {FLAG} 2>/dev/null; :") == ""
    checkout.service(host).wait(60)


def test_a_dry_run_of_each_that_takes_one_host_changes_nothing(checkout: Checkout) -> None:
    before = whats(DEBIAN12)
    for name, words in (("take-out", ()), ("reset-gpu", ("--set", "gpus=0")), ("repair-model", ())):
        said = rollouts.fleet(checkout, "runbook", "run", NAME, name, DEBIAN12, *words, "--dry")
        said.ended(0, "would do: ", "would check: ")
    assert whats(DEBIAN12) == before
    assert active(DEBIAN12) == "active"


def test_take_out_cuts_no_stream_and_put_in_brings_it_back(checkout: Checkout) -> None:
    service = checkout.service(DEBIAN12)
    with Streaming(service, 200) as streaming, Poll(service) as poll:
        book(checkout, "take-out", DEBIAN12, "--why", "fan 3").ended(0, "take-out: done")
    assert [stream.error for stream in streaming.streams if not stream.finished] == []
    assert 503 in poll.statuses()
    assert json.loads(shell(DEBIAN12, f"cat {FLAG}"))["reason"] == "fan 3"
    assert checkout.service(DEBIAN13).answers()
    # The two serve a model each, so none stands in for the other, which is said.
    book(checkout, "take-out", DEBIAN13).ended(0, "DOWNTIME: no other host serves")
    for host in BOTH:
        book(checkout, "put-in", host).ended(0)
        serves(checkout, host)


def test_an_emergency_stop_is_at_once_and_put_in_ends_it(checkout: Checkout) -> None:
    book(checkout, "emergency-stop", NAME, "--why", "smoke").ended(0, "emergency-stop: done")
    for host in BOTH:
        assert active(host) in ("inactive", "failed")
        assert (
            checkout.service(host)
            .request("POST", "/v1/chat/completions", checkout.service(host).chat_body(4))
            .status
            == 503
        )
    book(checkout, "put-in", NAME).ended(0)
    for host in BOTH:
        serves(checkout, host)
    assert checkout.deploy().done().unchanged


def test_a_gpu_is_reset_only_when_no_process_has_it(checkout: Checkout) -> None:
    # The lab has no device files: one of that name, which a process has open.
    shell(
        DEBIAN12,
        "touch /dev/nvidia0; systemd-run --quiet --unit=has-a-gpu "
        "sh -c 'exec 3</dev/nvidia0; exec sleep 600'",
    )
    wish = ("reset-gpu", DEBIAN12, "--set", "gpus=0")
    try:
        book(checkout, *wish).ended(3, "the GPUs are still open", "(sleep)")
        assert "GPUs reset" not in whats(DEBIAN12)
        assert shell(DEBIAN12, f"ls {FLAG}").strip() == FLAG
    finally:
        shell(DEBIAN12, "systemctl stop has-a-gpu.service; rm -f /dev/nvidia0")
    book(checkout, "put-in", DEBIAN12).ended(0)
    before = rollouts.golive(DEBIAN12)
    book(checkout, *wish).ended(0, "reset-gpu: done")
    assert "GPUs reset" in whats(DEBIAN12)
    assert rollouts.golive(DEBIAN12) == before
    serves(checkout, DEBIAN12)


def test_a_damaged_model_is_repaired(checkout: Checkout) -> None:
    model = shell(DEBIAN12, "readlink -f /srv/llm/engines/main/current/model").strip()
    path = f"{model}/model-00002-of-00003.safetensors"
    good = shell(DEBIAN12, f"sha256sum {path}")
    shell(
        DEBIAN12,
        f"chmod u+w {path} && printf XXXXXXXX | dd of={path} bs=1 seek=5000 conv=notrunc "
        f"2>/dev/null && chmod u-w {path}",
    )
    book(checkout, "repair-model", DEBIAN12).ended(0, "repair-model: done")
    assert shell(DEBIAN12, f"sha256sum {path}") == good
    serves(checkout, DEBIAN12)


def test_keys_are_rotated_without_a_refused_request(checkout: Checkout, tmp_path: Path) -> None:
    """The tests' own key is another one, and stays."""
    first, second = tmp_path / "first", tmp_path / "second"
    rollouts.fleet(checkout, "keys", "create", NAME, "chat", "--out", str(first)).ended(0)
    wish = ("rotate-keys", "--set", "key=chat", "--set", "name=chat-2", "--set", f"out={second}")
    book(checkout, *wish).ended(0, "chat still works")
    for host in BOTH:
        for path in (first, second):
            service = replace(checkout.service(host), key=path.read_text().strip())
            assert service.answers()
    book(checkout, *wish, "--set", "revoke=now").ended(0)
    for host in BOTH:
        old = replace(checkout.service(host), key=first.read_text().strip())
        assert old.request("GET", "/v1/models").status == 401
        assert replace(old, key=second.read_text().strip()).answers()


def test_certificates_are_rotated_under_streams(checkout: Checkout) -> None:
    digest = "sha256sum /etc/llm/tls/server.key /etc/llm/tls/server.crt"
    before = {host: shell(host, digest).split()[::2] for host in BOTH}
    with Streaming(checkout.service(DEBIAN12), 200) as streaming:
        book(checkout, "rotate-certificates", NAME).ended(0, "rotate-certificates: done")
    assert [stream.error for stream in streaming.streams if not stream.finished] == []
    for host in BOTH:
        after = shell(host, digest).split()[::2]
        assert [one == two for one, two in zip(before[host], after, strict=True)] == [False, False]
        assert checkout.service(host).answers()
    assert checkout.deploy().done().unchanged


@pytest.mark.parametrize(("name", "more"), [("add-host", ()), ("replace-host", ("--models",))])
def test_a_host_with_nothing_of_ours_is_brought_in(
    checkout: Checkout, name: str, more: tuple[str, ...]
) -> None:
    release = release_of(DEBIAN13)
    book(checkout, name, DEBIAN13).ended(1, f"{DEBIAN13} has release {release} already")
    rollouts.fleet(checkout, "uninstall", NAME, DEBIAN13, *more, "--yes").ended(0)
    book(checkout, name, DEBIAN13).ended(0, f"{name}: done")
    assert release_of(DEBIAN13) == release
    serves(checkout, DEBIAN13)


def test_a_bundle_has_what_helps_and_no_key(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    book(checkout, "collect-diagnostics", "--set", f"out={out}").ended(0)
    key = (checkout.inventory / "first-key.txt").read_text().strip()
    with tarfile.open(out) as archive:
        files = [entry for entry in archive.getmembers() if entry.isfile()]
        texts = {entry.name: archive.extractfile(entry).read() for entry in files}  # type: ignore[union-attr]
    assert key.encode() not in b"".join(texts.values())
    for host in BOTH:
        assert b"went live" in texts[f"bundle/hosts/{host}/events.json"]
        assert texts[f"bundle/hosts/{host}/engine.log"].strip()
        assert any(name.startswith(f"bundle/facts/{host}/") for name in texts)


def test_a_driver_is_upgraded_by_the_runbook(checkout: Checkout) -> None:
    """test_84 has the steps one by one; here the runbook, with the package taken off first."""
    care_host.add_source(DEBIAN12, driver_package.build(DEBIAN12))
    package = driver_package.PACKAGE
    shell(
        DEBIAN12,
        f"DEBIAN_FRONTEND=noninteractive apt-get purge -y --allow-change-held-packages {package} "
        ">/dev/null 2>&1; :",
    )
    wanted = {
        "gpu_driver": "install",
        "gpu_driver_packages": [package],
        "gpu_host": {**SETTINGS["gpu_host"], "expected_gpus": 8},
    }
    checkout.write(host_variables={DEBIAN12: wanted})
    book(checkout, "upgrade-driver", DEBIAN12).ended(0, "upgrade-driver: done")
    version = shell(DEBIAN12, f"dpkg-query -W -f '${{Version}}' {package}")
    assert version == f"{driver_package.VERSION}-1"
    wait_for(lambda: active(DEBIAN12) == "active", 60)
    serves(checkout, DEBIAN12)
    assert checkout.service(DEBIAN13).answers()
    checkout.write()
    checkout.deploy().done()


def test_hooks_are_told_of_a_run(checkout: Checkout, tmp_path: Path) -> None:
    hook = checkout.root / "tell"
    hook.write_text("#!/bin/sh\ncat > $1\n")
    hook.chmod(0o755)
    checkout.base["hooks"] = {
        "before": [["./tell", str(tmp_path / "before")]],
        "after": [["./tell", str(tmp_path / "after")]],
        "on_failure": [["./tell", str(tmp_path / "failure")]],
    }
    try:
        checkout.write()
        book(checkout, "take-out", DEBIAN12).ended(0)
        book(checkout, "put-in", DEBIAN12).ended(0)
    finally:
        del checkout.base["hooks"]
        checkout.write()
    told = json.loads((tmp_path / "after").read_text())
    assert (told["runbook"], told["hosts"], told["code"]) == ("put-in", [DEBIAN12], 0)
    assert (tmp_path / "before").exists()
    assert not (tmp_path / "failure").exists()
