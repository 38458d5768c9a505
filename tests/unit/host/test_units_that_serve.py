"""The units that serve: their exposure as systemd rates it, and what must hold in them."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
from fleet_host import start_time

TEMPLATES = Path(__file__).parents[3] / "templates" / "units"


def render(name: str, device: str = "cpu") -> str:
    environment = jinja2.Environment(  # noqa: S701 - unit files
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{name}.j2").render(
        llm_root="/srv/llm",
        device=device,
        open_files=1048576,
        drain_seconds=120,
        engine_user="llm",
        gateway_user="llm-gateway",
        engine_name="main",
        gateway_shape="full",
        gateway_stop_seconds=120,
        socket_group="llm-http",
    )


def values(text: str, key: str) -> list[str]:
    return [line.split("=", 1)[1] for line in text.splitlines() if line.startswith(f"{key}=")]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_engine_is_stopped_after_its_own_drain_and_by_its_main_process(device: str) -> None:
    text = render("llm-engine@.service", device)
    assert int(values(text, "TimeoutStopSec")[0]) > 120
    assert values(text, "KillMode") == ["mixed"]
    assert values(text, "Type") == ["exec"]
    assert values(text, "LimitNOFILE") == ["1048576"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_engine_has_no_network_and_no_arguments_but_its_file_and_socket(device: str) -> None:
    text = render("llm-engine@.service", device)
    assert values(text, "PrivateNetwork") == ["yes"]
    (command,) = values(text, "ExecStart")
    assert command.split()[1:] == [
        "serve",
        "--config",
        "/srv/llm/engines/%i/current/config.yaml",
        "--uds",
        "/run/llm-engine-%i/http.sock",
    ]


def test_only_nginx_s_group_reaches_the_sockets() -> None:
    engine, gateway = render("llm-engine@.service"), render("llm-gateway.service")
    assert (values(engine, "Group"), values(engine, "UMask")) == (["llm-http"], ["0007"])
    for text in (engine, gateway):
        assert values(text, "RuntimeDirectoryMode") == ["0750"]
        assert values(text, "Group") == ["llm-http"]


def test_a_gpu_engine_gets_nvidia_s_devices_and_no_others() -> None:
    text = render("llm-engine@.service", "cuda")
    assert values(text, "DevicePolicy") == ["closed"]
    assert values(text, "DeviceAllow") == ["char-nvidia* rw"]
    assert values(text, "PrivateDevices") == []
    assert values(render("llm-engine@.service"), "PrivateDevices") == ["yes"]


def test_code_that_is_made_while_running_is_allowed_where_it_is_needed_only() -> None:
    assert values(render("llm-engine@.service"), "MemoryDenyWriteExecute") == []
    for name in ("llm-golive@.service", "llm-gateway.service"):
        assert values(render(name), "MemoryDenyWriteExecute") == ["yes"]


# What the two units have each for itself; all the rest must be the same line for line.
OF_THE_UNIT = (
    "Type", "ExecStart", "ExecStartPre", "UMask", "RuntimeDirectory", "RuntimeDirectoryMode",
    "RuntimeDirectoryPreserve", "Restart", "RestartSec", "RestartPreventExitStatus",
    "RemainAfterExit", "SuccessExitStatus", "TimeoutStartSec", "TimeoutStopSec", "KillMode", "Nice",
)  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["proof", "arguments"])
def test_a_proof_runs_as_the_engine_does(kind: str, device: str) -> None:
    """Same user, devices, environment and limits: what is proven is what runs."""

    def service(name: str) -> list[str]:
        lines = render(name, device).partition("[Service]")[2].partition("[Install]")[0]
        return [
            line.replace("/candidate/", "/current/")
            for line in lines.splitlines()
            if "=" in line and line[:1] != "#" and line.split("=")[0] not in OF_THE_UNIT
        ]

    assert sorted(service(f"llm-{kind}@.service")) == sorted(service("llm-engine@.service"))
    (command,) = values(render(f"llm-{kind}@.service", device), "ExecStart")
    assert command == (
        f"/srv/llm/engines/%i/candidate/runtime/bin/python /srv/llm/bin/fleet-host {kind} run %i"
    )


def test_a_verdict_on_arguments_goes_with_the_restart_that_asks_for_the_next() -> None:
    """systemd removes the directory when the unit is stopped, which a restart begins with."""
    text = render("llm-arguments@.service")
    assert (values(text, "Type"), values(text, "RemainAfterExit")) == (["oneshot"], ["yes"])
    assert values(text, "RuntimeDirectory") == ["llm-arguments/%i"]
    assert values(text, "RuntimeDirectoryPreserve") == []


SILENCE = (
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY",
    "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "DO_NOT_TRACK",
)  # fmt: skip
CACHES = (
    "HOME", "XDG_CACHE_HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH",
    "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE",
)  # fmt: skip


def test_the_engine_reports_and_fetches_nothing_and_keeps_its_caches() -> None:
    text = render("llm-engine@.service")
    pairs = dict(
        word.split("=", 1) for line in values(text, "Environment") for word in line.split()
    )
    for name in SILENCE:
        assert pairs[name] == "1"
    assert pairs["RAY_USAGE_STATS_ENABLED"] == "0"
    for name in CACHES:
        assert pairs[name].startswith("%C/llm-engine/%i")
    # systemd keeps a CacheDirectory= over stops; a RuntimeDirectory= it would remove.
    assert values(text, "CacheDirectory") == ["llm-engine/%i"]


def test_systemd_does_not_start_what_was_stopped_by_hand() -> None:
    text = render("llm-engine@.service")
    assert values(text, "ConditionPathExists") == ["!/srv/llm/engines/%i/stopped.json"]


def test_a_killed_go_live_leaves_no_drain_flag() -> None:
    text = render("llm-golive@.service")
    assert values(text, "ExecStopPost") == ["/srv/llm/bin/fleet-host engine undrain %i"]
    assert values(text, "CapabilityBoundingSet") == [""]


def test_a_release_that_nobody_has_judged_is_not_started() -> None:
    """As root, since the engine's user may not change what is current; before it is noted."""
    program = "/srv/llm/bin/fleet-host engine"
    assert values(render("llm-engine@.service"), "ExecStartPre") == [
        f"+{program} settle %i",
        f"{program} started %i",
    ]
    # Going back takes the drop-in of the release along.
    assert "-/etc/systemd/system/llm-engine@%i.service.d" in values(
        render("llm-golive@.service"), "ReadWritePaths"
    )


