"""Two versions of a stand-in vLLM that can be proven and upgraded, as wheels, and their locks.

python -m tests.standin.proving_wheels    writes the locks again after a change
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from lab.durable import write_atomic
from tests.standin import proving

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).resolve().parent
VERSIONS = ("0.28.0", "0.32.0")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LOCAL = "+proving"


def lock_of(version: str) -> str:
    """Relative to the repository, as runtime.lock wants it."""
    return f"tests/standin/proving-{version}.txt"


def wheels(version: str) -> dict[str, bytes]:
    """Name of the wheel -> its bytes, the same on every machine."""
    modules = proving.modules(version)
    torch = {path: text.encode() for path, text in modules.items() if path.startswith("torch/")}
    vllm = {path: text.encode() for path, text in modules.items() if path.startswith("vllm/")}
    vllm["vllm/engine.py"] = (HERE / "engine.py").read_bytes()
    vllm["vllm/serving.py"] = proving.SERVING.encode()
    return dict(
        (
            _wheel("torch", "2.13.0+proving", torch, ""),
            _wheel("vllm", version + _LOCAL, vllm, "[console_scripts]\nvllm = vllm.serving:main\n"),
        )
    )


def _wheel(
    name: str, version: str, modules: Mapping[str, bytes], entry_points: str
) -> tuple[str, bytes]:
    info = f"{name}-{version}.dist-info"
    files = {
        **modules,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            "Summary: A stand-in for tests\n"
        ).encode(),
        f"{info}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: tests.standin.proving_wheels\n"
            b"Root-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    if entry_points:
        files[f"{info}/entry_points.txt"] = entry_points.encode()
    lines = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}")
    files[f"{info}/RECORD"] = ("\n".join([*lines, f"{info}/RECORD,,"]) + "\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return f"{name}-{version}-py3-none-any.whl", buffer.getvalue()


def lock_text(version: str) -> str:
    lines = ["# A stand-in engine for tests. Made by `python -m tests.standin.proving_wheels`."]
    for name, content in sorted(wheels(version).items()):
        project, number = name.split("-")[:2]
        digest = hashlib.sha256(content).hexdigest()
        lines.append(f"{project}=={number} \\\n    --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def publish(directory: Path) -> list[Path]:
    """Put the wheels where the lab's hub serves wheels; their paths."""
    found = {name: content for version in VERSIONS for name, content in wheels(version).items()}
    for name, content in found.items():
        path = directory / name
        if not path.is_file() or path.read_bytes() != content:
            write_atomic(path, content)
    return [directory / name for name in found]


if __name__ == "__main__":
    for one in VERSIONS:
        (HERE.parent.parent / lock_of(one)).write_text(lock_text(one))
