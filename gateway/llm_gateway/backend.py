"""One engine as the gateway sees it: its connections, what it is doing, whether it may be used."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from .breaker import Breaker
from .routing import Candidate
from .serves import in_force
from .sockets import to_another_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .config import BackendConfig, Health, Tls
    from .serves import Serves


log = logging.getLogger("llm_gateway")

# Below the 5 s after which vLLM's server (uvicorn) closes an idle connection: a POST sent into a
# connection that is just being closed could not be repeated safely.
KEEPALIVE_SECONDS = 3.0
KV_MAX_AGE_SECONDS = 1.0
_MAX_METRICS_BYTES = 8 * 1024 * 1024
# vllm:kv_cache_usage_perc is from 0 to 1; before vLLM 0.12 it was vllm:gpu_cache_usage_perc.
_KV = re.compile(rb"^vllm:(?:kv|gpu)_cache_usage_perc(?:\{[^}\n]*\})? ([0-9.eE+-]+)", re.MULTILINE)


class Backend:
    """Its configuration may be replaced while it serves; its address may not."""

    def __init__(self, config: BackendConfig, health: Health) -> None:
        # In force: what was configured, with what the engine itself says it serves.
        self.config = config
        self.serves: Serves | None = None
        self._configured = config
        self.breaker = Breaker(health.failures, health.open_seconds, health.max_open_seconds)
        self.outstanding = 0
        self.work = 0.0
        self.picked = 0
        self.remote_draining = False
        self.draining = False
        # When a request was refused because it drains: an older /ready knows less.
        self.refused_at = float("-inf")
        self.retired = False
        # What its /tokenize said last, for when the configuration does not say.
        self.told_max_model_len: int | None = None
        # When a byte last came from it: a busy engine needs no probe.
        self.alive_at = float("-inf")
        self.probe_wanted = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        # Those with certificates from before a renewal, until their last request is over.
        self._former: list[aiohttp.ClientSession] = []
        self._certificates: tuple[int, ...] = ()
        self._urls: dict[str, URL] = {}
        self._kv_percent: float | None = None
        self._kv_at = float("-inf")
        self._kv_refresh: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[object, ...]:
        """What makes it this engine and no other."""
        return address_of(self.config)

    @property
    def max_model_len(self) -> int | None:
        return self.config.max_model_len or self.told_max_model_len

    def configure(self, config: BackendConfig) -> None:
        """Take up another configuration of the same engine."""
        self._configured = config
        self.config = in_force(config, self.serves)

    def heard(self, serves: Serves | None) -> bool:
        """Take note of what the engine says that it serves; whether that is news."""
        if serves == self.serves:
            return False
        self.serves = serves
        self.told_max_model_len = None
        self.configure(self._configured)
        return True

    def refused_to_begin(self) -> None:
        """A request came back because its host drains, before /ready could tell: not a failure."""
        self.refused_at = time.monotonic()
        self.remote_draining = self.draining = True

    def set_health(self, health: Health) -> None:
        self.breaker.set_limits(health.failures, health.open_seconds, health.max_open_seconds)

    def look_at_flag(self) -> None:
        """Notice the drain flag of this host; one stat(2)."""
        flag = self.config.drain_flag
        self.draining = self.remote_draining or (flag is not None and Path(flag).exists())

    def has_room(self) -> bool:
        return self.outstanding < self.config.max_concurrent

    def candidate(self) -> Candidate:
        return Candidate(self.config.name, self.work, self.config.max_concurrent, self.picked)

    def session(self) -> aiohttp.ClientSession:
        """The connections to it, opened on first use."""
        if self._session is None:
            config = self.config
            connector: aiohttp.BaseConnector
            if config.socket is not None:
                connector = aiohttp.UnixConnector(
                    config.socket, limit=0, keepalive_timeout=KEEPALIVE_SECONDS
                )
            else:
                assert config.tls is not None
                self._certificates = _changed_at(config.tls)
                connector = aiohttp.TCPConnector(
                    limit=0,
                    keepalive_timeout=KEEPALIVE_SECONDS,
                    ssl=client_context(config.tls),
                    socket_factory=to_another_host,
                )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    async def request(
        self,
        method: str,
        path: str,
        *,
        connect_seconds: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request and wait for the answer's headers; the caller closes or releases it."""
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = URL(self.config.url + path, encoded=True)
        tls = self.config.tls
        return await self.session().request(
            method,
            url,
            data=body,
            headers=headers,
            allow_redirects=False,
            server_hostname=tls.server_name if tls else None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
        )

    def look_at_certificates(self) -> None:
        """After a renewal new connections use the new files; streams go on as they are."""
        tls = self.config.tls
        if tls is None or self._session is None or _changed_at(tls) == self._certificates:
            return
        try:
            client_context(tls)
        except (OSError, ssl.SSLError) as error:
            # Half of a renewal: looked at again in half a second.
            log.warning("engine %s: its TLS files cannot be used yet: %s", self.config.name, error)
            return
        self._former.append(self._session)
        self._session = None

    async def close_former(self) -> None:
        """Close connections of before a renewal, when nothing runs that could be on them."""
        if self._former and not self.outstanding:
            former, self._former = self._former, []
            for session in former:
                await session.close()

    async def close(self) -> None:
        if self._kv_refresh is not None:
            self._kv_refresh.cancel()
        for session in (*self._former, *([self._session] if self._session is not None else [])):
            await session.close()

    def start_kv_refresh(self) -> None:
        """Begin to read the cache's use, unless it is fresh or being read already."""
        fresh = time.monotonic() - self._kv_at < KV_MAX_AGE_SECONDS
        if not fresh and (self._kv_refresh is None or self._kv_refresh.done()):
            self._kv_refresh = asyncio.ensure_future(self._read_kv())

    async def kv_percent(self, wait_seconds: float) -> float | None:
        """The use of the KV cache in percent, at most a second old; None when it is not known."""
        self.start_kv_refresh()
        if self._kv_refresh is not None and not self._kv_refresh.done():
            await asyncio.wait({self._kv_refresh}, timeout=wait_seconds)
        return self.known_kv_percent()

    def known_kv_percent(self) -> float | None:
        fresh = time.monotonic() - self._kv_at < KV_MAX_AGE_SECONDS
        return self._kv_percent if fresh else None

    async def _read_kv(self) -> None:
        try:
            async with asyncio.timeout(KV_MAX_AGE_SECONDS):
                response = await self.request("GET", "/metrics", connect_seconds=1.0)
                async with response:
                    text = await response.content.read(_MAX_METRICS_BYTES)
                    while part := await response.content.read(_MAX_METRICS_BYTES):
                        text += part
                        if len(text) > _MAX_METRICS_BYTES:
                            return
        except (aiohttp.ClientError, OSError, TimeoutError):
            return  # known_kv_percent() says that it is not known
        self._kv_percent = read_kv_percent(text)
        self._kv_at = time.monotonic()


def read_kv_percent(metrics: bytes) -> float | None:
    """The mean over an engine's data-parallel ranks, in percent with one decimal."""
    values = []
    for match in _KV.finditer(metrics):
        try:
            values.append(float(match[1]))
        except ValueError:
            return None
    return round(100 * sum(values) / len(values), 1) if values else None


def address_of(config: BackendConfig) -> tuple[object, ...]:
    return (config.name, config.url, config.socket, config.tls)


def _changed_at(tls: Tls) -> tuple[int, ...]:
    """When each file was last changed, in ns; -1 for one that is not there."""
    found = []
    for path in (tls.ca, tls.certificate, tls.key):
        try:
            found.append(Path(path).stat().st_mtime_ns)
        except OSError:
            found.append(-1)
    return tuple(found)


def client_context(tls: Tls) -> ssl.SSLContext:
    """Mutual TLS under the inventory's own CA alone."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca)
    context.load_cert_chain(tls.certificate, tls.key)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
