"""What a started vLLM says of its own memory, from its log lines.

The wording differs between versions 0.6 and 0.33; what is not there stays None. These figures
replace the estimate for the release and the GPU that they were taken from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

GIB = 2**30
# "Available KV cache memory: 5.62 GiB" (V1); "the rest of the memory reserved for KV Cache is
# 2.89GiB" and "available_kv_cache_memory    53.29GiB" (V0).
_AVAILABLE = re.compile(
    r"(?:Available KV cache memory:\s*|memory reserved for KV Cache is\s*"
    r"|available_kv_cache_memory[:=\s]+)(-?[0-9.]+)\s*(GiB|GB)",
    re.IGNORECASE,
)
# Of an engine on the CPU: "Auto set (5.62/31.2) GiB for KV cache on node 0" (cpu_worker.py).
_AVAILABLE_ON_CPU = re.compile(r"(?:Auto|Explicitly) set \(([0-9.]+)/[0-9.]+\)\s*(GiB)")
_WEIGHTS = re.compile(
    r"(?:loading (?:model )?(?:weights )?took|model weights take)\s*([0-9.]+)\s*(GiB|GB)",
    re.IGNORECASE,
)
_TOKENS = re.compile(r"KV cache size:\s*([0-9,]+)\s*tokens", re.IGNORECASE)
_BLOCKS = re.compile(r"#\s*(?:GPU|CUDA|cuda) blocks:\s*([0-9,]+)", re.IGNORECASE)
_CONCURRENCY = re.compile(
    r"Maximum concurrency for\s*([0-9,]+)\s*tokens per request:\s*([0-9.]+)x", re.IGNORECASE
)
_GRAPHS = re.compile(r"Graph capturing finished in .*?took\s*(-?[0-9.]+)\s*(GiB|GB)", re.IGNORECASE)
# "vLLM API server version" up to 0.1x, "vLLM server version" of 0.32; of the engine core in all.
_VERSION = re.compile(
    r"(?:vLLM (?:(?:API )?server |engine )?version |LLM engine \(v|vLLM \(v)"
    r"v?([0-9][0-9A-Za-z.+]*)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BLOCK_TOKENS = 16


@dataclass(frozen=True)
class EngineFigures:
    """Per GPU; of several workers the least memory and the most weights. weights_bytes: "Model
    loading took". available_bytes: for the KV cache. tokens: what the cache holds. concurrency:
    requests of max_model_len tokens."""

    vllm_version: str | None = None
    weights_bytes: float | None = None
    available_bytes: float | None = None
    tokens: int | None = None
    blocks: int | None = None
    concurrency: float | None = None
    max_model_len: int | None = None
    graph_bytes: float | None = None

    @property
    def complete(self) -> bool:
        """Whether the start got as far as allocating its cache."""
        return self.available_bytes is not None and (
            self.tokens is not None or self.concurrency is not None
        )


def read_engine_log(lines: Iterable[str] | str) -> EngineFigures:
    """The figures of the last start in a log: a line that loads a model begins a new one."""
    found: list[str] = []
    loaded = done = False
    for raw in lines.splitlines() if isinstance(lines, str) else lines:
        line = _COLOUR.sub("", raw)
        loading = _WEIGHTS.search(line) is not None
        if loading and loaded and done:
            found, done = [], False
        loaded = loaded or loading
        done = done or _TOKENS.search(line) is not None or _CONCURRENCY.search(line) is not None
        found.append(line)
    return _figures(found)


def _figures(lines: list[str]) -> EngineFigures:
    text = "\n".join(lines)
    concurrency = _CONCURRENCY.findall(text)
    tokens = [_whole(one) for one in _TOKENS.findall(text)]
    blocks = [_whole(one) for one in _BLOCKS.findall(text)]
    if not tokens and blocks:
        tokens = [one * _BLOCK_TOKENS for one in blocks]
    version = _VERSION.search(text)
    return EngineFigures(
        vllm_version=version[1].rstrip(".") if version else None,
        weights_bytes=max(_sizes(_WEIGHTS, text), default=None),
        available_bytes=min(
            _sizes(_AVAILABLE, text) or _sizes(_AVAILABLE_ON_CPU, text), default=None
        ),
        tokens=min(tokens, default=None),
        blocks=min(blocks, default=None),
        concurrency=min((float(one[1]) for one in concurrency), default=None),
        max_model_len=max((_whole(one[0]) for one in concurrency), default=None),
        graph_bytes=max(_sizes(_GRAPHS, text), default=None),
    )


def _sizes(pattern: re.Pattern[str], text: str) -> list[float]:
    return [
        # Old versions wrote GB and divided by 2**30 all the same (worker.py of 0.6).
        float(number) * GIB
        for number, _unit in pattern.findall(text)
        if number.count(".") <= 1 and number not in (".", "-")
    ]


def _whole(text: str) -> int:
    return int(text.replace(",", "") or 0)
