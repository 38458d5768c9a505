"""A text under Ansible Vault, written by ansible-core itself, so that ansible-vault reads it.

Which password: as in pyinfra_deploy.settings.vault, which also decrypts. The import of ansible-core
takes half a second and happens only when something is encrypted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.settings.vault import password_sources

if TYPE_CHECKING:
    from pathlib import Path


def password_is_configured(root: Path) -> bool:
    return bool(password_sources(root))


def encrypt(plain: bytes, root: Path) -> bytes:
    """Encrypt with the first configured vault password. Raises KeysError when it cannot be had."""
    from ansible.errors import AnsibleError
    from ansible.parsing.dataloader import DataLoader
    from ansible.parsing.vault import VaultLib, get_file_vault_secret

    label, source = password_sources(root)[0]
    try:
        if not source.is_file():
            raise AnsibleError(f"{source} does not exist")
        secret = get_file_vault_secret(filename=str(source), vault_id=label, loader=DataLoader())
        secret.load()
        # Ansible names the id in the envelope only when it is not the default one.
        vault_id = None if label == "default" else label
        encrypted: bytes = VaultLib().encrypt(plain, secret, vault_id=vault_id)
    except AnsibleError as error:
        raise KeysError(
            "cannot encrypt the CA's key",
            f"the vault password cannot be read: {str(error).splitlines()[0]}.",
            "Correct ANSIBLE_VAULT_PASSWORD_FILE (or vault_password_file in ansible.cfg): a file "
            "with the password, or an executable that prints it.",
        ) from error
    return encrypted
