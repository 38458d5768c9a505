"""A Hugging Face hub, or a mirror of one: its HTTP API, without its client.

    GET /api/models/ID/revision/REV            sha (the commit), cardData.license, tags
    GET /api/models/ID/tree/SHA?recursive=true [{type, path, size, oid, lfs: {oid, size}}], in pages
    GET /ID/resolve/SHA/PATH                   a file; large ones redirect to a CDN

`lfs.oid` is a file's SHA-256. Files that are not in LFS have only git's blob hash there, a SHA-1:
they are small (10 MB at most), and are downloaded, compared with it and hashed here.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.model.source import Answered, Asked
from pyinfra_deploy.model.web import Server, get, json_of
from pyinfra_deploy.planning.model_files import Listed, name_problem

if TYPE_CHECKING:
    from collections.abc import Callable

ENDPOINT = "https://huggingface.co"
AT_ONCE = 4
# The API gives 1000 entries a page; a model of more pages than this is none.
MOST_PAGES = 100
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_COMMIT = re.compile(r"[0-9a-f]{40}")


def ask(server: Server, asked: Asked) -> Answered:
    """Everything about a model at a revision. Raises Refused."""
    quoted = urllib.parse.quote(asked.model)
    about = f"model {asked.model} at {asked.revision}"
    path = f"/api/models/{quoted}/revision/{urllib.parse.quote(asked.revision, safe='')}"
    information = json_of(get(server, path, about), server, about)
    commit = information.get("sha") if isinstance(information, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise Refused(
            f"{server.endpoint} does not tell the commit of {about}",
            f"its answer has sha {commit!r}.",
            "check the endpoint: is this a Hugging Face hub?",
        )
    entries = [
        entry
        for entry in _tree(server, quoted, commit, asked.model)
        if entry.get("type") != "directory" and not asked.left_out(str(entry.get("path")))
    ]

    @cache
    def read(file_path: str) -> bytes:
        where = f"/{quoted}/resolve/{commit}/{urllib.parse.quote(file_path)}"
        return get(server, where, f"{file_path} of {asked.model}").body

    with ThreadPoolExecutor(AT_ONCE) as pool:
        files = tuple(pool.map(lambda entry: _listed(entry, read), entries))
    license_id = _license(information)
    return Answered(
        "huggingface",
        server.endpoint,
        commit,
        license_id,
        "the hub" if license_id else None,
        files,
        read,
    )


def _tree(server: Server, quoted: str, commit: str, model: str) -> list[dict[str, Any]]:
    about = f"listing of {model} at {commit[:12]}"
    url = f"/api/models/{quoted}/tree/{commit}?recursive=true&expand=false"
    found: list[dict[str, Any]] = []
    for _ in range(MOST_PAGES):
        answer = get(server, url, about)
        page = json_of(answer, server, about)
        if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
            raise Refused(
                f"{server.endpoint} gives no usable {about}",
                "its answer is no list of entries.",
                "check the endpoint: is this a Hugging Face hub?",
            )
        found += page
        following = _NEXT.search(answer.headers.get("link", ""))
        if following is None:
            return found
        url = _of_this_server(server, urllib.parse.urljoin(answer.url, following[1]), about)
    raise Refused(
        f"the {about} does not end",
        f"it has more than {MOST_PAGES} pages.",
        "check the endpoint; a model has some hundreds of files.",
    )


def _of_this_server(server: Server, url: str, about: str) -> str:
    """Mirrors pass on the links of the hub behind them: their path is what counts."""
    parts = urllib.parse.urlsplit(url)
    base = urllib.parse.urlsplit(server.endpoint)
    if parts.netloc == base.netloc:
        return url
    at = parts.path.find("/api/models/")
    if at < 0:
        raise Refused(
            f"the {about} goes on at another server",
            f"its next page is at {parts.scheme}://{parts.netloc}.",
            "use an endpoint that answers by itself.",
        )
    return f"{server.endpoint}{parts.path[at:]}?{parts.query}"


def _listed(entry: dict[str, Any], read: Callable[[str], bytes]) -> Listed:
    path, lfs = entry.get("path"), entry.get("lfs")
    if isinstance(lfs, dict):
        oid = lfs.get("oid")
        if isinstance(oid, str):
            oid = oid.removeprefix("sha256:").lower()
        return Listed(path, lfs.get("size", entry.get("size")), oid)
    if name_problem(path) or not isinstance(path, str):
        return Listed(path, entry.get("size"), None)  # refused by its name; nothing is asked for
    content = read(path)
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content)  # noqa: S324 - git's own identity
    if len(content) != entry.get("size") or blob.hexdigest() != entry.get("oid"):
        raise Refused(
            f"{path} is not what the hub's own listing says",
            f"listed {entry.get('size')} bytes, git blob {entry.get('oid')}; got {len(content)} "
            f"bytes, {blob.hexdigest()}.",
            "try again; if it stays so, the hub or a proxy on the way is broken.",
        )
    return Listed(path, len(content), hashlib.sha256(content).hexdigest())


def _license(information: dict[str, Any]) -> str | None:
    card = information.get("cardData")
    named = card.get("license") if isinstance(card, dict) else None
    if isinstance(named, str) and named:
        return named
    tags = information.get("tags")
    for tag in tags if isinstance(tags, list) else ():
        if isinstance(tag, str) and tag.startswith("license:"):
            return tag.removeprefix("license:")
    return None
