"""The stand-ins that can be proven: their locks name what is published, and they run."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.operations.packing import ROOT
from tests.standin import proving_wheels

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", proving_wheels.VERSIONS)
def test_each_lock_is_of_its_wheels(version: str) -> None:
    """Else: python -m tests.standin.proving_wheels"""
    assert (ROOT / proving_wheels.lock_of(version)).read_text() == proving_wheels.lock_text(version)


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


def test_it_serves_counts_its_tokens_and_has_a_worker(tmp_path: Path) -> None:
    for content in proving_wheels.wheels("0.32.0").values():
        zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path / "site")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "config.yaml").write_text(f"model: {tmp_path}\nserved-model-name: m\n")
    path = tmp_path / "http.sock"
    command = [sys.executable, "-c", "from vllm.serving import main; main()", "serve"]
    process = subprocess.Popen(
        [*command, "--config", str(tmp_path / "config.yaml"), "--uds", str(path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        worker = int(process.stdout.readline().split()[-1])
        deadline = time.monotonic() + 30
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        connection = Connection(path)
        body = json.dumps({"model": "m", "prompt": "1", "max_tokens": 3})
        connection.request("POST", "/v1/completions", body)
        assert json.loads(connection.getresponse().read())["choices"][0]["text"].strip()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 3.0' in text
        os.kill(worker, 0)
    finally:
        process.terminate()
        process.wait(timeout=30)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
