"""The Python environment in which models are made: numpy, gguf, tokenizers and one model file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.pip_config import config_files, effective_options, render_uv_toml

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).resolve().parents[2]
LOCK = REPOSITORY / "locks/tools/lab-models.txt"


def tool_python(hub: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of the environment, which is made when it is missing or of another lock."""
    digest = sha256(LOCK.read_bytes()).hexdigest()[:16]
    place = hub / "tools" / f"models-{digest}"
    python = place / "bin/python"
    complete = place / "complete"
    if complete.exists():
        return python
    say("installing what makes the models (about 120 MB to download)")
    started = time.monotonic()
    shutil.rmtree(place.parent, ignore_errors=True)
    place.parent.mkdir(parents=True)
    uv = find_uv()
    _run(
        [sys.executable, "-m", "venv", *(["--without-pip"] if uv else []), str(place)],
        "Debian and Ubuntu keep this in a package: apt-get install python3-venv",
    )
    if uv:
        _install_with_uv(uv, python, place / "uv.toml")
    else:
        _run([str(python), "-m", "pip", "install", "--quiet", *_REQUIREMENTS], _NETWORK_FIX)
    complete.touch()
    say(f"installed in {time.monotonic() - started:.0f} s")
    return python


_REQUIREMENTS = ("--require-hashes", "--no-deps", "-r", str(LOCK))
_NETWORK_FIX = "check that `pip download six` works on this machine, then run this again"


def find_uv() -> str | None:
    """uv beside the running interpreter, or on PATH; None when there is none."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def _install_with_uv(uv: str, python: Path, config: Path) -> None:
    # uv reads no pip.conf, and the machine's package sources may be named only there.
    options = effective_options(config_files(Path("/"), Path.home(), os.environ), os.environ)
    config.write_text(render_uv_toml(options))
    command = [uv, "pip", "install", "--quiet", "--config-file", str(config)]
    _run([*command, "--python", str(python), *_REQUIREMENTS], _NETWORK_FIX)


def _run(command: list[str], fix: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise LabError(f"`{' '.join(command[:4])} ...` failed", tail, fix)
