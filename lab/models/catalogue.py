"""Which models the lab has, and how they are made when they are missing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.hub.places import models_directory
from lab.hub.store import UnknownModelError, UnknownRevisionError, publish, revision
from lab.models.environment import REPOSITORY, tool_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Model:
    """`module` fills an empty directory when run in the tool environment."""

    model_id: str
    module: str
    description: str


CATALOGUE = (
    Model("lab/tiny-qwen3-moe", "lab.models.tiny_moe", "random Qwen3-MoE, 1 MB: answers nonsense"),
    Model("HuggingFaceTB/SmolLM2-135M-Instruct", "lab.models.smollm2", "real answers, 270 MB"),
)


def is_made(hub: Path, model: Model) -> bool:
    try:
        return bool(revision(models_directory(hub), model.model_id, "master").files)
    except (UnknownModelError, UnknownRevisionError):
        return False


def make_missing(
    hub: Path, say: Callable[[str], None], wanted: tuple[Model, ...] = CATALOGUE
) -> list[str]:
    """Make the models that the store lacks. Returns the ids of those made, in order.

    Two runs at once wait for each other. What a killed run left half made is removed.
    """
    if all(is_made(hub, model) for model in wanted):
        return []
    hub.mkdir(parents=True, exist_ok=True)
    made = []
    with _alone(hub, say):
        making = hub / "making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        for model in wanted:
            if is_made(hub, model):
                continue
            started = time.monotonic()
            _make(hub, model, making, say)
            say(f"{model.model_id} made in {time.monotonic() - started:.0f} s")
            made.append(model.model_id)
        making.rmdir()
    return made


def _make(hub: Path, model: Model, making: Path, say: Callable[[str], None]) -> None:
    python = tool_python(hub, say)
    say(f"making {model.model_id} ({model.description})")
    directory = Path(tempfile.mkdtemp(dir=making))
    done = subprocess.run(
        [python, "-m", model.module, directory],
        cwd=REPOSITORY,
        env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise LabError(
            f"{model.model_id} could not be made (exit status {done.returncode})",
            tail or "its program said nothing",
            f"free space at {hub}? Else remove {python.parent.parent} and run this again",
        )
    publish(models_directory(hub), directory, model.model_id)


@contextmanager
def _alone(hub: Path, say: Callable[[str], None]) -> Iterator[None]:
    with (hub / "making.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run that makes the models")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def print_line(text: str) -> None:
    """Progress as the lab prints it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
