"""What the control machine brings along: rendered units, digests, keys, the CA's name."""

from __future__ import annotations

import io
import json
import re
import zipfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pyinfra_deploy.deploys import artefacts
from pyinfra_deploy.operations import packing
from pyinfra_deploy.settings import load_fleet
from pyinfra_deploy.settings.schema import Settings
from tests.unit.planning import worlds

if TYPE_CHECKING:
    from pathlib import Path

UNITS = {path.name.removesuffix(".j2") for path in artefacts.UNIT_TEMPLATES.glob("*.j2")}


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    artefacts._keys_serial.cache_clear()
    artefacts._ca_subject.cache_clear()


def units(**settings: Any) -> dict[str, str]:
    found = artefacts.units_of(worlds.settings_with(settings))
    return {name: unit.content for name, unit in found.items()}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_unit_renders_whole(device: str) -> None:
    found = artefacts.units_of(worlds.settings_with({"runtime": {"device": device}}))
    assert set(found) == UNITS
    for name, unit in found.items():
        assert unit.path == f"/etc/systemd/system/{name}"
        assert (unit.mode, unit.owner, unit.group) == ("0644", "root", "root")
        assert not re.search(r"\{\{|\}\}|\{%|%\}|=None$|Undefined", unit.content, re.MULTILINE)
        kind = {"timer": "[Timer]", "socket": "[Socket]"}.get(name.rpartition(".")[2], "[Service]")
        for section in ("[Unit]", kind):
            assert unit.content.count(section) == 1
        for line in unit.content.splitlines():
            assert re.fullmatch(r"|\[\w+\]|[#;].*|[A-Z]\w*=.*|[ \t]+\S.*", line), line
        assert unit.content.endswith("\n")


def test_the_device_changes_the_engines_unit_and_its_proof_s_alone() -> None:
    cuda, cpu = units(runtime={"device": "cuda"}), units(runtime={"device": "cpu"})
    changed = {name for name in UNITS if cuda[name] != cpu[name]}
    assert changed == {"llm-arguments@.service", "llm-engine@.service", "llm-proof@.service"}
    for name in changed:
        assert "DeviceAllow=char-nvidia" in cuda[name]
        assert "char-nvidia" not in cpu[name]


def test_settings_are_where_they_belong() -> None:
    engine = units(
        llm_root="/data/llm", gpu_host={"open_files": 4096}, engine={"drain_seconds": 300}
    )["llm-engine@.service"]
    assert "LimitNOFILE=4096" in engine
    assert "/data/llm/engines/%i/current/config.yaml" in engine
    assert "/srv/llm" not in engine
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)", engine, re.MULTILINE)
    assert int(stop) > 300


def test_a_host_that_is_no_engine_needs_no_runtime() -> None:
    assert set(artefacts.units_of(Settings())) == UNITS


def test_what_a_unit_says_does_not_depend_on_the_rest_of_the_settings() -> None:
    assert units() == units(
        gateway={"server_name": "other.example.com"},
        engine={"args": {"seed": 1}},
        model={"id": "a/b"},
    )


def test_the_program_is_the_same_bytes_for_the_same_sources() -> None:
    first, digest = packing.host_program(), packing.host_program_digest()
    packing.host_program.cache_clear()
    packing.host_program_digest.cache_clear()
    assert packing.host_program() == first
    assert packing.host_program_digest() == digest
    assert first.startswith(b"#!/usr/bin/python3\n")
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        names = set(archive.namelist())
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    sources = (packing.ROOT / "files/fleet_host").rglob("*.py")
    assert names == {"__main__.py", *(f"fleet_host/{path.name}" for path in sources)}


def test_the_gateways_sources_are_all_of_its_package() -> None:
    found = packing.gateway_sources()
    package = packing.ROOT / "gateway/llm_gateway"
    assert set(found) == {f"app/llm_gateway/{path.name}" for path in package.glob("*.py")}
    assert found["app/llm_gateway/app.py"] == (package / "app.py").read_text()


def test_all_of_it_for_the_production_inventory(tmp_path: Path) -> None:
    settings = load_fleet("prod", packing.ROOT).hosts["gpu01"].settings
    fleet = {"directory": str(tmp_path), "root": str(packing.ROOT)}
    found = artefacts.artefacts_for(fleet, settings)
    assert found.program_digest == packing.host_program_digest()
    assert set(found.units) == UNITS
    assert settings.runtime is not None
    assert f"vllm=={settings.runtime.vllm}" in found.runtime_lock
    assert "uv==" in found.uv_lock
    assert "modelscope-hub==" in found.modelscope_lock
    assert "uvicorn==" in found.gateway_lock
    assert (found.keys_serial, found.ca_subject) == (0, None)
    assert datetime.now(UTC) - found.now < timedelta(minutes=1)


def test_keys_and_ca_are_the_inventorys(tmp_path: Path) -> None:
    document = {"schema": 1, "serial": 41, "keys": []}
    (tmp_path / "keys.json").write_text(json.dumps(document))
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Fleet prod CA")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "ca.crt").write_bytes(pem)
    fleet = {"directory": str(tmp_path), "root": str(tmp_path)}
    found = artefacts.artefacts_for(fleet, Settings())
    assert (found.keys_serial, found.ca_subject) == (41, "Fleet prod CA")
    assert found.runtime_lock == ""


def test_a_models_lock_is_read_from_the_repository(tmp_path: Path) -> None:
    settings = Settings.model_validate({"model": {"id": "Qwen/Qwen3-32B", "lock": "one.json"}})
    fleet = {"directory": str(tmp_path), "root": str(tmp_path)}
    assert artefacts.artefacts_for(fleet, settings).model.problem.startswith("one.json: No such")


def test_the_runtimes_lock_is_the_inventorys_own(tmp_path: Path) -> None:
    lock = "locks/own.txt"
    (tmp_path / "locks").mkdir()
    (tmp_path / lock).write_text("vllm==0.32.0\n")
    settings = worlds.settings_with({"runtime": {"lock": lock}})
    fleet = {"directory": str(tmp_path), "root": str(tmp_path)}
    assert artefacts.artefacts_for(fleet, settings).runtime_lock == "vllm==0.32.0\n"
