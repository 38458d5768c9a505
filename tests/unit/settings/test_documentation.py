"""docs/settings.md is what the schema says; examples and defaults are themselves right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pyinfra_deploy.cli import main
from pyinfra_deploy.settings.documentation import settings_page
from pyinfra_deploy.settings.schema import Settings
from pyinfra_deploy.settings.schema_words import allowed_words, as_yaml, example_of, section_of
from pyinfra_deploy.settings.secret import Secret, plain_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from pyinfra_deploy.settings.section import Section

PAGE = Path(__file__).parents[3] / "docs/settings.md"


def _fields(section: type[Section] = Settings, path: str = "") -> Iterator[Any]:
    for name, info in section.model_fields.items():
        nested = section_of(info)
        if nested is not None:
            yield from _fields(nested, f"{path}{name}.")
        else:
            yield pytest.param(section, name, info, id=f"{path}{name}")


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "run: fleet settings docs"


@pytest.mark.parametrize(("section", "name", "info"), list(_fields()))
def test_every_key_is_described(section: type[Section], name: str, info: FieldInfo) -> None:
    assert info.description
    assert len(info.description) > 5
    assert info.description.rstrip().endswith(".")
    assert allowed_words(info) not in ("", "text")
    assert f"{name}`" in settings_page()
    # The example, read back from YAML, is accepted.
    value = yaml.safe_load(f"x: {example_of(info)}")["x"]
    if Secret in getattr(info.annotation, "__args__", ()):
        value = plain_secret(value)
    required = {
        key: field.examples[0]
        for key, field in section.model_fields.items()
        if field.is_required() and field.examples
    }
    section.model_validate({**required, name: value})


@pytest.mark.parametrize(
    "value", [None, True, 3, 0.9, "a", "0.33.0", "a: b", "", "x #y", "yes", {"a": [1, "2"]}, []]
)
def test_yaml_on_one_line(value: Any) -> None:
    assert yaml.safe_load(f"x: {as_yaml(value)}")["x"] == value


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["settings", "docs", "--check"]) == 1
    assert "fleet settings docs" in capsys.readouterr().err
    assert main(["settings", "docs"]) == 0
    assert main(["settings", "docs", "--check"]) == 0


def test_check_of_an_inventory_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["settings", "check", "none"]) == 1
    assert "Traceback" not in capsys.readouterr().err
