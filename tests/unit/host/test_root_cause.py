"""The cause of an engine's death out of journals as vLLM writes them (0.8 to 0.33)."""

from __future__ import annotations

import pytest
from fleet_host import root_cause

WORKER = "(Worker_TP{n} pid=9{n}) ERROR 11-30 07:12:0{n} [multiproc_executor.py:826] "
CORE = "(EngineCore pid=71) ERROR 11-30 07:12:13 [core.py:1141] "
SERVER = "(APIServer pid=1) "
FRAME = '  File "/srv/llm/runtimes/vllm-0.33.0-1f2e/lib/python3.12/site-packages/vllm/x.py", line 7'
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n}.50 GiB. GPU {n} has a total "
    "capacity of 44.53 GiB of which 1{n}.00 MiB is free."
)
GENERIC_WORKERS = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. "
    "See stack trace for root cause."
)
GENERIC_CORE = (
    "RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}"
)


def traceback(prefix: str, exception: str, frames: int) -> list[str]:
    lines = ["Traceback (most recent call last):"]
    for _ in range(frames):
        lines += [FRAME + ", in run", "    raise ValueError(f'not this: {line}')", "    ^^^^^^^^^"]
    return [prefix + line for line in [*lines, exception]]


def journal_of_eight_workers() -> list[str]:
    """All workers run out of memory; the engine core and the server only point at them."""
    lines = [
        "(APIServer pid=1) INFO 11-30 07:11:58 [api_server.py:1351] vLLM API server version 0.33.0",
        "(EngineCore pid=71) WARNING 11-30 07:12:00 [x.py:3] ImportError: an optional package",
        "(EngineCore pid=71) INFO 11-30 07:12:01 [core.py:80] Initializing a V1 LLM engine",
    ]
    for n in range(8):
        prefix = WORKER.format(n=n)
        lines.append(f"{prefix}WorkerProc failed to start.")
        lines += traceback(prefix, OUT_OF_MEMORY.format(n=n), 20)
    lines.append(f"{CORE}EngineCore failed to start.")
    lines += traceback(CORE, GENERIC_WORKERS, 12)
    lines.append("(EngineCore pid=71) Process EngineCore:")
    lines += traceback("(EngineCore pid=71) ", GENERIC_WORKERS, 12)
    lines += traceback(SERVER, GENERIC_CORE, 14)
    unit = "llm-engine@main.service"
    return [
        *lines,
        f"{unit}: Main process exited, code=exited, status=1/FAILURE",
        f"{unit}: Failed with result 'exit-code'.",
    ]


def test_the_cause_comes_first_and_the_end_of_the_log_after_it() -> None:
    journal = journal_of_eight_workers()
    assert not any("OutOfMemory" in line for line in journal[-100:])
    told = root_cause.explained(journal)
    assert told == [
        OUT_OF_MEMORY.format(n=0),
        GENERIC_WORKERS,
        GENERIC_CORE,
        "--- the end of its log:",
        *journal[-15:],
    ]


def test_a_log_without_a_cause_is_only_its_end() -> None:
    lines = [f"INFO 11-30 07:12:{n:02} [x.py:1] loading shard {n}" for n in range(60)]
    assert root_cause.explained(lines) == lines[-15:]
    assert root_cause.explained([]) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # argparse, before any process was started.
        (["vllm: error: unrecognized arguments: --nope"],
         ["vllm: error: unrecognized arguments: --nope"]),
        (["usage: vllm serve [model_tag] [options]",
          "vllm serve: error: argument --max-model-len: invalid int value: 'x'"],
         ["vllm serve: error: argument --max-model-len: invalid int value: 'x'"]),
        # vLLM 0.8: no process in front. 0.6: no bracket either.
        (["ERROR 05-23 09:31:47 [core.py:396] ValueError: No memory for the cache blocks."],
         ["ValueError: No memory for the cache blocks."]),
        (["(VllmWorkerProcess pid=7) ERROR 12-29 07:45:20 multiproc_worker_utils.py:236] "
          "RuntimeError: Cannot re-initialize CUDA in forked subprocess."],
         ["RuntimeError: Cannot re-initialize CUDA in forked subprocess."]),
        (["(VllmWorker rank=5 pid=3073) KeyError: 'layers.0.mlp.experts.w2_weight'"],
         ["KeyError: 'layers.0.mlp.experts.w2_weight'"]),
        (["(EngineCore_DP0 pid=9) ERROR 11-30 07:12:13.123 [core.py:708] AssertionError"],
         ["AssertionError"]),
        # pydantic says what is wrong on the line below.
        (["(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for "
          "ModelConfig",
          "(APIServer pid=1)   Value error, User-specified max_model_len (50000) is greater than "
          "the derived max_model_len (40960)"],
         ["pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig: Value "
          "error, User-specified max_model_len (50000) is greater than the derived max_model_len "
          "(40960)"]),
        (["pydantic_core._pydantic_core.ValidationError: 1 validation error for X"],
         ["pydantic_core._pydantic_core.ValidationError: 1 validation error for X"]),
        (["Fatal Python error: Segmentation fault", "terminate called after throwing an instance "
          "of 'std::bad_alloc'"],
         ["Fatal Python error: Segmentation fault",
          "terminate called after throwing an instance of 'std::bad_alloc'"]),
        # The first of a chain is the cause; a generic one never stands before it.
        ([GENERIC_CORE, "OSError: [Errno 28] No space left on device", "RuntimeError: second"],
         ["OSError: [Errno 28] No space left on device", "RuntimeError: second", GENERIC_CORE]),
        # Source lines of a traceback, notices and warnings are none.
        (["    raise ValueError('x')", "  ValueError: indented", "INFO 11-30 07:12:13 [x.py:1] "
          "ValueError: told", "DeprecationWarning: old", "no Error: here",
          "The above exception was the direct cause of the following exception:"], []),
        (["vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
          "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp"],
         ["torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp",
          "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."]),
    ],
)  # fmt: skip
def test_causes(lines: list[str], expected: list[str]) -> None:
    assert root_cause.causes(lines) == expected


def test_at_most_six_and_none_too_long() -> None:
    letters = "abcdefgh"
    lines = [f"{letter.upper()}Error: {letter * 900}" for letter in letters]
    found = root_cause.causes(lines)
    assert [line[0] for line in found] == list("ABCDEF")
    assert {len(line) for line in found} == {root_cause.LONGEST_LINE}
