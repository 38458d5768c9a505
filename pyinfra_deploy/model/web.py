"""HTTP as hubs need it: a token that never leaves its host, patience with servers that stumble."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from pyinfra_deploy.model.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_SECONDS = 30.0
RETRY_DELAYS_SECONDS = (1.0, 3.0, 8.0)
# Listings of 3000 files are under 2 MB, an index of 94 layers with 128 experts some 10 MB.
LARGEST_ANSWER_BYTES = 256 << 20
_SERVER_ERROR = 500


@dataclass(frozen=True)
class Server:
    """Where requests go (scheme://host[:port][/prefix], no slash at its end), and with what."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    # Older paths of ModelScope know only its cookie (modelscope 1.40.2 sends both).
    cookie: str | None = None

    @property
    def host(self) -> str:
        return urllib.parse.urlsplit(self.endpoint).hostname or self.endpoint


@dataclass(frozen=True)
class Answer:
    """url: after redirects."""

    body: bytes
    headers: Mapping[str, str]
    url: str


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Hubs redirect to CDNs; the token goes along only to the same scheme, host and port."""

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
        if following is not None:
            # urllib makes a GET of every other method.
            following.method = req.get_method()
            if origin(req.full_url) != origin(newurl):
                for name in ("Authorization", "Cookie"):
                    following.remove_header(name)
        return following


def origin(url: str) -> tuple[str, str]:
    """Whom a token belongs to."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def check_endpoint(endpoint: str) -> str:
    """The endpoint without a slash at its end; Refused unless it is a plain HTTP address."""
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(
            f"{endpoint!r} is not an address that could be asked",
            "it must begin with https:// or http:// and name a host.",
            "write https://www.modelscope.cn or the like.",
        )
    if parts.username or parts.password:
        raise Refused(
            f"the address of {parts.hostname} carries a user name or password",
            "it would be written into the lock.",
            "take it out, and give a token (model.token, or the environment).",
        )
    return endpoint.rstrip("/")


def get(server: Server, path: str, about: str, method: str = "GET") -> Answer:
    """Ask below the endpoint, or at `path` where that is a whole URL of the same host. Servers'
    errors and broken connections are tried again three times. about: in words. Raises Refused."""
    url = path if path.startswith(("http://", "https://")) else server.endpoint + path
    for delay_seconds in (*RETRY_DELAYS_SECONDS, None):
        try:
            return _open(server, url, method)
        except urllib.error.HTTPError as error:
            if error.code < _SERVER_ERROR or delay_seconds is None:
                raise _answered(server, error, about) from error
        except (OSError, http.client.HTTPException) as error:
            if delay_seconds is None:
                raise _unreachable(server, error, about) from error
        time.sleep(delay_seconds)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _open(server: Server, url: str, method: str) -> Answer:
    request = urllib.request.Request(  # noqa: S310 - check_endpoint allows http and https alone
        url, method=method, headers={"User-Agent": "fleet"}
    )
    if server.token and origin(url) == origin(server.endpoint):
        request.add_header("Authorization", f"Bearer {server.token}")
        if server.cookie:
            request.add_header("Cookie", f"{server.cookie}={server.token}")
    with urllib.request.build_opener(_Redirects()).open(request, timeout=TIMEOUT_SECONDS) as answer:
        body: bytes = answer.read(LARGEST_ANSWER_BYTES + 1)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        came_from = str(answer.url)
    announced = headers.get("content-length", "")
    if len(body) > LARGEST_ANSWER_BYTES:
        raise Refused(
            f"{url} answers with more than {LARGEST_ANSWER_BYTES >> 20} MiB",
            "no listing or small file is that large.",
            "check the address.",
        )
    if method == "GET" and announced.isdigit() and len(body) < int(announced):
        raise http.client.IncompleteRead(body, int(announced) - len(body))
    return Answer(body, headers, came_from)


def json_of(answer: Answer, server: Server, about: str) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise Refused(
            f"{server.endpoint} gives no usable {about}",
            f"its answer is not JSON ({error}).",
            "check the address: is this the hub, or a proxy's login page?",
            answer.body[:300].decode(errors="replace").splitlines(),
        ) from error


def _answered(server: Server, error: urllib.error.HTTPError, about: str) -> Refused:
    body = error.read(2000).decode(errors="replace").splitlines()[:10]
    if error.code in (401, 403):
        return Refused(
            f"{server.endpoint} refuses {about}",
            f"it answered {error.code}: "
            + ("the token is not accepted." if server.token else "it wants a token."),
            "set model.token (or MODELSCOPE_API_TOKEN, HF_TOKEN) to a token that may read it; for "
            "a gated model its terms have to be accepted on its page first.",
            body,
        )
    if error.code == 404:
        return Refused(
            f"{server.endpoint} has no {about}",
            "it answered 404.",
            "check the name and the revision, upper and lower case count; for a private model "
            "some hubs answer 404 where the token is missing.",
            body,
        )
    times = f", {len(RETRY_DELAYS_SECONDS) + 1} times" if error.code >= _SERVER_ERROR else ""
    return Refused(
        f"{server.endpoint} does not give {about}",
        f"it answered {error.code}{times}.",
        "the trouble is the server's: try again later, or use another endpoint.",
        body,
    )


def _unreachable(server: Server, error: Exception, about: str) -> Refused:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return Refused(
        f"{server.endpoint} cannot be asked for {about}",
        f"{type(reason).__name__}: {reason}, {len(RETRY_DELAYS_SECONDS) + 1} times.",
        f"try `curl -v {server.endpoint}` on this machine: name resolution of {server.host}, "
        "route, firewall, proxy (https_proxy), certificate. A machine with internet can make the "
        "lock too: it is a file.",
    )
