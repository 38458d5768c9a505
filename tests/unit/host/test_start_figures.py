"""What the host keeps of an engine's log is what the control machine reads of it."""

from __future__ import annotations

import pytest
from fleet_host import figures

from pyinfra_deploy.planning.engine_log import EngineFigures, read_engine_log


@pytest.mark.parametrize(
    "line",
    [
        "Explicitly set (1.0/31.17) GiB for KV cache on node 0.",
        "CPU KV cache size: 23,808 tokens, Maximum concurrency for 1,024 tokens per request: 2.3x",
        "Available KV cache memory: 9.12 GiB",
        "Initializing a V1 LLM engine (v0.32.0) with config: model='/srv/llm/m'",
        "vLLM server version 0.32.0, serving model /srv/llm/m",
        "Model loading took 27.6 GiB memory and 81.0 seconds",
        "Graph capturing finished in 18 secs, took 0.71 GiB",
    ],
)
def test_every_line_that_plans_read_is_kept(line: str) -> None:
    assert read_engine_log([line]) != EngineFigures()
    assert figures.TELLING.search(line)
