"""The units that serve: their exposure as systemd rates it, and what must hold in them."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

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


def test_a_killed_go_live_leaves_no_drain_flag() -> None:
    text = render("llm-golive@.service")
    assert values(text, "ExecStopPost") == ["/srv/llm/bin/fleet-host engine undrain %i"]
    assert values(text, "CapabilityBoundingSet") == [""]
