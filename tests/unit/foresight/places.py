"""Places to plan from: an inventory like production's, collected facts, a model's documents."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pyinfra_deploy.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
FIXTURES = REPOSITORY / "tests" / "fixtures"
L20X8 = FIXTURES / "hosts" / "l20x8"
QWEN3_235B = FIXTURES / "models" / "qwen3-235b-a22b-fp8"
QWEN3_32B = FIXTURES / "models" / "qwen3-32b"
NAME = "prod"


class Place:
    """What `fleet plan prod --facts DIR --model-config DIR` reads, for one test to change.

    The settings are the repository's own group_vars.
    """

    def __init__(self, root: Path, *hosts: str) -> None:
        self.root = root
        self.hosts = hosts or ("gpu01",)
        self.facts = root / "facts"
        self.model = QWEN3_235B
        (root / "inventories" / NAME).mkdir(parents=True)
        for name in ("all", "gpu", "gateway"):
            _copy(REPOSITORY / "group_vars" / f"{name}.yml", root / "group_vars" / f"{name}.yml")
        (root / "locks").symlink_to(REPOSITORY / "locks")
        (root / "inventories" / f"{NAME}.py").write_text(
            (REPOSITORY / "inventories" / f"{NAME}.py").read_text()
        )
        settings = yaml.safe_load((REPOSITORY / "group_vars" / f"{NAME}.yml").read_text())
        self.settings: dict[str, Any] = copy.deepcopy(settings)
        self._write_hosts()
        for host in self.hosts:
            shutil.copytree(L20X8, self.facts / host)

    @property
    def inventory(self) -> str:
        return str(self.root / "inventories" / f"{NAME}.py")

    def _write_hosts(self) -> None:
        source = yaml.safe_load((REPOSITORY / "inventories" / NAME / "hosts.yml").read_text())
        children = source["all"]["children"]
        children[NAME]["hosts"] = {
            host: {"ansible_host": f"192.0.2.{number % 250 + 1}"}
            for number, host in enumerate(self.hosts)
        }
        for role in ("gpu", "gateway"):
            children[role]["hosts"] = {host: {} for host in self.hosts}
        path = self.root / "inventories" / NAME / "hosts.yml"
        path.write_text(yaml.safe_dump(source, sort_keys=False))

    def write(self, **sections: Any) -> None:
        """Write the settings, with `sections` laid over them. None as a value takes a key out."""
        settings = copy.deepcopy(self.settings)
        for section, values in sections.items():
            if isinstance(values, dict) and isinstance(settings.get(section), dict):
                merged = {**settings[section], **values}
                settings[section] = {key: one for key, one in merged.items() if one is not None}
            else:
                settings[section] = values
        path = self.root / "group_vars" / f"{NAME}.yml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False))

    def rewrite(self, name: str, change: Callable[[str], str], *hosts: str) -> None:
        """Change a fact of these hosts (default: all)."""
        for host in hosts or self.hosts:
            path = self.facts / host / name
            before = path.read_text()
            after = change(before)
            assert after != before, f"{name} is as it was"
            path.write_text(after)

    def arguments(self, *more: str) -> list[str]:
        found = ["plan", self.inventory, "--facts", str(self.facts)]
        model = [] if "--hub" in more else ["--model-config", str(self.model)]
        return [*found, *model, *(word for word in more if word != "--hub")]

    def plan(
        self, capsys: pytest.CaptureFixture[str], *more: str
    ) -> tuple[int, dict[str, dict[str, Any]]]:
        """(exit code, host -> its part of --json)."""
        capsys.readouterr()
        code = main([*self.arguments(*more), "--json"])
        document = json.loads(capsys.readouterr().out)
        return code, {one["host"]: one for one in document["hosts"]}

    def text(self, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(self.arguments(*more))
        return code, capsys.readouterr().out


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def ids(host: dict[str, Any], severity: str | None = None) -> list[str]:
    """Finding ids in order, of one severity or of all."""
    return [
        one["id"] for one in host["findings"] if severity is None or one["severity"] == severity
    ]


def finding(host: dict[str, Any], identifier: str) -> dict[str, Any]:
    """The one finding of that id."""
    (found,) = [one for one in host["findings"] if one["id"] == identifier]
    return dict(found)
