"""The key and the certificate that a host shows to other hosts: one set, changed as a whole."""

from __future__ import annotations

import grp
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import durable, host_certificate, snapshot
from fleet_host.errors import HostError, SpecError

from pyinfra_deploy.keys import ca
from tests.fakes.key_fleet import fleet_at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

NAME = "gpu01.engine.prod.fleet.internal"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> ca.CertificateAuthority:
    return ca.ensure_ca(fleet_at(tmp_path_factory.mktemp("ca"), "prod"))


def issue(authority: ca.CertificateAuthority, reader: str | None = None) -> dict[str, Any]:
    csr = host_certificate.request({"name": NAME, "reader": reader})["csr"]
    certificate = ca.sign_leaf(authority, csr, [NAME])
    return host_certificate.install(
        {"certificate": certificate, "ca": authority.certificate_path.read_text()}
    )


def place(host: FakeHost) -> Path:
    return host.root / "etc/llm-gateway"


def test_a_set_is_issued(host: FakeHost, authority: ca.CertificateAuthority) -> None:
    answer = issue(authority)
    mtls = place(host) / "mtls"
    assert sorted(path.name for path in mtls.iterdir()) == ["ca.crt", "host.crt", "host.key"]
    assert (mtls / "host.key").stat().st_mode & 0o777 == 0o600
    assert mtls.stat().st_mode & 0o777 == 0o700
    assert answer["certificate"]["sans"] == [NAME]
    assert answer["certificate"] == snapshot.certificate_state(str(mtls / "host.crt"))
    verified = subprocess.run(
        ["openssl", "verify", "-CAfile", mtls / "ca.crt", mtls / "host.crt"], check=False
    )
    assert verified.returncode == 0


def test_a_reader_may_read_the_key_and_nobody_else(
    host: FakeHost, authority: ca.CertificateAuthority
) -> None:
    issue(authority, grp.getgrgid(os.getegid()).gr_name)
    key = place(host) / "mtls/host.key"
    assert key.stat().st_mode & 0o777 == 0o640
    assert key.stat().st_gid == os.getegid()
    assert (place(host) / "mtls").stat().st_mode & 0o777 == 0o750


def test_a_renewal_rotates_the_key_and_leaves_one_set(
    host: FakeHost, authority: ca.CertificateAuthority
) -> None:
    issue(authority)
    before = (place(host) / "mtls/host.key").read_bytes()
    issue(authority)
    assert (place(host) / "mtls/host.key").read_bytes() != before
    assert len(list((place(host) / "mtls.d").iterdir())) == 1


def test_the_key_never_leaves(host: FakeHost, authority: ca.CertificateAuthority) -> None:
    answers = [host_certificate.request({"name": NAME, "reader": None}), issue(authority)]
    assert "PRIVATE" not in json.dumps(answers)
    events = host.llm_root / "state/events.jsonl"
    assert not events.exists() or "PRIVATE" not in events.read_text()


def test_until_the_whole_set_is_there_the_former_one_is_in_force(
    host: FakeHost, authority: ca.CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue(authority)
    before = {path.name: path.read_bytes() for path in (place(host) / "mtls").iterdir()}

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    for step in ("publish_directory", "replace_symlink"):
        with monkeypatch.context() as patch:
            patch.setattr(durable, step, cut)
            with pytest.raises(KeyboardInterrupt):
                issue(authority)
        after = {path.name: path.read_bytes() for path in (place(host) / "mtls").iterdir()}
        assert after == before, step
    issue(authority)
    assert len(list((place(host) / "mtls.d").iterdir())) == 1


def test_a_certificate_for_another_key_is_refused(
    host: FakeHost, authority: ca.CertificateAuthority
) -> None:
    csr = host_certificate.request({"name": NAME, "reader": None})["csr"]
    certificate = ca.sign_leaf(authority, csr, [NAME])
    host_certificate.request({"name": NAME, "reader": None})
    spec = {"certificate": certificate, "ca": authority.certificate_path.read_text()}
    with pytest.raises(HostError, match="not for this host's new key"):
        host_certificate.install(spec)
    assert not (place(host) / "mtls").exists()


def test_without_a_request_nothing_is_installed(
    host: FakeHost, authority: ca.CertificateAuthority
) -> None:
    text = authority.certificate_path.read_text()
    with pytest.raises(HostError, match="there is no key"):
        host_certificate.install({"certificate": text, "ca": text})


@pytest.mark.parametrize("name", ["a b", "x,DNS:evil", "", "*.x", "x/CN=evil"])
def test_a_name_cannot_smuggle_anything_into_a_request(host: FakeHost, name: str) -> None:
    with pytest.raises(SpecError):
        host_certificate.request({"name": name, "reader": None})


def test_a_group_that_is_not_there(host: FakeHost) -> None:
    with pytest.raises(HostError, match="no group nobody-has-this"):
        host_certificate.request({"name": NAME, "reader": "nobody-has-this"})
