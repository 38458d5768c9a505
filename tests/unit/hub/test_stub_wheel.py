"""The stub wheel: the same bytes everywhere, and a wheel that importlib.metadata reads."""

from __future__ import annotations

import importlib.metadata
import io
import time
import zipfile
from typing import TYPE_CHECKING

import pytest

from lab.hub.stub_wheel import STUB_VERSIONS, write_stub_wheels
from pyinfra_deploy.runtime.stub_wheel import (
    stub_wheel_bytes,
    stub_wheel_name,
    stub_wheel_sha256,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_the_bytes_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = stub_wheel_bytes("0.32.0+cpu")
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(2_000_000_000))
    assert stub_wheel_bytes("0.32.0+cpu") == first
    # locks/runtime names this hash: whoever changes the bytes makes the locks again.
    assert stub_wheel_sha256("0.32.0+cpu") == (
        "ad2c1d9e7663cb111af0896ad4d0488389cb7b3b7465d0da47f1a2bbcbbaf637"
    )


@pytest.mark.parametrize("version", STUB_VERSIONS)
def test_it_names_the_distribution_vllm_and_holds_no_code(version: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(stub_wheel_bytes(version))) as archive:
        archive.extractall(tmp_path)
        names = archive.namelist()
    info = f"vllm-{version}.dist-info"
    assert names == [f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
    found = next(iter(importlib.metadata.distributions(name="vllm", path=[str(tmp_path)])))
    assert (found.metadata["Name"], found.version) == ("vllm", version)
    assert not found.requires


def test_written_once_and_mended(tmp_path: Path) -> None:
    paths = write_stub_wheels(tmp_path / "wheels")
    assert [path.name for path in paths] == [stub_wheel_name(v) for v in STUB_VERSIONS]
    kept = paths[1].stat().st_ino
    paths[0].write_bytes(b"cut short")
    write_stub_wheels(tmp_path / "wheels")
    assert paths[0].read_bytes() == stub_wheel_bytes(STUB_VERSIONS[0])
    assert paths[1].stat().st_ino == kept
    assert paths[0].stat().st_mode & 0o777 == 0o644
