"""The stand-in engine of the hosts' tests: its lock names the wheel that is published."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.operations.packing import ROOT
from tests.standin import engine, wheel

if TYPE_CHECKING:
    from pathlib import Path


def test_the_lock_is_of_this_wheel() -> None:
    """Else: python -m tests.standin.wheel"""
    assert (ROOT / wheel.LOCK).read_text() == wheel.lock_text()
    assert wheel.wheel_bytes() == wheel.wheel_bytes()


def test_the_wheel_is_whole() -> None:
    with zipfile.ZipFile(io.BytesIO(wheel.wheel_bytes())) as archive:
        assert archive.testzip() is None
        record = archive.read(f"vllm-{wheel.VERSION}.dist-info/RECORD").decode()
        assert {line.split(",")[0] for line in record.splitlines()} == set(archive.namelist())


def test_it_reads_what_the_deploy_writes(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        'additional-config: \'{"fail": "exit-1", "why": "it\'\'s a\n  test"}\'\n'
        "enforce-eager: true\nmodel: /srv/llm/models/a--b/master\nseed: 7\n"
    )
    assert engine.read_config(path) == {
        "additional-config": '{"fail": "exit-1", "why": "it\'s a test"}',
        "enforce-eager": True,
        "model": "/srv/llm/models/a--b/master",
        "seed": "7",
    }


def test_it_knows_no_argument_by_accident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: /nowhere\nno-such-flag: 7\n")
    monkeypatch.setattr("sys.argv", ["vllm", "serve", "--config", str(path), "--uds", "x"])
    with pytest.raises(SystemExit) as ended:
        engine.main()
    assert ended.value.code == 2
    assert "unrecognized arguments: --no-such-flag 7" in capsys.readouterr().err
