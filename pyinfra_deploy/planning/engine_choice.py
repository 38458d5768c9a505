"""engine.args as planning reads them: what the operator chose, and vLLM's defaults for the rest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 2**30
# vLLM's own default of gpu-memory-utilization: 0.9, and 0.92 in recorded starts from 0.22.1 on and
# in the source of 0.33.0. Graph memory is part of the profile since 0.21.0 (its log says so), and
# the default was raised to make up for it.
RAISED_UTILIZATION = Version("0.21.0")
V1_ENGINE = Version("0.8.0")
_SCALES = {"k": 1_000, "m": 1_000_000, "K": 1_024, "M": 1_048_576}
_POOLING_TASKS = ("embed", "embedding", "classify", "score", "reward")
_MTP = frozenset({"mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "glm4_moe_mtp"})


@dataclass(frozen=True)
class Speculation:
    """--speculative-config. own_layers: MTP layers of the checkpoint itself. draft_layers: layers
    of a draft that the KV cache grows by (EAGLE: one); None when the draft is a model of which
    nothing is known here."""

    method: str
    tokens: int
    own_layers: bool
    draft_layers: int | None


@dataclass(frozen=True)
class EngineChoice:
    """What engine.args ask for. None: left to vLLM."""

    layout: Layout = field(default_factory=Layout)
    max_model_len: int | None = None
    utilization: float | None = None
    kv_cache_dtype: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    eager: bool = False
    speculation: Speculation | None = None
    quantization: str | None = None
    dtype: str = "auto"
    context_parallel: int = 1
    prefix_caching: bool | None = None
    kv_cache_memory_bytes: int | None = None
    offload_bytes: int = 0
    rope_override: bool = False
    pooling: bool = False

    def utilization_for(self, version: Version | None) -> float:
        if self.utilization is not None:
            return self.utilization
        return 0.9 if version is not None and version < RAISED_UTILIZATION else 0.92


def parse_version(text: str | None) -> Version | None:
    """A vLLM version, None where it is unknown or not one."""
    if not text:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        return None


def read_choice(
    args: Mapping[str, Any], host: str = ""
) -> tuple[EngineChoice, tuple[Finding, ...]]:
    """engine.args -> EngineChoice. A value of the wrong kind is a finding that refuses."""
    reader = _Arguments(args, host)
    layout = Layout(
        tensor=reader.count("tensor-parallel-size") or 1,
        pipeline=reader.count("pipeline-parallel-size") or 1,
        data=reader.count("data-parallel-size") or 1,
        expert=reader.flag("enable-expert-parallel"),
    )
    caching = reader.flag("enable-prefix-caching")
    choice = EngineChoice(
        layout=layout,
        max_model_len=reader.tokens("max-model-len"),
        utilization=reader.share("gpu-memory-utilization"),
        kv_cache_dtype=reader.text("kv-cache-dtype") or "auto",
        max_num_seqs=reader.count("max-num-seqs"),
        max_num_batched_tokens=reader.tokens("max-num-batched-tokens"),
        eager=reader.flag("enforce-eager"),
        speculation=reader.speculation(),
        quantization=reader.text("quantization"),
        dtype=reader.text("dtype") or "auto",
        context_parallel=reader.count("decode-context-parallel-size") or 1,
        prefix_caching=True
        if caching
        else (False if reader.flag("no-enable-prefix-caching") else None),
        kv_cache_memory_bytes=reader.count("kv-cache-memory-bytes"),
        offload_bytes=reader.gib("cpu-offload-gb"),
        rope_override=any(key in args for key in ("hf-overrides", "rope-scaling")),
        pooling=args.get("runner") == "pooling" or args.get("task") in _POOLING_TASKS,
    )
    return choice, tuple(reader.findings)


@dataclass
class _Arguments:
    args: Mapping[str, Any]
    host: str
    findings: list[Finding] = field(default_factory=list)

    def count(self, key: str) -> int | None:
        value = self.args.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**15:
            self._wrong(key, value, "a whole number, at least 1")
            return None
        return value

    def tokens(self, key: str) -> int | None:
        """16384, or 16k as vLLM reads it: k is 1,000 and K is 1,024. -1 and auto are vLLM's "as
        much as fits"."""
        value = self.args.get(key)
        if value in (None, -1, "auto"):
            return None
        if isinstance(value, str) and (match := re.fullmatch(r"([0-9.]+)([kKmM]?)", value)):
            try:
                return round(float(match[1]) * _SCALES.get(match[2], 1)) or None
            except ValueError:
                self._wrong(key, value, "a number of tokens")
                return None
        return self.count(key)

    def share(self, key: str) -> float | None:
        value = self.args.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            self._wrong(key, value, "above 0 and at most 1")
            return None
        return float(value)

    def gib(self, key: str) -> int:
        value = self.args.get(key)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 10**6:
            self._wrong(key, value, "a number of GiB")
            return 0
        return round(value * GIB)

    def flag(self, key: str) -> bool:
        return self.args.get(key) is True

    def text(self, key: str) -> str | None:
        value = self.args.get(key)
        if value is None or isinstance(value, str):
            return value
        self._wrong(key, value, "text")
        return None

    def speculation(self) -> Speculation | None:
        value = self.args.get("speculative-config")
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                self._wrong("speculative-config", value, "a mapping, or one written as JSON")
                return None
        if value is None:
            return None
        if not isinstance(value, dict):
            self._wrong("speculative-config", value, "a mapping")
            return None
        tokens = value.get("num_speculative_tokens")
        tokens = tokens if isinstance(tokens, int) and 0 < tokens < 1000 else 1
        method = str(value.get("method") or "draft_model").lower()
        own = method in _MTP or method.endswith("_mtp")
        layers = {"eagle": 1, "eagle3": 1, "ngram": 0, "suffix": 0, "medusa": 0}.get(method)
        return Speculation(method, tokens, own, 1 if own else layers)

    def _wrong(self, key: str, value: object, wanted: str) -> None:
        self.findings.append(
            Finding(
                id="engine.argument-value",
                severity="refuse",
                host=self.host,
                subject=f"engine.args.{key}",
                message=f"{key} must be {wanted}.",
                fix=f"correct {key} in engine.args.",
                evidence=f"{key}: {value!r}"[:120],
            )
        )


