"""How long a start may take, where the settings do not say."""

from __future__ import annotations

from . import engine, snapshot

# From the weights in memory to the first answer: profiling, compiled graphs, kernels made by
# Triton and FlashInfer. Minutes with a cold cache; this is generous, since a start that does not
# get on is given up much sooner (stall_timeout_seconds).
AFTER_LOADING_SECONDS = 900
# A single SATA disk or a busy NFS server reads that much. Eight workers read each file once
# together, by the page cache.
SLOWEST_BYTES_PER_SECOND = 100_000_000
AT_LEAST_SECONDS = 1800


def allowed_seconds(name: str, release: str) -> int:
    """Of a staged release, by the bytes of its model."""
    model = engine.release_directory(name, release) / "model"
    seen = snapshot.model_state(str(model.readlink())) if model.is_symlink() else None
    model_bytes = seen.get("bytes", 0) if isinstance(seen, dict) else 0
    return seconds_for(int(model_bytes))


def seconds_for(model_bytes: int) -> int:
    loading = model_bytes // SLOWEST_BYTES_PER_SECOND
    return max(AT_LEAST_SECONDS, AFTER_LOADING_SECONDS + loading)
