"""The stand-in engine as a wheel named `vllm`, and the lock that names it by its hash.

    python -m tests.standin.wheel    writes the lock again after a change of engine.py

The bytes are the same on every machine: fixed times, stored without compression.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from lab.durable import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).resolve().parent
VERSION = "0.32.0+standin"
WHEEL_NAME = f"vllm-{VERSION}-py3-none-any.whl"
# Relative to the repository, as runtime.lock wants it.
LOCK = "tests/standin/standin.txt"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def wheel_bytes() -> bytes:
    info = f"vllm-{VERSION}.dist-info"
    files: dict[str, bytes] = {
        "vllm/__init__.py": f'__version__ = "{VERSION}"\n'.encode(),
        "vllm/engine.py": (HERE / "engine.py").read_bytes(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n"
            "Summary: A stand-in for tests, not vLLM\n"
        ).encode(),
        f"{info}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: tests.standin.wheel\n"
            b"Root-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        f"{info}/entry_points.txt": b"[console_scripts]\nvllm = vllm.engine:main\n",
    }
    files[f"{info}/RECORD"] = _record(files, info)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def _record(files: Mapping[str, bytes], info: str) -> bytes:
    lines = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}")
    return ("\n".join([*lines, f"{info}/RECORD,,"]) + "\n").encode()


def lock_text() -> str:
    content = wheel_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return (
        "# The tests' stand-in engine (tests/standin). Made by `python -m tests.standin.wheel`.\n"
        f"vllm=={VERSION} \\\n    --hash=sha256:{digest}\n"
        f"    # wheel {WHEEL_NAME} {len(content)} sha256:{digest}\n"
    )


def publish(wheels: Path) -> None:
    """Put the wheel where the lab's hub serves wheels."""
    path = wheels / WHEEL_NAME
    content = wheel_bytes()
    if not path.is_file() or path.read_bytes() != content:
        write_atomic(path, content)


if __name__ == "__main__":
    (HERE.parent.parent / LOCK).write_text(lock_text())
