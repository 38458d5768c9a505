"""The configuration of mode `full`; its JSON shape is in the package's docstring.

Read strictly: a field that is not known may be a restriction, so the file is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .fields import ConfigError, Fields, object_without_duplicates

SCHEMA = 1
MAX_FILE_BYTES = 4 * 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Tls:
    """Files of mutual TLS towards an engine's host. server_name: None takes the URL's."""

    ca: str
    certificate: str
    key: str
    server_name: str | None


@dataclass(frozen=True)
class BackendConfig:
    """One engine. socket: a Unix socket's path, or None when url is https."""

    name: str
    url: str
    socket: str | None
    tls: Tls | None
    models: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...]
    max_model_len: int | None
    drain_flag: str | None
    ready_path: str | None
    priority_scheduling: bool
    max_concurrent: int

    def served_name(self, model: str) -> str | None:
        """The engine's own name of a model that clients call `model`; None: not served here."""
        return model if model in self.models else dict(self.aliases).get(model)


@dataclass(frozen=True)
class Tier:
    weight: float
    priority: int


@dataclass(frozen=True)
class Admission:
    max_body_bytes: int
    body_seconds: float
    max_depth: int
    count_tokens: bool
    tokenize_seconds: float
    expose_tokenize: bool
    allowed_parameters: frozenset[str] | None
    maxima: dict[str, float]


@dataclass(frozen=True)
class Health:
    interval_seconds: float
    timeout_seconds: float
    failures: int
    open_seconds: float
    max_open_seconds: float


@dataclass(frozen=True)
class Timeouts:
    connect_seconds: float
    first_byte_seconds: float
    between_bytes_seconds: float


@dataclass(frozen=True)
class AuthConfig:
    """An organisation's own auth service, which decides instead of the key files."""

    url: str
    ca: str | None
    connect_seconds: float
    answer_seconds: float


@dataclass(frozen=True)
class Config:
    backends: tuple[BackendConfig, ...]
    tiers: dict[str, Tier]
    default_tier: str
    max_waiting: int
    max_wait_seconds: float
    admission: Admission
    prefix_bytes: int
    balance_factor: float
    health: Health
    timeouts: Timeouts
    kv_cache: bool
    revoked_streams: str
    auth: AuthConfig | None
    stop_seconds: float
    models: frozenset[str] = field(default=frozenset())

    def tier(self, name: str | None) -> str:
        """The tier in force for a key that has `name` as its tier."""
        return name if name is not None and name in self.tiers else self.default_tier


