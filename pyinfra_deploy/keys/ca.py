"""The certificate authority of an inventory: made once, kept beside it, signs what hosts ask for.

A host makes its own key and sends a certificate request; the key never leaves it. What goes into
the certificate comes from the settings: of the request only the public key is used.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pyinfra_deploy.keys import ca_names, vaulted
from pyinfra_deploy.keys.durable import locked, write_file
from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.settings import vault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyinfra_deploy.settings.fleet import Fleet

CA_YEARS = 10
LEAF_DAYS = 90
RENEW_BEFORE = timedelta(days=30)
# Clocks differ: a certificate must not be "not yet valid" for one that is late.
CLOCK_SKEW = timedelta(hours=1)
MAX_CSR_BYTES = 16 * 1024
_MIN_RSA_BITS = 2048


@dataclass(frozen=True)
class CertificateAuthority:
    """A CA on the control machine. Its key is read, and decrypted, only to sign.

    created: whether this call made it. root: the repository, for the vault's configuration.
    """

    certificate: x509.Certificate
    certificate_path: Path
    key_path: Path
    root: Path
    plaintext_allowed: bool
    created: bool = False

    @property
    def subject(self) -> str:
        """The common name, different for each CA ever made: a leaf's issuer tells which it was."""
        return str(self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate in hex, as `openssl x509 -fingerprint -sha256` without `:`."""
        return self.certificate.fingerprint(hashes.SHA256()).hex()


def ca_paths(fleet: Fleet) -> tuple[Path, Path]:
    """(ca.crt, ca.key) of an inventory."""
    return fleet.directory / "ca.crt", fleet.directory / "ca.key"


def load_ca(fleet: Fleet) -> CertificateAuthority | None:
    """The CA of an inventory without looking at its key, or None. Raises KeysError."""
    certificate_path, key_path = ca_paths(fleet)
    try:
        content = certificate_path.read_bytes()
        certificate = x509.load_pem_x509_certificate(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise KeysError(
            f"cannot use {certificate_path}",
            f"it is not a readable certificate ({error}).",
            "Restore it from git; hosts and clients trust this very file.",
        ) from error
    return CertificateAuthority(
        certificate, certificate_path, key_path, fleet.root, _plaintext_allowed(fleet)
    )


def ensure_ca(fleet: Fleet) -> CertificateAuthority:
    """The CA of an inventory, made when there is none: EC P-256, ten years, constrained names.

    Two runs at once make one CA. ca.key is written before ca.crt, and each at once and durably: a
    run that is killed in between leaves a key, from which the next one makes the certificate.
    Raises KeysError: no vault password where one is needed, or a certificate whose key is gone.
    """
    certificate_path, key_path = ca_paths(fleet)
    found = load_ca(fleet)
    if found is None:
        with locked(fleet.directory):
            found = load_ca(fleet)
            if found is None:
                key = _key_for_new_ca(fleet, key_path)
                certificate = _self_signed(fleet, key)
                pem = certificate.public_bytes(serialization.Encoding.PEM)
                write_file(certificate_path, pem, mode=0o644)
                return CertificateAuthority(
                    certificate,
                    certificate_path,
                    key_path,
                    fleet.root,
                    _plaintext_allowed(fleet),
                    created=True,
                )
    if not key_path.exists():
        raise _key_is_gone(certificate_path, key_path)
    return found


def check_signing(fleet: Fleet) -> None:
    """Raises KeysError for what would keep a certificate from being signed later in the run: no
    password for a new CA's key, or a key that is gone or cannot be decrypted. Changes nothing."""
    certificate_path, key_path = ca_paths(fleet)
    if key_path.exists():
        _read_key(key_path, fleet.root, plaintext_allowed=_plaintext_allowed(fleet))
    elif load_ca(fleet) is not None:
        raise _key_is_gone(certificate_path, key_path)
    elif not (vaulted.password_is_configured(fleet.root) or _plaintext_allowed(fleet)):
        raise _no_password(fleet, key_path)


def sign_leaf(
    ca: CertificateAuthority,
    csr_pem: bytes | str,
    names: Sequence[str],
    addresses: Sequence[str] = (),
    days: int = LEAF_DAYS,
    *,
    for_client: bool = False,
    subject: str | None = None,
) -> str:
    """A server's certificate, or a client's, for the public key in a request; the PEM chain.

    The chain is one certificate, because the root signs directly and clients have the root.
    names: DNS names, the first also becomes the common name unless `subject` is another one.
    addresses: IP addresses.
    Raises KeysError: a bad request, a key too weak, names outside of the CA's constraints.
    """
    public_key = _checked_public_key(csr_pem)
    alternatives = ca_names.subject_alternatives(names, addresses)
    ca_names.check_permitted(ca.certificate, ca.certificate_path, alternatives)
    now = datetime.now(UTC).replace(microsecond=0)
    end = min(now + timedelta(days=days), ca.certificate.not_valid_after_utc)
    if end <= now:
        raise KeysError(
            f"the CA in {ca.certificate_path} has expired",
            f"it ended on {ca.certificate.not_valid_after_utc:%Y-%m-%d}.",
            f"Move {ca.certificate_path.name} and {ca.key_path.name} away, run `fleet ca init`, "
            "deploy, and give every client the new ca.crt.",
        )
    key = _load_key(ca)
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if for_client else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        x509.CertificateBuilder()
        .subject_name(ca_names.leaf_subject([subject] if subject else names))
        .issuer_name(ca.certificate.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - CLOCK_SKEW, ca.certificate.not_valid_before_utc))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(_leaf_usage(public_key), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    certificate = builder.sign(key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def needs_renewal(not_after: datetime, now: datetime) -> bool:
    """Whether a certificate that ends then has to be renewed now: 30 days before its end."""
    return now >= not_after - RENEW_BEFORE


def _plaintext_allowed(fleet: Fleet) -> bool:
    gateways = [
        host.settings.gateway
        for host in fleet.hosts.values()
        if "gateway" in host.groups and host.settings.gateway is not None
    ]
    return bool(gateways) and all(gateway.plaintext_ca_key for gateway in gateways)


def _key_for_new_ca(fleet: Fleet, path: Path) -> ec.EllipticCurvePrivateKey:
    """A key for a CA without a certificate: the one an interrupted run left, or a new one."""
    if path.exists():
        return _read_key(path, fleet.root, plaintext_allowed=_plaintext_allowed(fleet))
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    if vaulted.password_is_configured(fleet.root):
        write_file(path, vaulted.encrypt(pem, fleet.root), mode=0o600)
    elif _plaintext_allowed(fleet):
        write_file(path, pem, mode=0o600)
    else:
        raise _no_password(fleet, path)
    return key


def _no_password(fleet: Fleet, path: Path) -> KeysError:
    return KeysError(
        f"cannot make a CA for the inventory {fleet.name}",
        f"its key ({path}) is kept under Ansible Vault, and no vault password is set.",
        "export ANSIBLE_VAULT_PASSWORD_FILE=/path/to/password-file (or an executable that "
        "prints the password), or set vault_password_file in ansible.cfg. For a lab alone: "
        "gateway.plaintext_ca_key: true.",
    )


def _key_is_gone(certificate_path: Path, key_path: Path) -> KeysError:
    return KeysError(
        f"{certificate_path} is there, its key {key_path.name} is not",
        "without the key nothing can be signed, and a new CA is one that no client trusts.",
        f"Restore {key_path} from git or a backup. If it is lost: remove {certificate_path}, "
        "run `fleet ca init`, deploy, and give every client the new ca.crt.",
    )


def _load_key(ca: CertificateAuthority) -> ec.EllipticCurvePrivateKey:
    key = _read_key(ca.key_path, ca.root, plaintext_allowed=ca.plaintext_allowed)
    if key.public_key() != ca.certificate.public_key():
        raise KeysError(
            f"{ca.key_path} is not the key of {ca.certificate_path}",
            "the two files belong to different CAs.",
            "Restore both from the same commit.",
        )
    return key


def _read_key(path: Path, root: Path, *, plaintext_allowed: bool) -> ec.EllipticCurvePrivateKey:
    try:
        content = path.read_text()
        if content.startswith(vault.HEADER):
            content = vault.decrypt(content, root, str(path))
        elif not plaintext_allowed:
            raise KeysError(
                f"{path} is not encrypted",
                "the key of a CA can make a certificate for any host of the fleet, and "
                "gateway.plaintext_ca_key is not set.",
                f"ansible-vault encrypt {path}",
            )
        key = serialization.load_pem_private_key(content.encode(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        # The text of ValueError may quote the content.
        reason = error.strerror if isinstance(error, OSError) else "it is not a private key in PEM"
        raise KeysError(
            f"cannot use {path}", f"{reason}.", "Restore it from git or a backup."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeysError(
            f"cannot use {path}",
            "it is not an elliptic-curve key, as this program makes them.",
            "Restore it from git or a backup.",
        )
    return key


def _self_signed(fleet: Fleet, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    now = datetime.now(UTC).replace(microsecond=0)
    # The tag keeps two CAs of one inventory apart, the one that was lost and its successor.
    tag = hashlib.sha256(secrets.token_bytes(16)).hexdigest()[:8]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{fleet.name[:40]} LLM CA {tag}")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=365 * CA_YEARS + CA_YEARS // 4))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(ca_names.constraints(fleet), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _checked_public_key(csr_pem: bytes | str) -> ec.EllipticCurvePublicKey | rsa.RSAPublicKey:
    content = csr_pem.encode() if isinstance(csr_pem, str) else csr_pem
    why = None
    try:
        if len(content) > MAX_CSR_BYTES:
            raise ValueError(f"it is larger than {MAX_CSR_BYTES} bytes")
        request = x509.load_pem_x509_csr(content)
        key = request.public_key()
        if not request.is_signature_valid:
            why = "its signature is wrong: who made it does not have the key"
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise _bad_request(f"it cannot be read ({error})") from error
    if why is not None:
        raise _bad_request(why)
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(
        key.curve, (ec.SECP256R1, ec.SECP384R1)
    ):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _MIN_RSA_BITS:
        return key
    raise _bad_request("its key is neither EC P-256 or P-384 nor RSA of at least 2048 bits")


def _bad_request(why: str) -> KeysError:
    return KeysError(
        "refused to sign a certificate request",
        f"{why}.",
        "Remove the key and the request on the host (/etc/llm/tls) and deploy again.",
    )


def _leaf_usage(key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        # Only RSA key exchange would use it; it is asked for by some old clients with RSA keys.
        key_encipherment=isinstance(key, rsa.RSAPublicKey),
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
