"""What the vLLM that is installed on a host says of its arguments, by its parser and by us."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests import vllm_parser
from tests.hosts.lab_session import shell
from tests.hosts.mended import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping


def parser_of(host: str, runtime: str) -> Mapping[str, Mapping[str, Any]]:
    """Its own parser's arguments, as vllm_parser.parsed gives them. runtime: the directory."""
    output = shell(
        host,
        f"cd /tmp && {vllm_parser.ENVIRONMENT} {runtime}/bin/python -",
        input_text=vllm_parser.PROGRAM,
        timeout_seconds=600,
    )
    return vllm_parser.parsed(output)


def source_of(host: str, runtime: str) -> dict[str, Any]:
    """{name, version, flags}: what the host program reads from its source."""
    said = shell(host, f"/{ROOT}/bin/fleet-host runtime flags", input_text="{}")
    name = runtime.rsplit("/", 1)[1]
    (entry,) = (one for one in json.loads(said)["runtimes"] if one["name"] == name)
    found: dict[str, Any] = entry
    return found
