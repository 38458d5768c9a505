"""`fleet model sign`, and what is refused for want of a signature (OpenSSF model-signing's)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import model_signing
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from pyinfra_deploy.operations import lock_manifest
from pyinfra_deploy.operations.lock_signature import Unsigned, signature_problem
from pyinfra_deploy.operations.model_source import locked_model
from pyinfra_deploy.planning.model_lock import lock_text, read_lock
from pyinfra_deploy.planning.model_supply import lock_findings, supply_findings
from pyinfra_deploy.settings.fleet import load_fleet
from tests.fakes.repository import GOOD, HOSTS
from tests.fakes.repository import LOCK as RUNTIME_LOCK
from tests.fakes.signing_world import (
    LOCK,
    MODEL,
    SigningWorld,
    authority,
    certificate_of,
    new_key,
    public_of,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> SigningWorld:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_SIGNING_PASSPHRASE", raising=False)
    for name in ("ANSIBLE_CONFIG", "ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST"):
        monkeypatch.delenv(name, raising=False)
    return SigningWorld(tmp_path, capsys)


def problem(world: SigningWorld, *keys: Path, lock: Path | None = None) -> str:
    path = lock or world.lock
    found = signature_problem(path, read_lock(path.read_text()), keys or [world.public])
    return found.why if isinstance(found, Unsigned) else ""


def rewrite(world: SigningWorld, **change: Any) -> None:
    """Another lock, right in itself, under the same signature."""
    world.lock.write_text(lock_text(replace(read_lock(world.lock.read_text()), **change)))


def test_what_is_signed_verifies_here_and_by_model_signing_itself(world: SigningWorld) -> None:
    assert world.sign() == 0, world.said
    assert problem(world) == ""
    verifying = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=world.public)
    verifying.verify(world.model, world.signature)
    (world.model / "config.json").write_text("{}")
    verifying = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=world.public)
    with pytest.raises(ValueError, match=r"config\.json"):
        verifying.verify(world.model, world.signature)


def test_what_model_signing_signed_of_the_directory_counts(world: SigningWorld) -> None:
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=world.key)
    config.sign(world.model, world.signature)
    assert problem(world) == ""
    rewrite(world, files=read_lock(world.lock.read_text()).files[2:])
    assert "config.json is missing" in problem(world)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"license": "mit"}, "license was None and is 'mit'"),
        ({"model": "evil/model"}, f"model was '{MODEL}' and is 'evil/model'"),
        ({"commit": "0" * 40}, "commit was None"),
    ],
)
def test_every_word_of_the_lock_is_signed(
    world: SigningWorld, change: dict[str, str], said: str
) -> None:
    world.sign()
    rewrite(world, **change)
    assert said in problem(world)


def test_another_file_in_the_lock_is_named(world: SigningWorld) -> None:
    world.sign()
    files = read_lock(world.lock.read_text()).files
    rewrite(world, files=(*files[:-1], replace(files[-1], sha256="0" * 64)))
    assert "sub/notes.txt is another" in problem(world)


def test_a_file_that_is_not_signed_by_itself_is_by_the_digest(world: SigningWorld) -> None:
    """model-signing leaves git's files out."""
    world.sign()
    files = read_lock(world.lock.read_text()).files
    assert files[0].path == ".gitattributes"
    rewrite(world, files=(replace(files[0], sha256="0" * 64), *files[1:]))
    assert "digest was" in problem(world)


def test_missing_foreign_spoiled_and_forged_signatures(world: SigningWorld) -> None:
    assert "it is not signed" in problem(world)
    other = new_key(world.root / "other.key")
    world.sign(key=other)
    assert "it is signed with key" in problem(world)
    assert problem(world, world.public, public_of(other, world.root / "other.pub")) == ""
    world.sign()
    good = json.loads(world.signature.read_text())
    for spoiled in ("", "{}", "[]", '{"verificationMaterial": []}'):
        world.signature.write_text(spoiled)
        assert "no signature that could be read" in problem(world), spoiled
    statement = json.loads(base64.b64decode(good["dsseEnvelope"]["payload"]))
    statement["predicate"]["serialization"]["fleet_lock"]["license"] = "mit"
    forged = base64.b64encode(json.dumps(statement).encode()).decode()
    good["dsseEnvelope"]["payload"] = forged
    world.signature.write_text(json.dumps(good))
    assert "is not right by models.pub (InvalidSignature)" in problem(world)


def test_what_cannot_be_a_public_key(world: SigningWorld) -> None:
    world.sign()
    assert "a private key" in problem(world, world.key)
    assert "neither a public key nor a certificate" in problem(world, world.lock)
    assert "cannot be read" in problem(world, world.root / "gone")


