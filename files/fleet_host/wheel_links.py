"""Pages that list wheels: PEP 503 and PEP 691 indexes, find-links pages, directories."""

from __future__ import annotations

import hashlib
import html.parser
import json
import netrc
import os
import re
import socket
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urldefrag, urljoin, urlsplit, urlunsplit

from .errors import HostError
from .installer import Sources, normalised

if TYPE_CHECKING:
    from collections.abc import Iterator

# https://packaging.python.org/en/latest/specifications/simple-repository-api/
ACCEPTED = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)
TIMEOUT_SECONDS = 60.0
LARGEST_PAGE_BYTES = 64 << 20


@dataclass(frozen=True)
class Link:
    """A wheel at some place. sha256, size_bytes: as the page says them, None where it does not."""

    file: str
    url: str
    sha256: str | None
    size_bytes: int | None


def masked(url: str) -> str:
    """A URL without its password."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1********@", url)


class Reader:
    """Opens URLs with the host's CA certificates, proxies (from the environment) and netrc."""

    def __init__(self, certificates: str | None) -> None:
        context = ssl.create_default_context(cafile=certificates)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def open(self, url: str, **headers: str) -> IO[bytes]:
        """The response. urllib.error.URLError (an OSError) and ValueError as urllib raises them."""
        parts = urlsplit(url)
        request = urllib.request.Request(_without_password(parts), headers=headers)  # noqa: S310
        secret = _credentials(parts)
        if secret is not None:
            # Unredirected: a mirror may send us on to a storage that must not see it.
            request.add_unredirected_header("Authorization", f"Basic {secret}")
        response: IO[bytes] = self._opener.open(request, timeout=TIMEOUT_SECONDS)
        return response


def _without_password(parts: SplitResult) -> str:
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))


def _credentials(parts: SplitResult) -> str | None:
    name, password = parts.username, parts.password
    if name is None and parts.hostname is not None:
        try:
            found = netrc.netrc(os.environ.get("NETRC")).authenticators(parts.hostname)
        except (OSError, netrc.NetrcParseError):
            found = None
        if found is None:
            return None
        name, password = found[0], found[2]
    if name is None:
        return None
    return b64encode(f"{unquote(name)}:{unquote(password or '')}".encode()).decode()


class _Anchors(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if address and tag == "a":
            self.found.append(address)
        elif address and tag == "base" and self.base is None:
            self.base = address


def links_of_page(text: str, url: str) -> list[Link]:
    """The wheels that a page at `url` lists, PEP 691 JSON or HTML."""
    if text.lstrip().startswith("{"):
        rows = json.loads(text).get("files") or []
        return [
            Link(
                row["filename"],
                urljoin(url, row["url"]),
                (row.get("hashes") or {}).get("sha256"),
                row.get("size"),
            )
            for row in rows
            if str(row.get("filename", "")).endswith(".whl")
        ]
    parser = _Anchors()
    parser.feed(text)
    base = urljoin(url, parser.base) if parser.base else url
    links = []
    for address in parser.found:
        target, fragment = urldefrag(urljoin(base, address))
        file = unquote(urlsplit(target).path.rsplit("/", 1)[-1])
        hashed = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        if file.endswith(".whl"):
            links.append(Link(file, target, hashed[1] if hashed else None, None))
    return links


def _local_sha256(link: Link) -> str | None:
    """Of a file of a directory, which has no page that says it."""
    if not link.url.startswith("file:"):
        return None
    digest = hashlib.sha256()
    with Path(unquote(urlsplit(link.url).path)).open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def links_of_directory(directory: Path) -> list[Link]:
    return [
        Link(path.name, path.as_uri(), None, path.stat().st_size)
        for path in sorted(directory.glob("*.whl"))
    ]


class Finder:
    """Looks wheels up in the sources; each page is read once."""

    def __init__(self, sources: Sources, reader: Reader) -> None:
        self._sources = sources
        self._reader = reader
        self._pages: dict[str, list[Link]] = {}

    def find(self, file: str, sha256: str) -> list[Link]:
        """Where the wheel is, the best place first: those whose page names the hash. HostError when
        no source can be asked, or none has it."""
        found: list[Link] = []
        failures: list[str] = []
        for page in self._places(normalised(file.split("-")[0])):
            try:
                links = self._links(page)
            except (OSError, ValueError) as error:
                failures.append(f"{masked(page)}: {reason(error)}")
                continue
            same = [link for link in links if link.file == file]
            certain = [link for link in same if (link.sha256 or _local_sha256(link)) == sha256]
            if certain:
                return [*certain, *found]
            found += [link for link in same if link.sha256 is None]
        if found:
            return found
        raise _nowhere(file, sha256, failures, [*self._pages])

    def _places(self, name: str) -> Iterator[str]:
        yield from self._sources.find_links
        for index in (self._sources.index_url, *self._sources.extra_index_urls):
            if index:
                yield f"{index.rstrip('/')}/{name}/"

    def _links(self, page: str) -> list[Link]:
        if page not in self._pages:
            self._pages[page] = self._read(page)
        return self._pages[page]

    def _read(self, page: str) -> list[Link]:
        path = Path(unquote(urlsplit(page).path)) if page.startswith("file:") else Path(page)
        if "://" not in page or page.startswith("file:"):
            if (path / "index.html").is_file():
                path = path / "index.html"
            if path.is_dir():
                return links_of_directory(path)
            return links_of_page(path.read_text(encoding="utf-8"), path.as_uri())
        with self._reader.open(page, Accept=ACCEPTED) as response:
            text = response.read(LARGEST_PAGE_BYTES).decode("utf-8", errors="replace")
            # Relative links start from where a redirect ended.
            return links_of_page(text, getattr(response, "url", page))


def reason(error: Exception) -> str:
    """Why a page or a wheel could not be had, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    inner = getattr(error, "reason", error)
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here ({inner.verify_message})"
    if isinstance(inner, (TimeoutError, socket.timeout)):
        return f"no answer in {TIMEOUT_SECONDS:.0f} seconds"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return str(inner) or type(error).__name__


def _nowhere(file: str, sha256: str, failures: list[str], asked: list[str]) -> HostError:
    what = f"the wheel {file} cannot be found"
    real = [line for line in failures if "HTTP 404" not in line]
    if real:
        return HostError(
            what,
            f"{len(real)} place(s) could not be asked: {real[0]}.",
            "Mend the way there (name resolution, proxy, certificates) or correct "
            "runtime.index_url, then run it again: what has been downloaded is kept.",
            failures,
        )
    return HostError(
        what,
        f"no source has it with the SHA-256 of the lock, {sha256}.",
        "Is it an index of yours that lacks this version? Add a source to "
        "runtime.extra_index_urls or runtime.find_links, or make the lock again from the index "
        "that you have.",
        [*failures, *(f"asked: {masked(page)}" for page in asked[:10])],
    )
