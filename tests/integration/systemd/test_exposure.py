"""How exposed each unit is, as this machine rates the very files that the deploy writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.deploys import artefacts
from pyinfra_deploy.settings.schema import Gateway, Runtime, Settings

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_EXPOSURE = 2.0
# It installs kernel modules, and is there only while it does.
UNCONFINED = "llm-driver@main.service"
RUNTIMES = {
    device: Settings(runtime=Runtime(vllm="0.33.0", lock="locks/none.txt", device=device))
    for device in ("cpu", "cuda")
}


# Of gateway.mode, and the service with a network of its own.
SHAPES: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "full": ({}, ()),
    "direct": ({"mode": "direct"}, ()),
    "full, with other hosts": ({}, ({"host": "gpu01"},)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device", RUNTIMES)
def test_the_exposure_is_at_most_two(device: str, shape: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian package systemd)")
    gateway, engines = SHAPES[shape]
    settings = RUNTIMES[device].model_copy(
        update={"gateway": Gateway(server_name="llm.example.com", **gateway)}
    )
    units = artefacts.units_of(settings, engines)
    paths = []
    for name, unit in units.items():
        if not name.endswith(".service"):
            continue  # a timer or a socket runs nothing itself
        path = tmp_path / name.replace("@.", "@main.")
        path.write_text(unit.content)
        paths.append(path)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Unknown command" in done.stderr or "unrecognized option" in done.stderr:
        pytest.skip("this systemd cannot rate a unit offline (252 and later can)")
    rated = re.findall(r"Overall exposure level for (\S+): ([\d.]+)", done.stdout)
    assert {name for name, _ in rated} == {path.name for path in paths}, done.stdout + done.stderr
    assert [name for name, level in rated if float(level) > LARGEST_EXPOSURE] == [UNCONFINED]
    assert "Unknown" not in done.stderr
    assert "Invalid" not in done.stderr
