"""What the tests of signatures share: keys, certificates, and a repository with a model's lock."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pyinfra_deploy.cli import main
from tests.fakes.lab_hub import make_directory

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MODEL = "Qwen/Qwen3-32B"
LOCK = "locks/models/Qwen--Qwen3-32B/master.json"
FILES = {
    "config.json": b'{"architectures": ["Qwen3ForCausalLM"]}',
    "model.safetensors": b"\x02\0\0\0\0\0\0\0{}",
    "sub/notes.txt": b"deeper",
    ".gitattributes": b"*.safetensors filter=lfs\n",
}
DAY = datetime.timedelta(days=1)


class SigningWorld:
    """A repository as working directory: a model's directory, its lock, a key."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        self.lock, self.signature = root / LOCK, root / f"{LOCK}.sig"
        self.model = make_directory(root / "copy", FILES)
        self.said = ""
        assert self.fleet("model", "lock", f"{MODEL}@master", "--from", "copy") == 0
        self.key = new_key(root / "private" / "models.key")
        self.public = public_of(self.key, root / "keys" / "models.pub")

    def fleet(self, *words: str) -> int:
        code = main(list(words))
        captured = self._capsys.readouterr()
        self.said = captured.out + captured.err
        return code

    def sign(self, *words: str, key: Path | None = None) -> int:
        return self.fleet("model", "sign", LOCK, "--key", str(key or self.key), *words)


def new_key(
    path: Path, passphrase: str | None = None, curve: ec.EllipticCurve | None = None
) -> Path:
    key = ec.generate_private_key(curve or ec.SECP256R1())
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        how = serialization.BestAvailableEncryption(passphrase.encode())
    return _write(
        path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how),
    )


def public_of(key: Path, path: Path, passphrase: str | None = None) -> Path:
    loaded = _load(key, passphrase)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return _write(path, loaded.public_key().public_bytes(serialization.Encoding.PEM, form))


def authority(directory: Path) -> tuple[Path, Path]:
    """(its key, its certificate)."""
    key = new_key(directory / "authority.key")
    return key, _certificate(directory / "authority.crt", "authority", key, key, "authority")


def certificate_of(key: Path, path: Path, by: tuple[Path, Path]) -> Path:
    return _certificate(path, "signer", key, by[0], "authority")


def _certificate(path: Path, name: str, key: Path, signer: Path, issuer: str) -> Path:
    is_authority = name == issuer
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(_load(key).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - (2 * DAY if is_authority else DAY))
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority, key_cert_sign=is_authority,
                content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
            ),
            critical=True,
        )
        .sign(_load(signer), hashes.SHA256())
    )  # fmt: skip
    return _write(path, made.public_bytes(serialization.Encoding.PEM))


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _load(path: Path, passphrase: str | None = None) -> ec.EllipticCurvePrivateKey:
    secret = passphrase.encode() if passphrase is not None else None
    key = serialization.load_pem_private_key(path.read_bytes(), secret)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    return path
