"""A ModelScope hub over HTTP: revisions, listing, small files.

Paths and fields as modelscope 1.40.2 uses them. Large files are the client's work; here only what
must be known before it starts.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import IO, Any

from . import proxies
from .errors import HostError
from .listing import FileEntry, Listing, parse_listing

TIMEOUT_SECONDS = 30.0
RETRY_DELAYS_SECONDS = (1.0, 3.0, 8.0)
# An index of 94 layers with 128 experts in FP8 is some 10 MB; a listing of 3000 files under 2 MB.
# Parsed, JSON takes several times its size, and a pull is to stay below 200 MB.
LARGEST_ANSWER_BYTES = 32 << 20


@dataclass(frozen=True)
class Hub:
    """Where the hub is (scheme://host[:port][/prefix]), the token, if it wants one, and the proxy
    on the way to it, if the settings name one."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    proxy: proxies.Proxy | None = None


class _SameHostCredentials(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but take the token along only to the same scheme, host and port: the hub
    redirects to CDNs."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and _origin(req.full_url) != _origin(newurl):
            for name in ("Authorization", "Cookie"):
                following.remove_header(name)
        return following


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def check_endpoint(endpoint: str) -> None:
    """Refuse an endpoint that is no HTTP address, or that carries a password."""
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HostError(
            f"{endpoint!r} is not a hub's address",
            "it must begin with https:// or http:// and name a host.",
            "Correct model.endpoint, for example https://www.modelscope.cn.",
        )
    if parts.username or parts.password:
        raise HostError(
            f"the hub's address for {parts.hostname} carries a user name or password",
            "it would appear in records and logs.",
            "Take it out of model.endpoint and set model.token.",
        )


def _open(hub: Hub, url: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "fleet-host"})  # noqa: S310
    if hub.token:
        # The client sends both: older paths of the hub know only the cookie.
        request.add_header("Authorization", f"Bearer {hub.token}")
        request.add_header("Cookie", f"m_session_id={hub.token}")
    through = [proxies.Handler(hub.proxy)] if hub.proxy is not None else []
    opener = urllib.request.build_opener(_SameHostCredentials(), *through)
    with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
        body: bytes = response.read(LARGEST_ANSWER_BYTES + 1)
        announced = response.headers.get("Content-Length")
    if len(body) > LARGEST_ANSWER_BYTES:
        raise HostError(
            f"{url} answered with more than {LARGEST_ANSWER_BYTES >> 20} MiB",
            "no listing or index is that large.",
            "Check model.endpoint.",
        )
    if announced is not None and announced.isdigit() and len(body) < int(announced):
        raise http.client.IncompleteRead(body, int(announced) - len(body))
    return body


def get(hub: Hub, path: str, query: dict[str, str], about: str) -> bytes:
    """GET below the endpoint; server errors and broken connections are tried again three times.

    about: what is asked for, in words, for errors. HostError.
    """
    url = hub.endpoint.rstrip("/") + path
    if query:
        url += "?" + urllib.parse.urlencode(query)
    for delay_seconds in (*RETRY_DELAYS_SECONDS, None):
        try:
            return _open(hub, url)
        except urllib.error.HTTPError as error:
            if error.code < 500 or delay_seconds is None:
                raise _http_problem(hub, error, about) from error
        except (OSError, http.client.HTTPException) as error:
            if delay_seconds is None:
                raise _connection_problem(hub, error, about) from error
        time.sleep(delay_seconds)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _http_problem(hub: Hub, error: urllib.error.HTTPError, about: str) -> HostError:
    body = error.read(2000).decode(errors="replace").splitlines()[:10]
    if error.code == 404:
        return HostError(
            f"{hub.endpoint} has no {about}",
            "it answered 404.",
            "Check model.id and model.revision (upper and lower case count); some hubs answer 404 "
            "for a private model when model.token is missing.",
            body,
        )
    if error.code in (401, 403):
        return HostError(
            f"{hub.endpoint} refuses {about}",
            f"it answered {error.code}: "
            + ("the token is not accepted." if hub.token else "it wants a token."),
            "Set model.token to a token that may read this model (private and gated ones need it).",
            body,
        )
    return HostError(
        f"{hub.endpoint} does not give {about}",
        f"it answered {error.code}"
        + (f", {len(RETRY_DELAYS_SECONDS) + 1} times." if error.code >= 500 else "."),
        "The trouble is the hub's: try again later, or set another model.endpoint.",
        body,
    )


def _connection_problem(hub: Hub, error: Exception, about: str) -> HostError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    host = urllib.parse.urlsplit(hub.endpoint).hostname
    return HostError(
        f"{hub.endpoint} cannot be reached for {about}",
        f"{type(reason).__name__}: {reason}, {len(RETRY_DELAYS_SECONDS) + 1} times.",
        f"On this host try 'curl -v {hub.endpoint}': name resolution of {host}, route, firewall, "
        "proxy (model.proxy), certificate.",
    )


def _json_data(body: bytes, hub: Hub, about: str) -> Any:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HostError(
            f"{hub.endpoint} gave no usable {about}",
            f"its answer is not JSON ({error}).",
            "Check model.endpoint: is this a ModelScope hub, or a proxy's login page?",
            body[:300].decode(errors="replace").splitlines(),
        ) from error
    if not isinstance(document, dict) or document.get("Code", 200) != 200:
        code = document.get("Code") if isinstance(document, dict) else None
        message = document.get("Message") if isinstance(document, dict) else document
        raise HostError(
            f"{hub.endpoint} does not give {about}",
            f"it says {message!r} (code {code}).",
            "Check model.id, model.revision and model.token.",
        )
    return document.get("Data")


def _model_path(model_id: str) -> str:
    return "/api/v1/models/" + urllib.parse.quote(model_id)


def revisions(hub: Hub, model_id: str) -> list[str]:
    """The branches and tags of a model, in the hub's order."""
    about = f"revisions of {model_id}"
    data = _json_data(get(hub, _model_path(model_id) + "/revisions", {}, about), hub, about)
    found = data.get("RevisionMap") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise HostError(
            f"{hub.endpoint} gave no usable {about}",
            "its answer has no Data.RevisionMap.",
            "Check model.endpoint: is this a ModelScope hub?",
        )
    entries = [*(found.get("Branches") or []), *(found.get("Tags") or [])]
    return [
        entry["Revision"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("Revision"), str)
    ]


def listing(hub: Hub, model_id: str, revision: str) -> Listing:
    """All files of a model at a revision, fit to be checked against."""
    about = f"listing of {model_id} at {revision}"
    query = {"Revision": revision, "Recursive": "True"}
    body = get(hub, _model_path(model_id) + "/repo/files", query, about)
    return parse_listing(_json_data(body, hub, about), f"{model_id} at {revision}")


def small_file(hub: Hub, model_id: str, revision: str, entry: FileEntry) -> bytes:
    """A file's content, verified against the listing. For config.json and the index only."""
    about = f"{entry.path} of {model_id} at {revision}"
    query = {"Revision": revision, "FilePath": entry.path}
    body = get(hub, _model_path(model_id) + "/repo", query, about)
    found = hashlib.sha256(body).hexdigest()
    if len(body) != entry.size_bytes or found != entry.sha256:
        raise HostError(
            f"{about} does not match the hub's own listing",
            f"listed {entry.size_bytes} bytes, SHA-256 {entry.sha256}; got {len(body)} bytes, "
            f"{found}.",
            "Try again; if it stays so the hub or a proxy on the way is broken.",
        )
    return body
