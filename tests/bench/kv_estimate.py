"""How well the memory estimate meets recorded starts: python -m tests.bench kv [CORPUS]

Reads the directory that $CORPUS (or the argument) names and prints, for the rows that state enough,
whether the KV cache's bytes per token are exact, how far the estimate of the available memory is
off, and whether failed starts are foreseen. docs/memory-estimates.md holds the result.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.facts.hardware import Gpu, Hardware
from pyinfra_deploy.planning.engine_choice import parse_version, read_choice
from pyinfra_deploy.planning.hardware_load import load_findings
from pyinfra_deploy.planning.kv_cache import kv_cache
from pyinfra_deploy.planning.memory import budget
from pyinfra_deploy.planning.parallelism import check_choice
from pyinfra_deploy.settings.schema import Engine, Settings
from tests.bench.recorded_starts import GIB, Start, read_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What a row does not state, but its own figures allow only one reading of.
READ_AS: dict[str, tuple[dict[str, Any], str]] = {
    "L60": (
        {"kv-cache-dtype": "fp8"},
        "an NVFP4 checkpoint whose own scheme asks for an FP8 cache; its configuration is not "
        "among those recorded",
    ),
    "M18": (
        {"enable-prefix-caching": True},
        "299 blocks / 4.333 requests = 69 blocks each: 63 of attention and two states in each of "
        "three groups, as with prefix caching",
    ),
}
# Rows out of which no such figure follows.
CACHE_UNSTATED = {
    "M22": "neither the quantisation of the weights nor speculation is stated",
    "M34": "KV dtype and speculation were cut off",
    "M36": "the draft (dflash) has a cache of its own, of a shape not stated",
}
MEMORY_UNSTATED = {
    "C11": "part of the weights is offloaded to the CPU, how much is not stated",
}
# The constants of overhead.py and gpu_memory.py were taken from these rows; the others were only
# used to check them.
CALIBRATION = ("L04", "L06", "L12", "L36", "L46", "L54", "L58", "M04", "P02", "P04", "P06")
_MEMORY = re.compile(r"out of memory|OOM|available memory|KV cache|OutOfMemory|max seq len", re.I)
_DIVISION = re.compile(r"divisible|can not set tensor_parallel_size", re.I)
_FREE = re.compile(r"Free memory on device \(([0-9.]+)/([0-9.]+) GiB\).*?utilization \(([0-9.]+)")


@dataclass(frozen=True)
class Verdict:
    """Of one row. excluded: why it was not judged. good: whether the estimate holds. width: of its
    range, as error a share of the GPU's memory."""

    id: str
    excluded: str = ""
    good: bool = False
    error: float = 0.0
    width: float = 0.0
    detail: str = ""


def cache_verdict(start: Start) -> Verdict:
    """Whether the tokens that vLLM printed follow from the memory that it printed."""
    if start.shape is None:
        return Verdict(start.id, "no configuration of the model")
    if not start.tokens or not start.available:
        return Verdict(start.id, "tokens or available memory not stated")
    if start.id in CACHE_UNSTATED:
        return Verdict(start.id, CACHE_UNSTATED[start.id])
    extra, why = READ_AS.get(start.id, ({}, ""))
    choice, _ = read_choice({**start.args(), **extra})
    version = parse_version(start.version)
    cache = kv_cache(
        start.shape, choice.layout, choice, version, choice.max_num_batched_tokens or 2048
    )
    if cache is None:
        return Verdict(start.id, "a compressed cache that is not computed")
    length = choice.max_model_len or start.shape.native_context or 0
    half = 0.005 * GIB
    # Of several workers the one with the least memory decides, and the log may show another's.
    alone = start.tensor > 1 and len(start.available) == 1
    for tokens in start.tokens:
        for size in start.available:
            least, most = cache.tokens(size - half, length), cache.tokens(size + half, length)
            if least <= tokens <= most or (alone and 0.985 * least <= tokens <= most):
                return Verdict(start.id, good=True, detail=why)
    return Verdict(start.id, detail=f"{start.tokens} tokens, computed {least} to {most}")


