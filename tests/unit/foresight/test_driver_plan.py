"""`fleet plan` of hosts without a driver where gpu_driver is install, from what a host prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.unit.foresight.places import Place, finding, ids
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PACKAGE = "cuda-drivers-580"
AVAILABLE = {"installed": None, "candidate": "580.105.08-1"}
SMI = ("nvidia-smi-q-x.xml", "nvidia-smi-query-gpu.csv", "nvidia-smi-topo-m.txt",
       "nvidia-smi-version.txt")  # fmt: skip
MODULE = ("nvidia-module-loaded.txt", "nvidia-module-installed.txt")


def without_driver(facts: Path, package: Any, *, secure_boot: bool = False) -> None:
    for names, status, said in ((SMI, 127, "nvidia-smi is not installed"), (MODULE, 1, "no such")):
        for name in names:
            (facts / name).write_text("")
            (facts / f"{name}.exit").write_text(f"{status}\n")
            (facts / f"{name}.stderr").write_text(said)
    snapshot = worlds.untouched()
    snapshot["os"]["pythons"] = ["/usr/bin/python3.12"]
    driver = {"packages": {PACKAGE: package}, "secure_boot": secure_boot, "module_key": None}
    (facts / "snapshot.json").write_text(json.dumps({**snapshot, "driver": driver}))


def test_hosts_without_a_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path / "fleet", "gpu01", "gpu02", "gpu03")
    model = {"quantization_accepted_for": "tests"}
    place.write(gpu_driver="install", gpu_driver_packages=[PACKAGE], model=model)
    without_driver(place.facts / "gpu01", AVAILABLE)
    without_driver(place.facts / "gpu02", None)
    without_driver(place.facts / "gpu03", AVAILABLE, secure_boot=True)
    code, hosts = place.plan(capsys)
    assert code == 1
    first = hosts["gpu01"]
    assert ids(first, "refuse") == []
    assert ids(first, "warn") == ["model.not-locked", "driver.will-install"]
    assert first["changes"][-1].startswith(f"install {PACKAGE} (driver 580.105.08), hold them")
    assert "8 NVIDIA GPUs on the PCI bus" in finding(first, "driver.will-install")["evidence"]
    assert ids(hosts["gpu02"], "refuse") == ["driver.not-available"]
    assert ids(hosts["gpu03"], "refuse") == ["driver.secure-boot"]
    # Without the refused ones it is the unknown that the exit code tells of.
    code, text = place.text(capsys, "--limit", "gpu01")
    assert code == 2
    assert text.rstrip().endswith("not all could be found out: gpu01 (driver.will-install).")
