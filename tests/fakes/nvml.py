"""A stand-in for NVIDIA's management library: nvml.c, compiled, with its state in a directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[2] / "files"


@dataclass(frozen=True)
class FakeNvml:
    root: Path
    library: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(FILES),
            "FAKE_NVML": str(self.root),
            "FLEET_NVML_LIBRARY": str(self.library),
            "FLEET_ETC_ROOT": str(self.root / "etc"),
            "FLEET_RUN_ROOT": str(self.root / "run"),
        }

    def cards(self, *lines: str) -> None:
        """Each "FANS LOWEST HIGHEST"; -1 fans is a passive card."""
        (self.root / "cards").write_text("".join(f"{line}\n" for line in lines))

    def temperature(self, index: int, degrees: int) -> None:
        path = self.root / f"temperature-{index}"
        new = path.with_suffix(".new")
        new.write_text(str(degrees))
        new.replace(path)

    def fan(self, index: int, fan: int = 0) -> str:
        path = self.root / f"fan-{index}-{fan}"
        return path.read_text() if path.exists() else "auto"

    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "fleet_host", *words]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the stand-in library (Debian package gcc)")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source], check=True
    )
    return library


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """Two GPUs, the first with two fans, at 30 degrees."""
    fake = FakeNvml(tmp_path, nvml_library)
    for name in ("etc/llm", "etc/systemd/system", "run/llm-fans"):
        (tmp_path / name).mkdir(parents=True)
    fake.cards("2 30 100", "1 30 100")
    fake.temperature(0, 30)
    fake.temperature(1, 30)
    return fake
