"""What the control machine ships: the host program as a zipapp, the gateway's code as files."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = "import sys\n\nfrom fleet_host.__main__ import main\n\nsys.exit(main())\n"


@cache
def host_program() -> bytes:
    """The host program as one executable zip: the same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        package = ROOT / "files" / "fleet_host"
        for path in sorted(package.rglob("*.py")):
            _add(archive, f"fleet_host/{path.relative_to(package).as_posix()}", path.read_bytes())
    return b"#!/usr/bin/python3\n" + buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


@cache
def host_program_digest() -> str:
    """Hex SHA-256 of the zipapp."""
    return hashlib.sha256(host_program()).hexdigest()


@cache
def gateway_sources() -> dict[str, str]:
    """The gateway service's code, by the path it gets inside its environment."""
    package = ROOT / "gateway" / "llm_gateway"
    return {
        f"app/llm_gateway/{path.relative_to(package).as_posix()}": path.read_text()
        for path in sorted(package.rglob("*.py"))
    }


@cache
def lock_text(relative: str, root: Path = ROOT) -> str:
    """A lock file's text. root: the inventory's, where settings have checked that theirs exist."""
    return (root / relative).read_text()
