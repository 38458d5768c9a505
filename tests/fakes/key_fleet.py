"""A fleet as the settings give it, as small as the keys need it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.settings.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def gateway_host(name: str, address: str, **gateway: Any) -> Any:
    settings = {
        "server_name": "llm.example.com",
        "create_first_key": False,
        "plaintext_ca_key": False,
        "mode": "full",
        "tiers": (SimpleNamespace(name="default"),),
        "default_tier": None,
    }
    return SimpleNamespace(
        name=name,
        groups=frozenset({"gateway"}),
        settings=SimpleNamespace(gateway=SimpleNamespace(**(settings | gateway))),
        connection={"ssh_hostname": address},
    )


def fleet_at(directory: Path, name: str) -> Fleet:
    """A fleet of one gateway whose CA's key lies there in plain text."""
    host = gateway_host("gw1", "10.1.2.3", plaintext_ca_key=True)
    return Fleet(name, directory, directory, {host.name: host}, {"gateway": [host.name]})


@pytest.fixture(autouse=True)
def no_vault_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VAULT_PASSWORD_FILE", "VAULT_IDENTITY_LIST", "CONFIG"):
        monkeypatch.delenv(f"ANSIBLE_{name}", raising=False)


@pytest.fixture
def make_fleet(tmp_path: Path) -> Callable[..., Fleet]:
    def make(*hosts: Any, **gateway: Any) -> Fleet:
        found = hosts or (gateway_host("gw1", "10.1.2.3", **gateway),)
        directory = tmp_path / "inventories" / "prod"
        directory.mkdir(parents=True, exist_ok=True)
        return Fleet(
            name="prod",
            directory=directory,
            root=tmp_path,
            hosts={host.name: host for host in found},
            groups={"gateway": [host.name for host in found]},
        )

    return make
