# ruff: noqa: TC002, TC003 -- pydantic evaluates the annotations
"""A value that is looked up when it is used, and shows itself nowhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from pyinfra_deploy.settings.problems import Problem, SettingsError

MASK = "********"

# Ansible's own notation, so that both engines read the same file. Nothing else of Jinja is read.
_ENVIRONMENT = re.compile(
    r"""\s*\{\{\s*lookup\(\s*(?P<q>['"])(?:ansible\.builtin\.)?env(?P=q)\s*,
        \s*(?P<p>['"])(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P=p)\s*\)\s*\}\}\s*""",
    re.VERBOSE,
)


class Secret:
    """A secret by where it comes from. `reveal()` fetches it, each time; raises SettingsError."""

    __slots__ = ("_resolve", "source")

    def __init__(self, resolve: Callable[[], str], source: str) -> None:
        self._resolve = resolve
        self.source = source

    def reveal(self) -> str:
        return self._resolve()

    def to_json(self) -> str:
        """pyinfra's `debug-inventory` asks for this."""
        return MASK

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret({MASK}, from {self.source})"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: Any, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.is_instance_schema(
            cls, serialization=core_schema.to_string_ser_schema(when_used="always")
        )


class Unprinted(str):
    """A revealed secret for those who take plain text only; their debug logs (%r) mask it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)


def environment_name(value: str) -> str | None:
    """The NAME of "{{ lookup('env', 'NAME') }}", or None for any other text."""
    match = _ENVIRONMENT.fullmatch(value)
    return match["name"] if match else None


def environment_secret(name: str, file: str, line: int | None, key_path: str) -> Secret:
    """A secret in the control machine's environment; not looked at before `reveal()`."""

    def resolve() -> str:
        value = os.environ.get(name, "")
        if value:
            return value
        raise SettingsError(
            [
                Problem(
                    file=file,
                    line=line,
                    key_path=key_path,
                    host=None,
                    found=f"lookup('env', '{name}')",
                    message=f"the environment variable {name} is not set, or is empty.",
                    fix=f"export {name}=... in the shell that runs this, or encrypt the value "
                    "with ansible-vault encrypt_string.",
                )
            ]
        )

    return Secret(resolve, f"environment variable {name}")


def plain_secret(value: str) -> Secret:
    return Secret(lambda: value, "plain text")
