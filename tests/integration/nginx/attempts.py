"""Attempts to get something out of an engine without a valid key, made up by rule.

Each is bytes on a connection of its own. The good key occurs in some of them, in places where it is
none: what takes it from there would be wrong as well.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.integration.nginx.full_mode import MODEL, chat

if TYPE_CHECKING:
    from collections.abc import Iterator

LISTED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
    *("/v1/models", "/tokenize"),
)
UNLISTED = (
    *("/", "/metrics", "/ready", "/auth", "/version", "/load", "/ping", "/invocations", "/docs"),
    *("/openapi.json", "/detokenize", "/pooling", "/rerank", "/score", "/classify", "/v1/load"),
    *("/v1/audio/transcriptions", "/v2/rerank", "/reset_prefix_cache", "/sleep", "/wake_up"),
    *("/collective_rpc", "/_llm/auth", "/_llm/bad_request", "/@no_decision", "/v1/messages"),
    *("/nginx_status", "/stub_status", "/.well-known/acme-challenge/x", "/v1/fine-tuning"),
)
METHODS = (
    *(b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"TRACE", b"post", b"CONNECT"),
    *(b"MOVE", b"PROPFIND", b"X" * 40, b"G\tET"),
)
BODY = chat()
TYPE = b"Content-Type: application/json\r\n"


@dataclass(frozen=True)
class Attempt:
    """plain: to the HTTP port instead of HTTPS."""

    name: str
    data: bytes
    plain: bool = False


def head(method: bytes, target: bytes, *lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    known = b"Host: llm.example.com\r\nConnection: close\r\n"
    return method + b" " + target + b" " + version + b"\r\n" + known + b"".join(lines) + b"\r\n"


def request(target: bytes, *lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    """What the engine would answer, but for the key."""
    if target.split(b"?")[0].endswith((b"models", b"metrics", b"ready")):
        return head(b"GET", target, *lines, version=version)
    length = b"Content-Length: %d\r\n" % len(BODY)
    return head(b"POST", target, TYPE, length, *lines, version=version) + BODY


def spellings(path: str) -> Iterator[bytes]:
    """Other ways to write a path, some of which some servers take for it."""
    plain, last = path.encode(), path.rsplit("/", 1)[-1].encode()
    start = plain[: -len(last)]
    first = b"%%%02x" % last[0]
    yield from (
        plain + end
        for end in (
            *(
                b"/",
                b"//",
                b".",
                b"..",
                b"/.",
                b"/..",
                b"/../" + last,
                b";",
                b";x=1",
                b"%20",
                b"%00",
            ),
            *(b"%09", b"%0d%0a", b"%3f", b"?", b"#", b"#x", b"?x=/../../metrics", b".json", b"~"),
            *(b"\\", b"%5c", b"%2f", b"%252f", b"/x", b":", b"@", b"*", b"$", b"&", b"=", b"'"),
        )
    )
    yield from (
        *(b"/" + plain, b"//llm.example.com" + plain, b"/." + plain, b"/x/.." + plain),
        *(b"/%2e" + plain, b"/%2e%2e" + plain, b"/health/.." + plain, b"/health%2f.." + plain),
        *(b"/health/..;" + plain, b"/_llm/auth" + plain, plain.upper(), plain.title()),
        *(start + first + last[1:], start + first.upper() + last[1:], start + b"%25" + first[1:]),
        *(start + b"/" + last, start + b"./" + last, start + b"%2f" + last, start + b"\\" + last),
        *(b"http://llm.example.com" + plain, b"https://llm.example.com:443" + plain),
        *(b"http://engine" + plain, b"http://127.0.0.1" + plain, b"http://unix:/run/x" + plain),
        *(b"ftp://x" + plain, b"llm.example.com" + plain, b"//" + plain[1:], plain[1:], b"*"),
    )


def identities(good: bytes) -> Iterator[bytes]:
    """Header lines that are no valid key."""
    wrong = b"sk-" + b"a" * 51
    values = (
        *(b"", b"Bearer", b"Bearer ", b"Bearer null", b"Bearer " + wrong, good, b"Basic " + good),
        *(b"Token " + good, b"Bearer " + good[:-1], b"Bearer " + good + b"x", b"Bearer x" + good),
        *(b"Bearer " + good + b", Bearer " + good, b"Bearer " + good.swapcase()),
        *(b"Bearer " + good[:30] + b" " + good[30:], b'Bearer "' + good + b'"', b"Bearer\t" + good),
        *(b"Bearer=" + good, b"Bearer:" + good, b"Bearer " + good + b"\x00", b"Bearer sk-\xe9"),
        *(b"Bearer " + b"a" * 4000, b"Bearer " + good * 20, b"Bearer %73k-" + good[3:]),
        *(b"Bearer " + good + b";", b"Bearer " + good + b" x", b"Digest " + good, b"Negotiate x"),
    )
    yield from (b"Authorization: " + value + b"\r\n" for value in values)
    names = (
        *(b"X-Api-Key", b"Api-Key", b"X-Authorization", b"Proxy-Authorization", b"X-Key-Id"),
        *(b"X-Forwarded-Authorization", b"Authorization2", b"X-Access-Token", b"X-Goog-Api-Key"),
        b"Authorization_",
    )
    yield from (name + b": Bearer " + good + b"\r\n" for name in names)
    yield from (
        b"Cookie: Authorization=Bearer " + good + b"\r\n",
        b"Authorization : Bearer " + good + b"\r\n",
        b" Authorization: Bearer " + good + b"\r\n",
        b"Authorization:\r\n Bearer " + good + b"\r\n",
        b"X: y\rAuthorization: Bearer " + good + b"\r\n",
        b"Authorization: Bearer " + good + b"\r\nAuthorization: Bearer " + wrong + b"\r\n",
        b"Authorization: Bearer " + wrong + b"\r\nAuthorization: Bearer " + good + b"\r\n",
        b"Authorization: Bearer " + good + b"\r\nAuthorization: Bearer " + good + b"\r\n",
        b"Auth\x00orization: Bearer " + good + b"\r\n",
    )


TRICKS = (
    *(
        b"X-Original-URL: /metrics\r\n",
        b"X-Rewrite-URL: /health\r\n",
        b"X-Original-URI: /health\r\n",
    ),
    *(
        b"X-Accel-Redirect: /_llm/auth\r\n",
        b"X-Forwarded-For: 127.0.0.1\r\n",
        b"X-Real-IP: ::1\r\n",
    ),
    *(b"X-Forwarded-Host: engine\r\n", b"Forwarded: for=127.0.0.1\r\n", b"Host: engine\r\n"),
    *(b"Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",),
    *(
        b"Connection: Authorization\r\n",
        b"Connection: X-Request-Id\r\n",
        b"Expect: 100-continue\r\n",
    ),
    *(b"X-HTTP-Method-Override: GET\r\n", b"X-Method-Override: OPTIONS\r\n", b"X-Key-Name: a\r\n"),
    *(b"X-Data-Parallel-Rank: 0\r\n", b"Range: bytes=0-10\r\n", b"Via: 1.1 gateway\r\n"),
    *(b"Content-Encoding: gzip\r\n", b"Access-Control-Request-Method: POST\r\nOrigin: null\r\n"),
    *(b"X: " + b"a" * 9000 + b"\r\n", b"".join(b"X%d: y\r\n" % n for n in range(400))),
    *(b"Content-Type: text/plain\r\n", b"Accept: text/event-stream\r\n", b"TE: trailers\r\n"),
)


def smuggled() -> Iterator[tuple[str, bytes]]:
    """Requests whose end two parsers may see at different places, with another one behind it."""
    inner = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        + TYPE
        + (b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    )
    outers = [
        (b"POST", b"/v1/completions"), (b"GET", b"/health"), (b"OPTIONS", b"/v1/models"),
        (b"GET", b"/nowhere"), (b"POST", b"/health"),
    ]  # fmt: skip
    lengths = (
        *(b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",),
        *(b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",),
        *(b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(inner),),
        *(b"Content-Length: %d\r\nContent-Length: 0\r\n" % len(inner),),
        *(b"Content-Length: +0\r\n", b"Content-Length: -1\r\n", b"Content-Length: 0x10\r\n"),
        *(b"Content-Length: 0, 4\r\n", b"Content-Length:\r\n", b"Content-Length: 9" * 40 + b"\r\n"),
        *(b"Content-Length : 0\r\n", b"Content-Length: 0\r\nContent_Length: 9\r\n"),
        *(b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding : chunked\r\n"),
        *(b"Transfer-Encoding: chunked, identity\r\n", b"Transfer-Encoding: identity\r\n"),
        *(
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
            b"Transfer-Encoding:\tchunked\r\n",
        ),
        *(b"Transfer-Encoding: \x0bchunked\r\n", b"Transfer-Encoding:\r\n chunked\r\n"),
        *(b"Transfer-Encoding: CHUNKED\r\n", b"Transfer-Encoding: gzip, chunked\r\n"),
        *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: %d\r\n" % len(inner), b""),
    )
    starts = (
        b"0\r\n\r\n",
        b"",
        b"0;x=\r\ny\r\n\r\n",
        b"1\r\nZ\r\n0\r\n\r\n",
        b"%x\r\n" % len(inner),
    )
    for (method, target), length, start in itertools.product(outers, lengths, starts):
        line = method + b" " + target + b" HTTP/1.1\r\nHost: llm.example.com\r\n"
        yield (
            f"smuggled behind {method!r} {target!r} {length[:60]!r} {start!r}",
            (line + length + b"\r\n" + start + inner),
        )


def attempts(key: str) -> list[Attempt]:
    """All of them; the same each time for the same key."""
    good = key.encode()
    found: list[Attempt] = []

    def add(name: str, data: bytes, *, plain: bool = False) -> None:
        found.append(Attempt(name, data, plain))

    for path in (*LISTED, *UNLISTED):
        target = path.encode()
        for method in METHODS:
            add(f"{method!r} {path}", head(method, target))
        for version in (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.10", b"HTTP/1", b"", b"X"):
            add(f"{version!r} {path}", request(target, version=version))
        add(f"a line alone {path}", b"GET " + target + b"\r\n\r\n")
        add(f"the key in the query {path}", request(target + b"?api_key=" + good))
        add(f"over plain HTTP {path}", request(target), plain=True)
        bearer = b"Authorization: Bearer " + good + b"\r\n"
        add(f"with a good key over plain HTTP {path}", request(target, bearer), plain=True)
    for path in LISTED:
        for spelling in spellings(path):
            add(f"{path} as {spelling!r}", request(spelling))
        for line in identities(good):
            add(f"{path} with {line[:70]!r}", request(path.encode(), line))
        for trick in TRICKS:
            add(f"{path} with {trick[:70]!r}", request(path.encode(), trick))
    for path in ("/metrics", "/ready", "/auth", "/_llm/auth"):
        # Addresses that are for nobody: not with a good key either.
        bearer = b"Authorization: Bearer " + good + b"\r\n"
        add(f"{path} with a good key", request(path.encode(), bearer))
        for spelling in spellings(path):
            add(f"{path} as {spelling!r} with a good key", request(spelling, bearer))
    for name, data in smuggled():
        add(name, data)
    document = {"model": MODEL, "prompt": "x", "api_key": key, "authorization": f"Bearer {key}"}
    body = json.dumps(document).encode()
    length = b"Content-Length: %d\r\n" % len(body)
    add("the key in the body", head(b"POST", b"/v1/completions", TYPE, length) + body)
    return found
