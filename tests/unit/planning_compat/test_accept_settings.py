"""The settings about hardware and accepted findings: what is read, and what is refused in words."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.settings import SettingsError, load_fleet

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = """\
all:
  children:
    prod: {hosts: {gpu01: }}
    gpu: {hosts: {gpu01: }}
    gateway: {hosts: {gpu01: }}
"""
PROD = """\
runtime: {vllm: "0.33.0", lock: locks/one.txt}
model: {id: Qwen/Qwen3-32B, variant: bf16}
gateway: {server_name: llm.example.com}
gpu_host: {expected_gpus: 8, expected_gpu_model: NVIDIA L20, expected_pcie_width: 16}
gpu_driver: hold
gpu_cooling: report
accept_findings:
  - id: gpu.pcie-width
    hosts: [gpu01, "gpu1?"]
    reason: slot 3 is repaired in January
    until: 2027-01-31
    by: Ada Lovelace
"""
LOCK = "vllm==0.33.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"


def load(root: Path, text: str) -> object:
    for name, content in {
        "ansible.cfg": "[defaults]\n",
        "locks/one.txt": LOCK,
        "inventories/prod.py": "",
        "inventories/prod/hosts.yml": HOSTS,
        "group_vars/prod.yml": text,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return load_fleet("prod", root)


def test_all_of_them_are_read(tmp_path: Path) -> None:
    read = load(tmp_path, PROD).hosts["gpu01"].settings  # type: ignore[attr-defined]
    (one,) = read.accept_findings
    assert one.until == datetime.date(2027, 1, 31)
    assert one.hosts == ("gpu01", "gpu1?")
    assert (read.gpu_host.expected_gpus, read.gpu_host.expected_pcie_width) == (8, 16)
    assert (read.gpu_driver, read.gpu_cooling, read.model.variant) == ("hold", "report", "bf16")
    assert read.to_json()["accept_findings"][0]["until"] == "2027-01-31"


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("until: 2027-01-31", "until: someday", "accept_findings.0.until", "YYYY-MM-DD"),
        ("until: 2027-01-31", 'until: "2027-01-31"', "accept_findings.0.until", "without quotes"),
        ("    until: 2027-01-31\n", "", "accept_findings.0", "until"),
        ("    reason: slot 3 is repaired in January\n", "", "accept_findings.0", "reason"),
        ("    by: Ada Lovelace", "    by: ''", "accept_findings.0.by", "not empty"),
        ("id: gpu.pcie-width", "id: pcie width", "accept_findings.0.id", "gpu.pcie-width"),
        ("    by: Ada", "    bye: Ada", "accept_findings.0", "by"),
        ('[gpu01, "gpu1?"]', "gpu01", "accept_findings.0.hosts", "write a list"),
        ('"gpu1?"', '"gpu 1"', "accept_findings.0.hosts.1", "inventory"),
        ("gpu_driver: hold", "gpu_driver: keep", "gpu_driver", "check, hold or install"),
        ("gpu_cooling: report", "gpu_cooling: full", "gpu_cooling", "report, nvml or bmc"),
        ("expected_gpus: 8", "expected_gpus: 0", "gpu_host.expected_gpus", "1 to 64"),
        ("expected_pcie_width: 16", "expected_pcie_width: 12", "expected_pcie_width", "8 or 16"),
        ("variant: bf16", "variant: int5", "model.variant", "bf16"),
    ],
)
def test_wrong_ones_are_refused_with_their_place(
    tmp_path: Path, old: str, new: str, key: str, says: str
) -> None:
    assert old in PROD
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, PROD.replace(old, new, 1))
    text = str(caught.value)
    assert key in text
    assert says in text
    assert "group_vars/prod.yml:" in text


def test_more_gpus_than_expected_names_both_keys(tmp_path: Path) -> None:
    args = "engine: {args: {tensor-parallel-size: 8, pipeline-parallel-size: 2}}\n"
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, PROD + args)
    text = str(caught.value)
    assert "gpu_host.expected_gpus is 8" in text
    assert "engine.args.tensor-parallel-size (8) x engine.args.pipeline-parallel-size (2)" in text
    load(tmp_path, PROD + args.replace("size: 8", "size: 4"))
