"""A directory on a web server, with a SHA256SUMS in it: hashes from there, sizes from the server.

Anybody who can change the files can change SHA256SUMS too: the lock pins what is there today.
"""

from __future__ import annotations

import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyinfra_deploy.model.checksums import NAME, read_checksums
from pyinfra_deploy.model.source import Answered, Asked
from pyinfra_deploy.model.web import get
from pyinfra_deploy.planning.model_files import Listed, name_problem

if TYPE_CHECKING:
    from pyinfra_deploy.model.web import Server

AT_ONCE = 8


def ask(server: Server, asked: Asked) -> Answered:
    """Raises Refused."""
    text = get(server, f"/{NAME}", NAME).body.decode(errors="replace")
    named = read_checksums(text, f"{server.endpoint}/{NAME}")
    wanted = sorted(path for path in named if not asked.left_out(path))

    def where(path: str) -> str:
        return "/" + urllib.parse.quote(path)

    def listed(path: str) -> Listed:
        if name_problem(path):
            return Listed(path, None, named[path])  # refused by its name; nothing is asked for
        length = get(server, where(path), path, method="HEAD").headers.get("content-length", "")
        return Listed(path, int(length) if length.isdigit() else None, named[path])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        files = tuple(pool.map(listed, wanted))
    return Answered(
        "http",
        server.endpoint,
        None,
        None,
        None,
        files,
        lambda path: get(server, where(path), path).body,
    )