def test_an_engine_that_keeps_dying_ends_failed_and_is_not_mistaken_for_one_that_loads() -> None:
    text = render("llm-engine@.service")
    assert values(text, "Restart") == ["on-failure"]
    interval, burst = (int(values(text, f"StartLimit{key}")[0]) for key in ("IntervalSec", "Burst"))
    # Each try takes RestartSec and its loading: the limit has to be within reach of ten minutes.
    assert burst * (int(values(text, "RestartSec")[0]) + 600) < interval
    # Type=exec: this is of the exec alone, whatever the loading takes.
    assert values(text, "TimeoutStartSec") == ["120"]


@pytest.mark.parametrize(("name", "writable"), [("watch", ["/srv/llm/state"]), ("log", [])])
def test_what_runs_beside_the_engine_has_no_power_but_its_task_s(
    name: str, writable: list[str]
) -> None:
    text = render(f"llm-{name}@.service")
    assert values(text, "ReadWritePaths") == writable
    assert values(text, "CapabilityBoundingSet") == [""]
    assert values(text, "PrivateNetwork") == ["yes"]
    assert values(text, "Restart") == ["always"]
    assert values(text, "RuntimeDirectory") == [f"llm-{name}-%i"]


@pytest.mark.parametrize(
    ("gigabytes", "seconds"), [(0, 1800), (30, 1800), (90, 1800), (235, 3250), (700, 7900)]
)
def test_how_long_a_start_may_take(gigabytes: int, seconds: int) -> None:
    assert start_time.seconds_for(gigabytes * 10**9) == seconds
