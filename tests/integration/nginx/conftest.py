"""One running gateway a test module; skipped, with the reason, where there is no nginx."""

from __future__ import annotations

import datetime
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pyinfra_deploy.keys.keyfile import new_key, to_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.nginx.full_mode import FullGateway
    from tests.integration.nginx.running import Gateway


@pytest.fixture(scope="session")
def nginx() -> str:
    path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip("nginx is not installed (apt-get install nginx)")
    return path


@pytest.fixture(scope="session")
def key() -> tuple[str, dict[str, Any]]:
    """A good key and the key file that knows it."""
    created = new_key("test", datetime.datetime.now(datetime.UTC), None)
    return created.plaintext, to_document(1, [created.record])


@pytest.fixture(scope="session")
def authorized(key: tuple[str, dict[str, Any]]) -> dict[str, str]:
    return {"Authorization": f"Bearer {key[0]}"}


@pytest.fixture(scope="module")
def prefix(nginx: str) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="gw"))
    write_certificate(directory)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def start_gateway(
    prefix: Path, key: tuple[str, dict[str, Any]]
) -> Iterator[Callable[..., Gateway]]:
    from tests.integration.nginx.full_mode import FullGateway
    from tests.integration.nginx.running import Gateway

    running: list[Gateway] = []

    def start(replacements: dict[str, str] | None = None, **settings: Any) -> Gateway:
        directory = prefix / str(len(running))
        directory.mkdir()
        for name in ("tls.crt", "tls.key"):
            shutil.copy(prefix / name, directory)
        kind = FullGateway if settings.get("mode") == "full" else Gateway
        running.append(kind(directory, key[1], **settings))
        running[-1].replacements = replacements or {}
        running[-1].start()
        return running[-1]

    yield start
    # Each waits for processes that end.
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda gateway: gateway.stop(), running))


@pytest.fixture(scope="module")
def gateway(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway without noticeable limits."""
    return start_gateway()


@pytest.fixture(scope="module")
def full_gateway(start_gateway: Callable[..., Gateway]) -> FullGateway:
    """The same in mode full."""
    from tests.integration.nginx.full_mode import FullGateway

    started = start_gateway(mode="full")
    assert isinstance(started, FullGateway)
    return started


def write_certificate(directory: Path, host: str = "llm.example.com") -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    (directory / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "tls.key").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
