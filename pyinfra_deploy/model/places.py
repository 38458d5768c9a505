"""Which place a model is locked from: the words of the command line, and the settings."""

from __future__ import annotations

import os
import urllib.parse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyinfra_deploy.model import checked_server, directory, huggingface, modelscope
from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.model.web import Server, check_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyinfra_deploy.model.source import Answered, Asked

TOKENS = {"modelscope": "MODELSCOPE_API_TOKEN", "huggingface": "HF_TOKEN"}


@dataclass(frozen=True)
class Place:
    """hub: one of planning.model_lock.HUBS. endpoint: an address, or a directory."""

    hub: str
    endpoint: str

    def asker(self, token: str | None) -> Callable[[Asked], Answered]:
        """token: from settings. None: that of the hub's own client, in its environment variable."""
        if self.hub == "directory":
            return partial(directory.ask, Path(self.endpoint))
        endpoint = check_endpoint(self.endpoint)
        variable = TOKENS.get(self.hub)
        token = token or (os.environ.get(variable) if variable else None) or None
        if self.hub == "modelscope":
            return partial(modelscope.ask, Server(endpoint, token, "m_session_id"))
        if self.hub == "huggingface":
            return partial(huggingface.ask, Server(endpoint, token))
        return partial(checked_server.ask, Server(endpoint))


def place_of(words: str, endpoint: str | None) -> Place:
    """The place that --from and --endpoint name. Raises Refused."""
    known = {"modelscope": modelscope.ENDPOINT, "huggingface": huggingface.ENDPOINT}
    if words in known:
        return Place(words, endpoint or known[words])
    if endpoint is not None:
        raise Refused(
            "--endpoint goes with --from modelscope or huggingface",
            f"--from {words} is an address itself.",
            "leave one of them out.",
        )
    if urllib.parse.urlsplit(words).scheme in ("http", "https"):
        return Place("http", words)
    return Place("directory", words)
