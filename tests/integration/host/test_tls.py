"""A host's TLS key and its certificate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from fleet_host import snapshot, tls
from fleet_host.errors import HostError, SpecError

from tests.integration.host import https_service
from tests.integration.host.https_service import NAME, sign

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

_own_group, authority = https_service._own_group, https_service.authority


def test_a_key_is_made_once_and_never_leaves(host: FakeHost, authority: Path) -> None:
    first = tls.request({"names": [NAME], "addresses": ["10.0.0.1"]})
    key = host.root / "etc/llm/tls/server.key"
    before = key.read_bytes()
    assert first["key_created"] is True
    assert key.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in json.dumps(first)
    assert tls.request({"names": [NAME], "addresses": []})["key_created"] is False
    assert key.read_bytes() == before


def test_a_certificate_for_the_key_is_installed_once(host: FakeHost, authority: Path) -> None:
    csr = tls.request({"names": [NAME], "addresses": ["10.0.0.1"]})["csr"]
    chain = sign(authority, csr)
    result = tls.install({"certificate_chain": chain})
    assert result["changed"] is True
    assert result["certificate"]["sans"] == [NAME, "10.0.0.1"]
    assert result["certificate"]["issuer"] == "Test CA"
    assert tls.install({"certificate_chain": chain})["changed"] is False
    path = str(host.root / "etc/llm/tls/server.crt")
    assert snapshot.certificate_state(path) == result["certificate"]


def test_a_certificate_for_another_key_is_refused(host: FakeHost, authority: Path) -> None:
    csr = tls.request({"names": [NAME], "addresses": []})["csr"]
    chain = sign(authority, csr)
    (host.root / "etc/llm/tls/server.key").unlink()
    tls.request({"names": [NAME], "addresses": []})
    with pytest.raises(HostError, match="not for this host's key"):
        tls.install({"certificate_chain": chain})
    with pytest.raises(HostError, match="reading the certificate failed"):
        tls.install({"certificate_chain": "nonsense"})
    assert not (host.root / "etc/llm/tls/server.crt").exists()


@pytest.mark.parametrize("name", ["a b", "x/CN=evil", "x,DNS:evil", "", "-x"])
def test_a_name_cannot_smuggle_anything_into_a_request(host: FakeHost, name: str) -> None:
    with pytest.raises(SpecError):
        tls.request({"names": [name], "addresses": []})
