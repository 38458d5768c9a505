"""The CA: made once, its key protected, its leaves accepted by OpenSSL itself."""

from __future__ import annotations

import multiprocessing
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from pyinfra_deploy.keys import ca, ca_names
from pyinfra_deploy.keys.errors import KeysError
from tests.fakes.key_fleet import gateway_host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet]) -> Fleet:
    return make_fleet(plaintext_ca_key=True)


SHA256 = hashes.SHA256()


def request(key: Any = None, digest: Any = SHA256, name: str = "evil.example") -> bytes:
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
    )
    return builder.sign(key, digest).public_bytes(serialization.Encoding.PEM)


def leaf_of(pem: str) -> x509.Certificate:
    (certificate,) = x509.load_pem_x509_certificates(pem.encode())
    return certificate


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_made_once(fleet: Fleet) -> None:
    made = ca.ensure_ca(fleet)
    certificate_path, key_path = ca.ca_paths(fleet)
    assert made.created
    assert mode(certificate_path) == 0o644
    assert mode(key_path) == 0o600
    before = certificate_path.read_bytes(), key_path.read_bytes()
    again = ca.ensure_ca(fleet)
    assert not again.created
    assert again.certificate == made.certificate
    assert (certificate_path.read_bytes(), key_path.read_bytes()) == before
    assert sorted(each.name for each in fleet.directory.iterdir()) == ["ca.crt", "ca.key"]
    years = (made.certificate.not_valid_after_utc - datetime.now(UTC)).days / 365.25
    assert 9.9 < years < 10.1


def test_without_a_password_nothing_is_written(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    with pytest.raises(KeysError, match="ANSIBLE_VAULT_PASSWORD_FILE"):
        ca.ensure_ca(fleet)
    assert list(fleet.directory.iterdir()) == []


def test_plaintext_only_when_all_gateways_allow_it(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(
        gateway_host("a", "10.0.0.1", plaintext_ca_key=True), gateway_host("b", "10.0.0.2")
    )
    with pytest.raises(KeysError, match="no vault password"):
        ca.ensure_ca(fleet)


class TestVault:
    @pytest.fixture
    def password(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "vault-password"
        path.write_text("correct horse\n")
        monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(path))
        return path

    def test_the_key_is_encrypted_even_where_plaintext_is_allowed(
        self, fleet: Fleet, password: Path
    ) -> None:
        authority = ca.ensure_ca(fleet)
        content = authority.key_path.read_text()
        assert content.startswith("$ANSIBLE_VAULT;1.1;AES256\n")
        assert "PRIVATE" not in content
        assert leaf_of(ca.sign_leaf(authority, request(), ["llm.example.com"]))

    def test_a_wrong_password_is_told(self, fleet: Fleet, password: Path, tmp_path: Path) -> None:
        authority = ca.ensure_ca(fleet)
        other = tmp_path / "other"
        other.write_text("wrong\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(other))
            with pytest.raises(Exception, match="cannot be decrypted"):
                ca.sign_leaf(authority, request(), ["llm.example.com"])

    def test_an_absent_password_file_is_told(self, fleet: Fleet, password: Path) -> None:
        password.unlink()
        with pytest.raises(KeysError, match="does not exist"):
            ca.ensure_ca(fleet)
        assert list(fleet.directory.iterdir()) == []


def _ensure(fleet: Fleet) -> bytes:
    return ca.ensure_ca(fleet).certificate.public_bytes(serialization.Encoding.DER)


def test_two_runs_at_once_make_one_ca(fleet: Fleet) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        made = pool.map(_ensure, [fleet] * 8, chunksize=1)
    assert len(set(made)) == 1


def test_a_run_killed_between_the_two_files_is_mended(fleet: Fleet) -> None:
    first = ca.ensure_ca(fleet)
    key = first.key_path.read_bytes()
    first.certificate_path.unlink()
    second = ca.ensure_ca(fleet)
    assert second.created
    assert second.key_path.read_bytes() == key
    assert second.certificate.public_key() == first.certificate.public_key()
    assert second.subject != first.subject


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: a.key_path.unlink(), "its key ca.key is not"),
        (lambda a: a.certificate_path.write_text("x"), "not a readable certificate"),
    ],
)
def test_a_damaged_ca_is_not_replaced(
    fleet: Fleet, damage: Callable[[ca.CertificateAuthority], Any], said: str
) -> None:
    damage(ca.ensure_ca(fleet))
    with pytest.raises(KeysError, match=said):
        ca.ensure_ca(fleet)


def test_a_key_of_another_ca_is_noticed(fleet: Fleet, tmp_path: Path) -> None:
    authority = ca.ensure_ca(fleet)
    other = ec.generate_private_key(ec.SECP256R1())
    authority.key_path.write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(KeysError, match="is not the key of"):
        ca.sign_leaf(authority, request(), ["llm.example.com"])
    authority.key_path.write_text("SECRET BUT DAMAGED")
    with pytest.raises(KeysError, match="not a private key") as caught:
        ca.sign_leaf(authority, request(), ["llm.example.com"])
    assert "DAMAGED" not in str(caught.value)


def test_a_plaintext_key_is_refused_where_it_is_not_allowed(
    make_fleet: Callable[..., Fleet], fleet: Fleet
) -> None:
    ca.ensure_ca(fleet)
    authority = ca.ensure_ca(make_fleet())
    with pytest.raises(KeysError, match="ansible-vault encrypt"):
        ca.sign_leaf(authority, request(), ["llm.example.com"])


