# ruff: noqa: TC003 -- pydantic evaluates the annotations
"""locks/recipes.yml: what each lock file is made from."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import pydantic
import yaml

from pyinfra_deploy.settings.problems import Problem, SettingsError

FILE = "locks/recipes.yml"
Text = Annotated[str, pydantic.Field(min_length=1)]


class Recipe(pydantic.BaseModel):
    """How one lock is made. platform None: for every Linux, and for `python` and later ones."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9_]+(/[A-Za-z0-9._+-]+)*\.txt$")]
    purpose: Text
    requirements: tuple[Text, ...]
    before: datetime.date
    python: Annotated[str, pydantic.Field(pattern=r"^3\.\d+$")] = "3.11"
    platform: Text | None = None
    extra_index: tuple[Text, ...] = ()
    excluded: dict[str, Text] = {}
    stub: Text | None = None

    @property
    def target(self) -> str:
        """uv's options for what it is for."""
        where = f"--python-platform {self.platform}" if self.platform else "--universal"
        return f"--python-version {self.python} {where}"


def read_recipes(root: Path) -> dict[str, Recipe]:
    """Every recipe by its path below locks/. Raises SettingsError with what is wrong."""
    path = root / FILE
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {row["path"]: Recipe(**row) for row in rows}
    except OSError as error:
        raise problem(f"cannot be read: {error.strerror}.", "run it in the repository.") from error
    except (yaml.YAMLError, pydantic.ValidationError, KeyError, TypeError) as error:
        raise problem(f"is wrong: {error}", "its head tells what a recipe holds.") from error


def problem(message: str, fix: str, place: str = FILE) -> SettingsError:
    return SettingsError([Problem(place, None, "", None, None, message, fix)])


def add_recipe(root: Path, recipe: Recipe) -> None:
    """Append a recipe; what stands in the file stays as it is, comments too."""
    row = recipe.model_dump(exclude_defaults=True, mode="json")
    row |= {"before": recipe.before}
    text = yaml.safe_dump([row], sort_keys=False, allow_unicode=True, width=110)
    path = root / FILE
    temporary = path.with_suffix(".new")
    temporary.write_text(f"{path.read_text(encoding='utf-8').rstrip()}\n\n{text}", encoding="utf-8")
    temporary.replace(path)