def memory_verdict(start: Start) -> Verdict:
    """Whether the available memory that vLLM printed lies in the estimate; error: of its middle, as
    a share of the GPU's memory."""
    shape, gpu = start.shape, start.gpu
    for missing, what in (
        (shape is None, "no configuration of the model"),
        (not start.available, "available memory not stated"),
        (gpu is None, "the GPU or its memory is not stated"),
        (start.id in MEMORY_UNSTATED, MEMORY_UNSTATED.get(start.id, "")),
        (
            not start.exact and not start.row["weights_gib_per_gpu"],
            "a repack whose size is not stated",
        ),
        (start.version is None, "the version of vLLM is not stated"),
    ):
        if missing:
            return Verdict(start.id, what)
    if shape is None or gpu is None:
        raise AssertionError
    choice, _ = read_choice({**start.args(), **READ_AS.get(start.id, ({}, ""))[0]})
    found = budget(shape, gpu, choice.layout, choice, start.version)
    if found is None:
        return Verdict(start.id, "the GPU's memory is not known")
    real = min(start.available)
    room = found.available
    return Verdict(
        start.id,
        good=room.low <= real <= room.high,
        error=(room.middle - real) / found.total.middle,
        width=(room.high - room.low) / found.total.middle,
        detail=f"{real / GIB:.2f} GiB, estimated {room.low / GIB:.2f} .. {room.middle / GIB:.2f} "
        f".. {room.high / GIB:.2f}",
    )


def failure_verdict(start: Start) -> Verdict:
    """Whether a start that failed for memory or divisibility is refused or warned about."""
    outcome = start.row["outcome"]
    division = _DIVISION.search(outcome) is not None
    free = _FREE.search(outcome)
    if not start.failed or not (division or free or _MEMORY.search(outcome)):
        return Verdict(start.id, "not a failure of memory or divisibility")
    args, gpu = start.args(), start.gpu
    if free:
        return _held(start, float(free[1]), float(free[2]), float(free[3]))
    if start.shape is None:
        return Verdict(start.id, "no configuration of the model")
    if gpu is None and not division:
        guess = _class_of(start)
        if guess is None:
            return Verdict(start.id, "the GPU is not stated")
        gpu = guess
    gpu = gpu or Gpu(0, "any", memory_total_mib=1_000_000)
    count = max(int(start.row["gpu_count"] or 1), read_choice(args)[0].layout.gpus)
    _, findings = check_choice(start.shape, [gpu] * count, args, start.version)
    wanted = ("parallel.",) if division else ("memory.", "parallel.")
    told = [
        finding
        for finding in findings
        if finding.severity in ("refuse", "warn") and finding.id.startswith(wanted)
    ]
    detail = ", ".join(f"{finding.severity} {finding.id}" for finding in told)
    return Verdict(start.id, good=bool(told), detail=detail or outcome[:100])


def _held(start: Start, free_gib: float, total_gib: float, share: float) -> Verdict:
    """Others held the memory: a finding about the hardware, whatever the model."""
    gpu = Gpu(
        0,
        start.row["gpu_type"],
        memory_total_mib=round(total_gib * 1024),
        memory_used_mib=round((total_gib - free_gib) * 1024),
    )
    settings = Settings(engine=Engine(args={"gpu-memory-utilization": share}))
    told = list(load_findings(Hardware("h1", (gpu,)), settings))
    return Verdict(
        start.id, good=bool(told), detail=", ".join(f"{one.severity} {one.id}" for one in told)
    )


def refusals(start: Start) -> list[str]:
    """What the plan refuses in a row, whose GPU and model are known."""
    return _told(start, "refuse", "")


def memory_warnings(start: Start) -> list[str]:
    """What the plan warns of for memory: of a row that served, for nothing."""
    return _told(start, "warn", "memory.")


def _told(start: Start, severity: str, prefix: str) -> list[str]:
    if start.shape is None or start.gpu is None:
        return []
    args = {**start.args(), **READ_AS.get(start.id, ({}, ""))[0]}
    count = max(int(start.row["gpu_count"] or 1), read_choice(args)[0].layout.gpus)
    _, findings = check_choice(start.shape, [start.gpu] * count, args, start.version)
    return [one.id for one in findings if one.severity == severity and one.id.startswith(prefix)]