@dataclass(frozen=True)
class Batch:
    """What vLLM's memory profile runs: tokens in one step, requests in one sampling step. stated:
    the operator said so, not vLLM's defaults."""

    tokens: int
    requests: int
    requests_stated: bool


def batch_of(
    choice: EngineChoice, version: Version | None, gpu_name: str, gpu_bytes: int, context: int
) -> Batch:
    """The batch limits that will hold, by vLLM's defaults for this GPU.

    Source: EngineArgs.get_batch_defaults in 0.33.0: 16,384 tokens and 1,024 requests from 160 GiB,
    8,192 and 1,024 from 70 GiB unless it is an A100 or a GB10, else 2,048 and 256. V0 (before 0.8)
    ran a prompt of max-model-len tokens in one step up to a length of 32,768.
    """
    name = gpu_name.lower()
    large = gpu_bytes >= 70 * GIB and "a100" not in name
    if large and "gb10" in name and (version is None or version >= Version("0.30")):
        large = False
    tokens, requests = (8192, 1024) if large else (2048, 256)
    if version is not None and version < V1_ENGINE:
        tokens, requests = (max(context, 2048) if context <= 32768 else 2048), 256
    elif gpu_bytes >= 160 * GIB:
        tokens = 16384
    tokens = choice.max_num_batched_tokens or tokens
    return Batch(
        tokens=tokens,
        requests=min(choice.max_num_seqs or requests, tokens),
        requests_stated=choice.max_num_seqs is not None,
    )
