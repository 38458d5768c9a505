"""The fact that runs the collector on a host, and its files on the machine of the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra.api import FactBase, FactProcessError

from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.inline import PROGRAMS, python_command
from pyinfra_deploy.facts.raw import RawOutput

if TYPE_CHECKING:
    from pathlib import Path

    from pyinfra.api import StringCommand

SOURCE = PROGRAMS / "collect.py"
NO_PYTHON = "NO-PYTHON"
# The collector ends after 15 seconds; the rest is for a slow host and a slow line.
TIMEOUT_SECONDS = 90


class CollectedOutputs(FactBase[dict[str, RawOutput]]):
    """What `files/fleet_host/collect.py` prints: name -> RawOutput."""

    @staticmethod
    def default() -> dict[str, RawOutput]:
        return {}

    def command(self, mask_uuids: bool = False) -> StringCommand:
        options = ("--mask-uuids",) if mask_uuids else ()
        return python_command(SOURCE, *options, otherwise=f"echo {NO_PYTHON}")

    def process(self, output: list[str]) -> dict[str, RawOutput]:
        return parse(output)


def parse(output: list[str]) -> dict[str, RawOutput]:
    """Raises FactProcessError, which costs this one host."""
    if any(line.strip() == NO_PYTHON for line in output[:3]):
        raise FactProcessError("the host has no python3, which reads it: apt-get install python3")
    # A login shell's greeting may come first: the answer is the last line.
    for line in reversed(output):
        if line.startswith("{"):
            try:
                found = raw.from_document(line)
            except UnreadableOutput as error:
                raise FactProcessError(str(error)) from error
            if found:
                return found
    raise FactProcessError(f"the host printed no answer, but: {' | '.join(output[-5:])[:400]}")


def write_directory(directory: Path, outputs: dict[str, RawOutput]) -> None:
    """Write DIR/HOST, for its owner alone: complete, or not there. Raises OSError."""
    unfinished = directory.with_name(f".{directory.name}")
    unfinished.mkdir(mode=0o700, parents=True)
    for name, text in raw.files_of(outputs).items():
        path = unfinished / name
        path.touch(mode=0o600)
        path.write_bytes(text.encode("utf-8", "replace"))
    unfinished.rename(directory)
