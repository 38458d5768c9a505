"""The goals of the gateway's speed, and which of them a run missed."""

from __future__ import annotations

from typing import Any

# Milliseconds are judged here: one stream is the machine's wake-ups, 200 fill two cores.
JUDGED_STREAMS = 50
# Way -> (added at the median, added at the 99th percentile), milliseconds.
ADDED_MS = {"direct": (1.0, None), "full": (3.0, 10.0)}
PEERS = ("litellm", "vllm-router")
# Figure -> (name, whether more is better).
COMPARED = {
    "first_p50": ("time to the first byte, p50", False),
    "first_p99": ("time to the first byte, p99", False),
    "late_p50": ("lateness of a chunk, p50", False),
    "per_cpu_second": ("requests per CPU-second", True),
}

Row = dict[str, Any]


def missed(rows: list[Row]) -> list[str]:
    """Each goal that these rows miss, in words; what was not measured is not judged."""
    by = {(row["through"], row["streams"]): row for row in rows}
    found = []
    base = by.get(("upstream", JUDGED_STREAMS))
    for way, (median, tail) in ADDED_MS.items():
        row = by.get((way, JUDGED_STREAMS))
        if base is None or row is None:
            continue
        for figure, limit in (
            ("first_p50", median),
            ("late_p50", median),
            ("first_p99", tail),
            ("late_p99", tail),
        ):
            added = row[figure] - base[figure]
            if limit is not None and added >= limit:
                found.append(
                    f"{way} adds {added:.2f} ms to {figure} at {JUDGED_STREAMS} streams; "
                    f"less than {limit:g} is the goal"
                )
    for (way, streams), row in by.items():
        for peer in PEERS if way in ADDED_MS else ():
            found += _behind(row, by.get((peer, streams)))
    return found


def _behind(row: Row, peer: Row | None) -> list[str]:
    if peer is None:
        return []
    found = []
    for figure, (name, more_is_better) in COMPARED.items():
        ours, theirs = row[figure], peer[figure]
        if (ours <= theirs) if more_is_better else (ours >= theirs):
            found.append(
                f"{row['through']} is behind {peer['through']} at {row['streams']} streams in "
                f"{name}: {ours:.2f} against {theirs:.2f}"
            )
    return found
