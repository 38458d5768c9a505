"""Ansible Vault, decrypted by ansible-core itself.

ansible-core takes half a second to import, so that happens only when something is decrypted.
"""

from __future__ import annotations

import configparser
import os
import socket
import sys
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.settings.problems import Problem, SettingsError
from pyinfra_deploy.settings.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = "$ANSIBLE_VAULT;"


def vault_secret(ciphertext: str, root: Path, file: str, line: int | None) -> Secret:
    """A `!vault` value: decrypted when it is revealed, which may raise SettingsError."""
    return Secret(lambda: decrypt(ciphertext, root, file, line), f"vault value in {file}")


def decrypt(ciphertext: str, root: Path, file: str, line: int | None = None) -> str:
    """The plain text of a vault text. Raises SettingsError, naming the file, when it cannot."""
    library = _library(root, file, line)
    from ansible.errors import AnsibleError

    try:
        plain: bytes = library.decrypt(ciphertext.strip().encode())
    except AnsibleError as error:
        reason = str(error).splitlines()[0]
        raise _error(
            file,
            line,
            f"the vault text cannot be decrypted: {reason}",
            "check that this is the right vault password (ANSIBLE_VAULT_PASSWORD_FILE, or "
            "vault_password_file in ansible.cfg) and that the text was copied whole.",
        ) from error
    return plain.decode()


def password_sources(root: Path) -> list[tuple[str, Path]]:
    """(vault id, password file), first those of the identity list, as Ansible tries them."""
    sources: list[tuple[str, Path]] = []
    identities, base = _setting(root, "ANSIBLE_VAULT_IDENTITY_LIST", "vault_identity_list")
    for entry in filter(None, (part.strip() for part in identities.split(","))):
        label, _, source = entry.rpartition("@")
        sources.append((label or "default", _resolve(source, base)))
    file, base = _setting(root, "ANSIBLE_VAULT_PASSWORD_FILE", "vault_password_file")
    if file:
        sources.append(("default", _resolve(file, base)))
    return sources


def configuration(root: Path) -> configparser.ConfigParser:
    """The ansible.cfg that Ansible would read when it is started in the repository's root."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    path = Path(os.environ.get("ANSIBLE_CONFIG") or root / "ansible.cfg")
    try:
        parser.read(path / "ansible.cfg" if path.is_dir() else path)
    except configparser.Error as error:
        raise _error(
            str(path), None, f"not readable as an INI file: {error.message}", "mend the file."
        ) from error
    return parser


def _setting(root: Path, variable: str, key: str) -> tuple[str, Path]:
    """A setting and the directory its relative paths start from."""
    if value := os.environ.get(variable):
        return value, Path.cwd()
    value = configuration(root).get("defaults", key, fallback="")
    return value, root


def _resolve(source: str, base: Path) -> Path:
    return base / Path(os.path.expandvars(source)).expanduser()


@contextmanager
def _quiet_import() -> Iterator[None]:
    """ansible-core 2.19, when it is imported, tries whether getaddrinfo fails for a subclass of
    int, and replaces it if so. gevent, which pyinfra patches in, prints that as a traceback."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("socket"):
        yield
        return
    patched = socket.getaddrinfo
    socket.getaddrinfo = monkey.get_original("socket", "getaddrinfo")
    try:
        yield
    finally:
        socket.getaddrinfo = patched


def _library(root: Path, file: str, line: int | None) -> Any:
    sources = password_sources(root)
    if not sources:
        raise _error(
            file,
            line,
            "is encrypted with Ansible Vault, and no vault password is set.",
            "export ANSIBLE_VAULT_PASSWORD_FILE=/path/to/password-file (or a script that prints "
            "it), or set vault_password_file in ansible.cfg.",
        )
    for _label, source in sources:
        if source.name.startswith("prompt") or not source.is_file():
            raise _error(
                file,
                line,
                f"is encrypted with Ansible Vault, and the password file {source} does not exist.",
                "correct ANSIBLE_VAULT_PASSWORD_FILE or vault_password_file in ansible.cfg; "
                "a prompt cannot be used here, since hosts are read without a terminal.",
            )
    try:
        return _vault_lib(tuple((label, str(source)) for label, source in sources))
    except Exception as error:
        from ansible.errors import AnsibleError

        if not isinstance(error, AnsibleError):
            raise
        raise _error(
            file,
            line,
            f"is encrypted with Ansible Vault, and its password cannot be read: {error}",
            "run the password script by hand, or look into the password file: it must not be "
            "empty.",
        ) from error


@lru_cache(maxsize=4)
def _vault_lib(sources: tuple[tuple[str, str], ...]) -> Any:
    with _quiet_import():
        from ansible.parsing.dataloader import DataLoader
        from ansible.parsing.vault import VaultLib, get_file_vault_secret

    secrets = []
    for label, source in sources:
        secret = get_file_vault_secret(filename=source, vault_id=label, loader=DataLoader())
        secret.load()
        secrets.append((label, secret))
    return VaultLib(secrets)


def _error(file: str, line: int | None, message: str, fix: str) -> SettingsError:
    return SettingsError(
        [
            Problem(
                file=file, line=line, key_path="", host=None, found=None, message=message, fix=fix
            )
        ]
    )