class TestLeaf:
    def test_what_is_in_it_comes_from_the_settings(self, fleet: Fleet) -> None:
        authority = ca.ensure_ca(fleet)
        key = ec.generate_private_key(ec.SECP256R1())
        names, addresses = ["llm.example.com", "gw1"], ["10.1.2.3", "fd00::1"]
        pem = ca.sign_leaf(authority, request(key), names, addresses)
        leaf = leaf_of(pem)
        assert leaf.public_key() == key.public_key()
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(each.value) for each in alternatives] == names + addresses
        assert "evil" not in leaf.subject.rfc4514_string()
        assert leaf.issuer == authority.certificate.subject
        days = (leaf.not_valid_after_utc - datetime.now(UTC)).total_seconds() / 86400
        assert 89.9 < days <= 90
        assert leaf.serial_number.bit_length() > 64
        assert leaf_of(ca.sign_leaf(authority, request(), names)).serial_number != (
            leaf.serial_number
        )

    @pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
    @pytest.mark.parametrize(
        ("check", "good"),
        [
            (["-verify_hostname", "llm.example.com"], True),
            (["-verify_ip", "10.1.2.3"], True),
            (["-verify_hostname", "evil.example"], False),
            (["-purpose", "sslclient"], False),
        ],
    )
    def test_openssl_accepts_it(
        self, fleet: Fleet, tmp_path: Path, check: list[str], good: bool
    ) -> None:
        authority = ca.ensure_ca(fleet)
        leaf = tmp_path / "leaf.pem"
        leaf.write_text(ca.sign_leaf(authority, request(), ["llm.example.com"], ["10.1.2.3"]))
        options = ["-x509_strict", "-purpose", "sslserver", *check]
        result = subprocess.run(
            ["openssl", "verify", "-CAfile", str(authority.certificate_path), *options, str(leaf)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (result.returncode == 0) is good, result.stdout + result.stderr

    @pytest.mark.parametrize(
        ("names", "addresses", "said"),
        [
            (["www.bank.example"], [], "www.bank.example"),
            (["notllm.example.com"], [], "private addresses"),
            (["llm.example.com"], ["8.8.8.8"], "8.8.8.8"),
            (["llm.example.com", "not a name"], [], "not a host name"),
            (["*.llm.example.com"], [], "not a host name"),
            (["10.1.2.3"], [], "not a host name"),
            (["llm.example.com"], ["10.1.2"], "not an IP address"),
            ([], [], "needs a name"),
        ],
    )
    def test_names_that_it_must_not_have(
        self, fleet: Fleet, names: list[str], addresses: list[str], said: str
    ) -> None:
        with pytest.raises(KeysError, match=said):
            ca.sign_leaf(ca.ensure_ca(fleet), request(), names, addresses)

    @pytest.mark.parametrize(
        ("csr", "said"),
        [
            (b"", "cannot be read"),
            (b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
             "cannot be read"),
            (b"a" * 20000, "larger than"),
            (request(rsa.generate_private_key(65537, 1024)), "RSA of at least"),  # noqa: S505
            (request(ed25519.Ed25519PrivateKey.generate(), None), "neither EC"),
            (request(ec.generate_private_key(ec.SECP521R1())), "neither EC"),
            (request(dsa.generate_private_key(1024)), "neither EC"),  # noqa: S505
        ],
    )  # fmt: skip
    def test_requests_that_are_refused(self, fleet: Fleet, csr: bytes, said: str) -> None:
        with pytest.raises(KeysError, match=said):
            ca.sign_leaf(ca.ensure_ca(fleet), csr, ["llm.example.com"])

    def test_a_request_without_the_key_is_refused(self, fleet: Fleet) -> None:
        der = bytearray(x509.load_pem_x509_csr(request()).public_bytes(serialization.Encoding.DER))
        der[-1] ^= 1
        forged = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
        with pytest.raises(KeysError, match="its signature is wrong"):
            ca.sign_leaf(ca.ensure_ca(fleet), forged, ["llm.example.com"])

    def test_rsa_requests_are_signed(self, fleet: Fleet) -> None:
        csr = request(rsa.generate_private_key(65537, 2048))
        leaf = leaf_of(ca.sign_leaf(ca.ensure_ca(fleet), csr, ["llm.example.com"]))
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
        assert usage.key_encipherment
        assert not usage.key_cert_sign

    def test_it_does_not_outlive_the_ca(self, fleet: Fleet) -> None:
        authority = ca.ensure_ca(fleet)
        pem = ca.sign_leaf(authority, request(), ["llm.example.com"], days=36500)
        assert leaf_of(pem).not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_constraints_name_the_fleet(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(
        gateway_host("GW1.example.com", "8.8.4.4", plaintext_ca_key=True),
        gateway_host("gw2", "203.0.113.9", plaintext_ca_key=True, server_name="x.example.org"),
        gateway_host("gw3", "192.168.1.1", plaintext_ca_key=True),
    )
    authority = ca.ensure_ca(fleet)
    assert ca_names.permitted_names(authority.certificate) == [
        "gw1.example.com",
        "gw2",
        "gw3",
        "llm.example.com",
        "prod.fleet.internal",
        "x.example.org",
        "203.0.113.9/32",
        "8.8.4.4/32",
        "private addresses",
    ]


@pytest.mark.parametrize(("days", "due"), [(31, False), (30, True), (29, True), (-1, True)])
def test_renewal_is_due_thirty_days_before_the_end(days: int, due: bool) -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    assert ca.needs_renewal(now + timedelta(days=days), now) is due