def parse_config(content: bytes) -> Config:
    """Read a configuration. Raises ConfigError, whose text says where and what."""
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"it is larger than {MAX_FILE_BYTES} bytes")
    try:
        document = json.loads(content, object_pairs_hook=object_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is not valid JSON ({error})") from error
    top = Fields(document, "")
    if top.whole("schema", None) != SCHEMA:
        raise ConfigError(f"schema must be {SCHEMA}: this version of the service reads no other")
    backends = tuple(_backend(part) for part in top.objects("backends"))
    if not backends:
        raise ConfigError("backends must name at least one engine")
    names = [backend.name for backend in backends]
    if len(set(names)) != len(names):
        raise ConfigError("backends: two have the same name")
    tiers = _tiers(top)
    default_tier = top.text("default_tier", "default")
    if default_tier not in tiers:
        raise ConfigError(f"default_tier {default_tier!r} is none of tiers: {', '.join(tiers)}")
    queue, affinity, usage = top.part("queue"), top.part("affinity"), top.part("usage")
    config = Config(
        backends=backends,
        tiers=tiers,
        default_tier=default_tier,
        max_waiting=queue.whole("max_waiting", 256),
        max_wait_seconds=queue.positive("max_wait_seconds", 60),
        admission=_admission(top.part("admission")),
        prefix_bytes=affinity.whole("prefix_bytes", 0),
        balance_factor=affinity.at_least("balance_factor", 1.25, 1),
        health=_health(top.part("health")),
        timeouts=_timeouts(top.part("timeouts")),
        kv_cache=usage.flag("kv_cache", False),
        revoked_streams=_revoked_streams(top),
        auth=_auth(top.part("auth")) if top.has("auth") else None,
        stop_seconds=top.positive("stop_seconds", 120),
        models=names_of(backends),
    )
    for part in (queue, affinity, usage, top):
        part.done()
    return config


def names_of(backends: tuple[BackendConfig, ...]) -> frozenset[str]:
    """All names under which clients may ask for a model, aliases too."""
    return frozenset(
        name
        for backend in backends
        for name in (*backend.models, *(alias for alias, _ in backend.aliases))
    )


def _backend(part: Fields) -> BackendConfig:
    name, url = part.text("name", None), part.text("url", None)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{part.at('name')} must be letters, digits, dots, '_' and '-'")
    socket = _socket(part, url)
    tls = None
    if part.has("tls"):
        files = part.part("tls")
        tls = Tls(
            ca=files.text("ca", None),
            certificate=files.text("certificate", None),
            key=files.text("key", None),
            server_name=files.optional_text("server_name"),
        )
        files.done()
    if (tls is None) != (socket is not None):
        raise ConfigError(f"{part.at('tls')} is for https alone, and needed there")
    models = part.texts("models")
    aliases = part.mapping("aliases")
    if not models:
        raise ConfigError(f"{part.at('models')} must name at least one model")
    for alias, model in aliases.items():
        if model not in models:
            raise ConfigError(f"{part.at('aliases')}.{alias} must be one of this backend's models")
        if alias in models:
            raise ConfigError(f"{part.at('aliases')}.{alias} is itself a model")
    found = BackendConfig(
        name=name,
        url=url if socket is None else "http://engine",
        socket=socket,
        tls=tls,
        models=models,
        aliases=tuple(sorted((alias, str(model)) for alias, model in aliases.items())),
        max_model_len=part.whole("max_model_len", 1, 1) if part.has("max_model_len") else None,
        drain_flag=part.optional_text("drain_flag"),
        ready_path=part.optional_text("ready_path"),
        priority_scheduling=part.flag("priority_scheduling", False),
        max_concurrent=part.whole("max_concurrent", 256, 1),
    )
    part.done()
    return found


def _socket(part: Fields, url: str) -> str | None:
    """The path in unix:PATH, or None for an https URL without a path."""
    if url.startswith("unix:/"):
        return url.removeprefix("unix:")
    try:
        parsed = urlsplit(url)
        fits = parsed.scheme == "https" and parsed.hostname and parsed.port is not None
    except ValueError:
        fits = False
    if not fits or parsed.path or parsed.query or parsed.username is not None:
        # Plain HTTP never leaves a host.
        raise ConfigError(f"{part.at('url')} must be unix:/PATH or https://HOST:PORT")
    return None


def _revoked_streams(top: Fields) -> str:
    found = top.text("revoked_streams", "finish")
    if found not in ("finish", "end"):
        raise ConfigError("revoked_streams must be finish or end")
    return found


def _auth(part: Fields) -> AuthConfig:
    url = part.text("url", None)
    try:
        parsed = urlsplit(url)
        fits = parsed.scheme == "https" and parsed.hostname and parsed.port != 0
    except ValueError:
        fits = False
    if not fits or parsed.username is not None or parsed.fragment:
        # Keys never leave a host in the clear.
        raise ConfigError(f"{part.at('url')} must be an https URL without a password in it")
    found = AuthConfig(
        url=url,
        ca=part.optional_text("ca"),
        connect_seconds=part.positive("connect_seconds", 2),
        answer_seconds=part.positive("answer_seconds", 3),
    )
    part.done()
    return found


def _tiers(top: Fields) -> dict[str, Tier]:
    tiers = {}
    for name in top.names("tiers", ("default",)):
        part = top.part("tiers").part(name) if top.has("tiers") else Fields({}, "tiers.default")
        tiers[name] = Tier(part.positive("weight", 100), part.signed("priority", 0))
        part.done()
    if not tiers:
        raise ConfigError("tiers must have at least one tier")
    return tiers


def _admission(part: Fields) -> Admission:
    allowed = part.texts("allowed_parameters") if part.has("allowed_parameters") else None
    maxima = part.part("maxima")
    found = Admission(
        max_body_bytes=part.whole("max_body_bytes", 16 * 1024 * 1024, 1),
        body_seconds=part.positive("body_seconds", 30),
        max_depth=part.whole("max_depth", 64, 1),
        count_tokens=part.flag("count_tokens", True),
        tokenize_seconds=part.positive("tokenize_seconds", 5),
        expose_tokenize=part.flag("expose_tokenize", False),
        allowed_parameters=None if allowed is None else frozenset(allowed),
        maxima={name: maxima.at_least(name, None, 0) for name in part.names("maxima", ())},
    )
    part.done()
    return found


def _health(part: Fields) -> Health:
    found = Health(
        interval_seconds=part.at_least("interval_seconds", 15, 0),
        timeout_seconds=part.positive("timeout_seconds", 10),
        failures=part.whole("failures", 3, 1),
        open_seconds=part.positive("open_seconds", 5),
        max_open_seconds=part.positive("max_open_seconds", 60),
    )
    part.done()
    return found


def _timeouts(part: Fields) -> Timeouts:
    found = Timeouts(
        connect_seconds=part.positive("connect_seconds", 5),
        first_byte_seconds=part.positive("first_byte_seconds", 600),
        between_bytes_seconds=part.positive("between_bytes_seconds", 300),
    )
    part.done()
    return found
