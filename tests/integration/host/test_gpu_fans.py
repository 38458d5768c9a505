"""GPU fans: followed by temperature, and given back however the program ends.

The program is the real one, and calls a compiled stand-in for libnvidia-ml by ctypes.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys.artefacts import units_of
from pyinfra_deploy.planning.host_care import fans_file, started_with
from pyinfra_deploy.settings.schema import FanPoint, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakes.nvml import FakeNvml

CURVE = tuple(
    FanPoint(temperature_c=degrees, percent=percent)
    for degrees, percent in ((40, 40), (60, 60), (80, 100))
)
SETTINGS = Settings(gpu_cooling="nvml", gpu_fan_curve=CURVE)
UNIT = units_of(SETTINGS)["llm-fans.service"].content


def configure(nvml: FakeNvml) -> str:
    document = json.loads(fans_file(SETTINGS))
    text = json.dumps(document | {"poll_seconds": 0.02})
    (nvml.root / "etc/llm/fans.json").write_text(text)
    (nvml.root / "etc/systemd/system/llm-fans.service").write_text(UNIT)
    return text


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def running(nvml: FakeNvml, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        nvml.command("fans", "run"),
        env=nvml.environment | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def as_systemd_does(nvml: FakeNvml, key: str) -> subprocess.CompletedProcess[str]:
    """Run what the unit says for `key`, with the program of this checkout."""
    (line,) = re.findall(rf"^{key}=\S+/bin/fleet-host (.*)$", UNIT, re.MULTILINE)
    return subprocess.run(
        nvml.command(*line.split()),
        env=nvml.environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def everything_automatic(nvml: FakeNvml) -> bool:
    return {nvml.fan(0, 0), nvml.fan(0, 1), nvml.fan(1, 0)} == {"auto"}


def test_fans_follow_the_curve_and_do_not_hunt(nvml: FakeNvml) -> None:
    configure(nvml)
    with running(nvml) as process:
        until(lambda: nvml.fan(1) == "40")
        nvml.temperature(1, 70)
        until(lambda: nvml.fan(1) == "80")
        assert (nvml.fan(0, 0), nvml.fan(0, 1)) == ("40", "40")
        nvml.temperature(1, 68)  # 76%: too little to be worth it
        before = len(nvml.calls())
        until(lambda: len(nvml.calls()) > before + 12)
        assert nvml.fan(1) == "80"
        nvml.temperature(1, 67)
        until(lambda: nvml.fan(1) == "74")
        nvml.temperature(1, 99)
        until(lambda: nvml.fan(1) == "100")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 0
    assert everything_automatic(nvml)
    assert "GPU 1: 70 C, fans to 80%" in said


def test_the_card_s_own_limits_hold(nvml: FakeNvml) -> None:
    configure(nvml)
    nvml.cards("2 45 100", "1 30 90")
    nvml.temperature(1, 95)
    with running(nvml):
        until(lambda: (nvml.fan(0), nvml.fan(1)) == ("45", "90"))


def test_what_another_program_has_set_is_set_again(nvml: FakeNvml) -> None:
    configure(nvml)
    with running(nvml):
        until(lambda: nvml.fan(1) == "40")
        (nvml.root / "fan-1-0").write_text("auto")
        until(lambda: nvml.fan(1) == "40")


def test_after_kill_9_systemd_s_next_step_gives_the_fans_back(nvml: FakeNvml) -> None:
    configure(nvml)
    with running(nvml) as process:
        until(lambda: nvml.fan(1) == "40")
        process.kill()
        process.wait()
    assert nvml.fan(0, 1) == "40"  # the danger: nobody follows the temperature now
    done = as_systemd_does(nvml, "ExecStopPost")
    assert (done.returncode, done.stdout) == (0, "")
    assert everything_automatic(nvml)


def test_at_boot_it_begins_with_automatic_control(nvml: FakeNvml) -> None:
    (nvml.root / "fan-0-1").write_text("30")
    assert as_systemd_does(nvml, "ExecStartPre").returncode == 0
    assert everything_automatic(nvml)


def test_a_hang_is_ended_by_the_watchdog(nvml: FakeNvml) -> None:
    configure(nvml)
    address = str(nvml.root / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address)
        channel.settimeout(10)
        with running(nvml, NOTIFY_SOCKET=address):
            assert channel.recv(100) == b"READY=1\nWATCHDOG=1"
            assert channel.recv(100) == b"READY=1\nWATCHDOG=1"
            (nvml.root / "hang").touch()
            channel.settimeout(0.5)
            with pytest.raises(TimeoutError):
                list(iter(lambda: channel.recv(100), b""))
    # What systemd does then: SIGKILL, of which the test above shows the rest.
    assert re.search(r"^WatchdogSec=\d+$", UNIT, re.MULTILINE)
    assert "\nWatchdogSignal=SIGKILL\n" in UNIT
    assert "\nType=notify\n" in UNIT


@pytest.mark.parametrize("cards", [("-1 0 0", "-1 0 0"), ("2 30 100", "0 0 0"), ()])
def test_passive_cards_are_refused_and_left_alone(nvml: FakeNvml, cards: tuple[str, ...]) -> None:
    configure(nvml)
    nvml.cards(*cards)
    with running(nvml) as process:
        said, _ = process.communicate(timeout=10)
    assert process.returncode == 2  # RestartPreventExitStatus= of the unit
    assert "RestartPreventExitStatus=2" in UNIT
    error = json.loads(said)["error"]
    assert ("has no fan" in error["what"]) is bool(cards)
    assert "gpu_cooling: report" in error["fix"]
    assert nvml.calls() == []


def test_a_lost_gpu_gives_every_fan_back(nvml: FakeNvml) -> None:
    configure(nvml)
    with running(nvml) as process:
        until(lambda: nvml.fan(1) == "40")
        (nvml.root / "temperature-1").unlink()
        said, _ = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "GPU is lost" in json.loads(said)["error"]["why"]
    assert everything_automatic(nvml)


def test_one_stuck_fan_does_not_keep_the_others(nvml: FakeNvml) -> None:
    for fan in ("fan-0-0", "fan-0-1", "fan-1-0"):
        (nvml.root / fan).write_text("50")
    (nvml.root / "stuck-1").touch()
    done = as_systemd_does(nvml, "ExecStopPost")
    assert done.returncode == 1
    assert "reboot" in json.loads(done.stdout)["error"]["fix"]
    assert (nvml.fan(0, 0), nvml.fan(0, 1), nvml.fan(1, 0)) == ("auto", "50", "auto")


def test_what_it_was_started_with_is_what_the_deploy_compares(nvml: FakeNvml) -> None:
    text = configure(nvml)
    stamp = nvml.root / "run/llm-fans/started"
    with running(nvml):
        until(stamp.exists)
        assert stamp.read_text() == started_with(UNIT, text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "is missing"),
        ('{"curve": []}', "has no curve"),
        ('{"curve": [[40, 50], [50, "x"]]}', "has no curve"),
        ('{"curve": [[40, 50], [50, 40]]}', "does not rise"),
        ('{"curve": [[40, 50], [50, 140]]}', "does not rise"),
    ],
)
def test_a_broken_configuration_sets_nothing(nvml: FakeNvml, content: str, said: str) -> None:
    (nvml.root / "etc/llm/fans.json").write_text(content)
    with running(nvml) as process:
        out, _ = process.communicate(timeout=10)
    assert process.returncode in (1, 2)
    error = json.loads(out)["error"]
    assert said in error["what"] + error["why"]
    assert nvml.calls() == []


def test_a_host_without_the_library(nvml: FakeNvml) -> None:
    configure(nvml)
    with running(nvml, FLEET_NVML_LIBRARY=str(nvml.root / "none.so")) as process:
        out, _ = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "cannot be loaded" in json.loads(out)["error"]["what"]