def _class_of(start: Start) -> Gpu | None:
    """A row that names only the size of its cards; 80 GB is the largest where it names none but the
    weights alone exceed any card of the time."""
    if match := re.search(r"(\d+) GB class", start.row["gpu_type"]):
        return Gpu(0, start.row["gpu_type"], memory_total_mib=int(match[1]) * 1024)
    if start.shape is not None and start.shape.weights.total_bytes > 100 * 10**9:
        return Gpu(0, "any up to 80 GB", memory_total_mib=81920)
    return None


def _section(
    title: str, starts: list[Start], judge: Callable[[Start], Verdict]
) -> Iterator[tuple[Start, Verdict]]:
    print(f"\n{title}")
    for start in starts:
        verdict = judge(start)
        if verdict.excluded:
            continue
        yield start, verdict


def main(arguments: list[str]) -> int:
    where = arguments[0] if arguments else os.environ.get("CORPUS")
    if not where or not (Path(where) / "kv_logs.tsv").is_file():
        print("CORPUS does not name a directory with kv_logs.tsv; nothing measured.")
        return 2
    starts = read_starts(Path(where))
    judged = list(_section("KV cache: tokens from memory", starts, cache_verdict))
    for start, verdict in judged:
        if not verdict.good or verdict.detail:
            print(f"  {'ok ' if verdict.good else 'OFF'} {start.id} {verdict.detail}")
    print(f"  exact: {sum(one.good for _, one in judged)} of {len(judged)}")
    judged = list(_section("Available memory", starts, memory_verdict))
    for start, verdict in judged:
        mark = "ok " if verdict.good else "OFF"
        print(f"  {mark} {start.id} {verdict.error:+6.1%}  {verdict.detail}")
    for name, rows in (
        ("all", judged),
        ("calibration", [one for one in judged if one[0].id in CALIBRATION]),
        ("held out", [one for one in judged if one[0].id not in CALIBRATION]),
        ("weights not from the same log", [one for one in judged if not one[0].own_weights]),
    ):
        _distribution(name, [verdict for _, verdict in rows])
    served = [start for start, _ in judged if not start.failed]
    warned = {start.id: told for start in served if (told := memory_warnings(start))}
    print(f"  served, and warned of: {len(warned)} of {len(served)}: {warned}")
    judged = list(_section("Failed starts", starts, failure_verdict))
    for start, verdict in judged:
        print(f"  {'ok ' if verdict.good else 'OFF'} {start.id} {verdict.detail}")
    print("\nNot judged")
    for title, judge in (
        ("KV cache", cache_verdict),
        ("memory", memory_verdict),
        ("failure", failure_verdict),
    ):
        reasons: dict[str, list[str]] = {}
        for start in starts:
            if excluded := judge(start).excluded:
                reasons.setdefault(excluded, []).append(start.id)
        for reason, ids in sorted(reasons.items()):
            if not reason.startswith("not a failure"):
                print(f"  {title}: {reason}: {' '.join(ids)}")
    return 0


def _distribution(name: str, verdicts: list[Verdict]) -> None:
    if not verdicts:
        return
    errors = sorted(abs(one.error) for one in verdicts)
    inside = sum(one.good for one in verdicts)
    close = sum(error <= 0.05 for error in errors)
    widths = sorted(one.width for one in verdicts)
    tenth = [errors[min(len(errors) - 1, len(errors) * part // 100)] for part in (50, 85, 95)]
    print(
        f"  {name}: {len(verdicts)} rows, in the range {inside / len(verdicts):.0%}, middle within "
        f"5% of the GPU {close / len(verdicts):.0%}; error of the middle: half below "
        f"{tenth[0]:.1%}, 85% below {tenth[1]:.1%}, 95% below {tenth[2]:.1%}, all below "
        f"{errors[-1]:.1%}; width of the range: half below {widths[len(widths) // 2]:.1%}, all "
        f"below {widths[-1]:.1%}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
