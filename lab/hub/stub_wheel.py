"""The stub wheels that the lab's hub serves (pyinfra_deploy/runtime/stub_wheel.py tells why)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.durable import write_atomic
from pyinfra_deploy.runtime.stub_wheel import stub_wheel_bytes, stub_wheel_name

if TYPE_CHECKING:
    from pathlib import Path

# The vLLM versions for which locks/runtime has a CPU lock.
STUB_VERSIONS = ("0.28.0+cpu", "0.32.0+cpu")


def write_stub_wheels(directory: Path) -> list[Path]:
    """Put every stub wheel into `directory` (made when missing); what is right is left alone."""
    written = []
    for version in STUB_VERSIONS:
        path = directory / stub_wheel_name(version)
        content = stub_wheel_bytes(version)
        if not path.is_file() or path.read_bytes() != content:
            write_atomic(path, content)
        written.append(path)
    return written
