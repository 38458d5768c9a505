"""Secrets: shown nowhere, looked up when used, and clear words when they cannot be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.cli import main
from pyinfra_deploy.settings import Secret, SettingsError, load_fleet
from pyinfra_deploy.settings.secret import environment_name, plain_secret
from pyinfra_deploy.settings.vault import password_sources

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

ENVIRONMENT = "\"{{ lookup('env', 'HUB_TOKEN') }}\""


def _with_token(repository: Repository, token: str) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace("B\n", f"B\n  token: {token}\n", 1))


def _token(repository: Repository) -> Secret:
    model = load_fleet("prod", repository.root).hosts["gpu01"].settings.model
    assert model is not None
    assert model.token is not None
    return model.token


def _encrypt(text: str) -> str:
    from ansible.parsing.vault import VaultLib, VaultSecret

    vault = VaultLib([("default", VaultSecret(b"right"))])
    encrypted: str = vault.encrypt(text).decode()
    return encrypted


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{{ lookup('env', 'A_1') }}", "A_1"),
        ('{{lookup("env","A")}}', "A"),
        ("{{ lookup('ansible.builtin.env', 'A') }}", "A"),
        ("{{ lookup('env', 'A') | default('x') }}", None),
        ("{{ lookup('file', 'A') }}", None),
        ("Bearer {{ lookup('env', 'A') }}", None),
        ("{{ lookup('env', A) }}", None),
        ("plain", None),
    ],
)
def test_the_one_template_that_is_read(text: str, name: str | None) -> None:
    assert environment_name(text) == name


def test_it_shows_itself_nowhere() -> None:
    secret = plain_secret("hunter2")
    shown = f"{secret} {secret!r} {[secret]} {secret.to_json()}"
    assert "hunter2" not in shown
    assert "hunter2" not in repr(vars(Secret))
    assert secret.reveal() == "hunter2"


def test_settings_with_a_secret_do_not_show_it(repository: Repository) -> None:
    _with_token(repository, "hunter2")
    settings = load_fleet("prod", repository.root).hosts["gpu01"].settings
    shown = f"{settings} {settings!r} {json.dumps(settings.to_json())} {settings.model_dump_json()}"
    assert "hunter2" not in shown
    assert "********" in shown


def test_from_the_environment_when_it_is_used(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_token(repository, ENVIRONMENT)
    monkeypatch.delenv("HUB_TOKEN", raising=False)
    token = _token(repository)
    with pytest.raises(SettingsError) as caught:
        token.reveal()
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key_path) == (
        "group_vars/prod.yml",
        6,
        "model.token",
    )
    assert "HUB_TOKEN is not set" in problem.message
    monkeypatch.setenv("HUB_TOKEN", "now")
    assert token.reveal() == "now"


def test_plain_text_is_warned_about(repository: Repository) -> None:
    _with_token(repository, "hunter2")
    (warning,) = load_fleet("prod", repository.root).warnings
    assert (warning.key_path, warning.line) == ("model.token", 6)
    assert "plain text" in warning.message
    assert "hunter2" not in str(warning)


def test_vault_values(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    block = "".join(f"    {line}\n" for line in _encrypt("from the vault").splitlines())
    _with_token(repository, f"!vault |\n{block}")
    password = repository.write("password", "right\n")

    token = _token(repository)
    with pytest.raises(SettingsError, match="no vault password is set"):
        token.reveal()
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))
    assert token.reveal() == "from the vault"
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(repository.write("wrong", "wrong\n")))
    with pytest.raises(SettingsError, match=r"group_vars/prod.yml:6\n.*cannot be decrypted"):
        token.reveal()
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(repository.root / "none"))
    with pytest.raises(SettingsError, match="none does not exist"):
        token.reveal()
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(repository.write("blank", "")))
    with pytest.raises(SettingsError, match="password cannot be read"):
        token.reveal()


def test_whole_files(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encrypted, they may hold a secret in plain text, and any setting."""
    _with_token(repository, "hunter2")
    path = repository.root / "group_vars/prod.yml"
    path.write_text(_encrypt(path.read_text()))
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    assert [p.file for p in caught.value.problems] == ["group_vars/prod.yml"]
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(repository.write("password", "right")))
    assert load_fleet("prod", repository.root).warnings == []
    assert _token(repository).reveal() == "hunter2"


def test_where_passwords_come_from(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.write("ansible.cfg", "[defaults]\nvault_password_file = secret/pw  ; here\n")
    assert password_sources(repository.root) == [("default", repository.root / "secret/pw")]
    monkeypatch.setenv("ANSIBLE_VAULT_IDENTITY_LIST", "prod@/p, /q")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", "/r")
    shown = [(label, str(path)) for label, path in password_sources(repository.root)]
    assert shown == [("prod", "/p"), ("default", "/q"), ("default", "/r")]


def test_check_can_look_all_secrets_up(
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(repository.root)
    monkeypatch.delenv("HUB_TOKEN", raising=False)
    _with_token(repository, ENVIRONMENT)
    assert main(["settings", "check", "prod"]) == 0
    assert main(["settings", "check", "prod", "--secrets"]) == 1
    assert "HUB_TOKEN is not set" in capsys.readouterr().err
    monkeypatch.setenv("HUB_TOKEN", "hunter2")
    assert main(["settings", "check", "prod", "--secrets"]) == 0
    assert "hunter2" not in capsys.readouterr().out