def test_a_key_with_a_passphrase(world: SigningWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key(world.root / "locked.key", passphrase="open sesame", curve=ec.SECP384R1())
    assert world.sign(key=key) == 1
    assert "FLEET_SIGNING_PASSPHRASE" in world.said
    monkeypatch.setenv("FLEET_SIGNING_PASSPHRASE", "wrong")
    assert world.sign(key=key) == 1
    assert "does not open with that passphrase" in world.said
    monkeypatch.setenv("FLEET_SIGNING_PASSPHRASE", "open sesame")
    assert world.sign(key=key) == 0
    assert "sesame" not in world.said + world.signature.read_text()
    assert problem(world, public_of(key, world.root / "p.pub", "open sesame")) == ""


def test_keys_that_are_refused(world: SigningWorld) -> None:
    world.key.chmod(0o644)
    assert world.sign() == 1
    assert "can be read by others" in world.said
    assert world.sign(key=new_key(world.root / "k1.key", curve=ec.SECP256K1())) == 1
    assert "elliptic curve: secp256r1" in world.said
    world.public.chmod(0o600)
    assert world.sign(key=world.public) == 1
    assert "no private key in PEM" in world.said
    assert not world.signature.exists()


def test_a_certificate_of_an_authority(world: SigningWorld) -> None:
    ours, other = authority(world.root / "ours"), authority(world.root / "other")
    certificate = certificate_of(world.key, world.root / "signer.crt", ours)
    assert world.sign("--certificate", str(certificate)) == 0, world.said
    assert problem(world, ours[1]) == ""
    assert "is not right by authority.crt" in problem(world, other[1])
    assert "signed with a certificate" in problem(world, world.public)
    foreign = certificate_of(new_key(world.root / "f.key"), world.root / "f.crt", ours)
    assert world.sign("--certificate", str(foreign)) == 1
    assert "does not match" in world.said


def settings(world: SigningWorld, extra: str) -> None:
    for path, text in {
        "ansible.cfg": "[defaults]\n",
        "inventories/prod/hosts.yml": HOSTS,
        "locks/one.txt": RUNTIME_LOCK,
        "group_vars/prod.yml": GOOD.replace(f"id: {MODEL}\n", f"id: {MODEL}\n{extra}"),
    }.items():
        (world.root / path).parent.mkdir(parents=True, exist_ok=True)
        (world.root / path).write_text(text)


SIGNED_BY = f"  lock: {LOCK}\n  signed_by: [keys/models.pub]\n"


def test_settings_check_the_plan_and_the_lock_check_ask_for_the_signature(
    world: SigningWorld,
) -> None:
    settings(world, SIGNED_BY)
    check = ("model", "lock", "prod", "--from", "copy", "--check")
    assert world.fleet("settings", "check", "prod") == 1
    assert "it is not signed" in world.said
    assert f"fleet model sign {LOCK} --key FILE" in world.said
    host = load_fleet("prod").hosts["gpu01"]
    assert host.settings.model is not None
    (finding,) = lock_findings(
        "gpu01", host.settings, locked_model(host.settings.model, world.root)
    )
    assert (finding.id, finding.severity) == ("model.lock-not-signed", "refuse")
    assert world.fleet(*check) == 1
    assert "is not signed as model.signed_by asks" in world.said
    world.sign()
    locked_model.cache_clear()
    assert world.fleet("settings", "check", "prod") == 0, world.said
    assert world.fleet(*check) == 0
    assert "signed, as model.signed_by asks" in world.said


def test_a_signature_that_nobody_checks_is_said(world: SigningWorld) -> None:
    settings(world, f"  lock: {LOCK}\n")
    host = load_fleet("prod").hosts["gpu01"]
    model = host.settings.model
    assert model is not None

    def found() -> dict[str, str]:
        locked_model.cache_clear()
        findings = supply_findings("gpu01", host.settings, locked_model(model, world.root))
        return {finding.id: finding.severity for finding in findings}

    assert "model.signature-not-checked" not in found()
    world.sign()
    assert found()["model.signature-not-checked"] == "warn"
    settings(world, SIGNED_BY)
    host = load_fleet("prod").hosts["gpu01"]
    model = host.settings.model
    assert model is not None
    assert not {"model.signature-not-checked", "model.lock-not-signed"} & set(found())


def test_an_updated_lock_says_that_it_has_to_be_signed_anew(world: SigningWorld) -> None:
    settings(world, SIGNED_BY)
    world.sign()
    (world.model / "sub/notes.txt").write_text("other")
    assert world.fleet("model", "lock", "prod", "--from", "copy") == 0
    assert "NOT signed as model.signed_by asks" in world.said
    assert f"fleet model sign {LOCK} --key FILE" in world.said
    assert world.fleet("model", "lock", f"{MODEL}@master", "--from", "copy") == 0
    assert "is the signature of what it was" in world.said


def test_a_signature_needs_a_lock_and_its_key(world: SigningWorld) -> None:
    settings(world, "  signed_by: [keys/models.pub, keys/gone.pub]\n")
    assert world.fleet("settings", "check", "prod") == 1
    assert "there is no model.lock that could carry one" in world.said
    assert "the public key keys/gone.pub is not there" in world.said


def test_without_the_library_it_says_what_to_install(
    world: SigningWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.sign()

    def missing(name: str) -> Any:
        raise lock_manifest.NoLibrary("No module named 'model_signing'")

    monkeypatch.setattr("pyinfra_deploy.operations.lock_signature.library", missing)
    found = signature_problem(world.lock, read_lock(world.lock.read_text()), [world.public])
    assert found is not None
    assert (found.fix, "not installed" in found.why) == (lock_manifest.INSTALL, True)
