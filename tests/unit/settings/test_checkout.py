"""Code of one checkout (or an installed copy) with the inventory of another is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyinfra_deploy.settings.checkout import PACKAGE, refuse_other_checkout
from pyinfra_deploy.settings.fleet import load_fleet
from pyinfra_deploy.settings.problems import SettingsError

REPOSITORY = Path(__file__).resolve().parents[3]


def other_checkout(path: Path) -> Path:
    (path / "pyinfra_deploy").mkdir(parents=True)
    (path / "pyinfra_deploy" / "__init__.py").touch()
    (path / "inventories" / "prod").mkdir(parents=True)
    (path / "inventories" / "prod" / "hosts.yml").write_text("all: {}\n")
    return path


def test_an_installed_copy_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    root = other_checkout(tmp_path / "clone")
    with pytest.raises(SettingsError) as caught:
        load_fleet(root / "inventories" / "prod.py")
    assert f"found: {PACKAGE}" in str(caught.value)
    assert f"cd {root} && " in str(caught.value)
    assert "pip install --no-deps --no-build-isolation -e ." in str(caught.value)


def test_the_checkouts_own_code_is_right_also_by_another_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(REPOSITORY)
    refuse_other_checkout(REPOSITORY)
    refuse_other_checkout(tmp_path / "link")


def test_an_inventory_outside_a_checkout_is_nobodys(tmp_path: Path) -> None:
    refuse_other_checkout(tmp_path)
