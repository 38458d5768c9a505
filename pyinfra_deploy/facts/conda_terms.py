"""The fact that reads conda's acceptance files on a host, as the user who will run conda."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyinfra.api import FactBase

from pyinfra_deploy.facts.inline import PROGRAMS, last_object, python_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra.api import Host, StringCommand

SOURCE = PROGRAMS / "conda_terms.py"


class CondaTerms(FactBase[dict[str, Any]]):
    """{roots, terms: {channel: {accepted, version, path}}, files: {path: readable}}; {} on a host
    without Python, error instead of terms where an acceptance file cannot be read."""

    @staticmethod
    def default() -> dict[str, Any]:
        return {}

    def command(self, request: str) -> StringCommand:
        return python_command(SOURCE, request, otherwise="echo '{}'")

    def process(self, output: list[str]) -> dict[str, Any]:
        return parse(output)


def parse(output: list[str]) -> dict[str, Any]:
    """Raises FactProcessError, which costs this one host."""
    return last_object(output, "answer", is_not_json="conda's terms are not JSON")


def read_conda_terms(host: Host, request: Mapping[str, Any]) -> dict[str, Any]:
    """What the host's files say; decided again on the host, right before conda is run."""
    found: dict[str, Any] = host.get_fact(
        CondaTerms, request=json.dumps(dict(request), sort_keys=True)
    )
    return found
