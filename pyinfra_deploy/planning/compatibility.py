"""Does this vLLM fit the model, the Python, the driver, the GPUs and its own arguments?

Pure, from the tables in planning/tables. What they do not know is said as that: a version between
two known ones is judged by both, and where they differ it is a warning, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.compatibility_arguments import argument_findings
from pyinfra_deploy.planning.compatibility_driver import (
    driver_findings,
    driver_version_findings,
    gpu_generation_findings,
    wanted_cuda,
)
from pyinfra_deploy.planning.compatibility_precision import precision_findings
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.runtime_facts import Known, known_version, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.version import Version

    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.planning.runtime_facts import LockedRuntime
    from pyinfra_deploy.planning.tables.rows import ArchitectureSpan
    from pyinfra_deploy.settings.schema import Runtime, Settings


@dataclass(frozen=True)
class ModelFacts:
    """What the model's config.json says, as plain values; None where it does not.

    quant_method: as written there (fp8, awq, gptq, compressed-tensors, mxfp4, ...). quant_bits and
    quant_is_float: of a weight, where the method leaves it open (compressed-tensors). weight_block:
    (block_n, block_k) of block-wise FP8. dtype: bfloat16, float16, ...
    """

    architecture: str | None = None
    model_type: str | None = None
    quant_method: str | None = None
    quant_bits: float | None = None
    quant_is_float: bool | None = None
    weight_block: tuple[int, int] | None = None
    dtype: str | None = None


def check(
    hardware: Hardware,
    settings: Settings,
    model: ModelFacts | None = None,
    runtime: LockedRuntime | None = None,
) -> tuple[Finding, ...]:
    """Findings on one host. `model`: None before its config.json is known. `runtime`: what the lock
    pins (runtime_facts.locked_runtime), None when it is not at hand."""
    if settings.runtime is None:
        return ()
    return tuple(_findings(hardware, settings, settings.runtime, model, runtime))


def check_driver(
    hardware: Hardware, settings: Settings, runtime: LockedRuntime | None
) -> tuple[Finding, ...]:
    """Findings on the driver's version alone: of one that is about to be installed."""
    vllm = version_of(settings.runtime.vllm) if settings.runtime is not None else None
    if vllm is None or settings.runtime is None or settings.runtime.device != "cuda":
        return ()
    wanted = wanted_cuda(known_version(vllm), runtime)
    return tuple(driver_version_findings(hardware, settings, wanted))


def _findings(
    hardware: Hardware,
    settings: Settings,
    pinned: Runtime,
    model: ModelFacts | None,
    runtime: LockedRuntime | None,
) -> Iterator[Finding]:
    vllm = version_of(pinned.vllm)
    assert vllm is not None  # the schema lets nothing else pass
    known = known_version(vllm)
    if not known.is_exact and known.is_newer:
        yield _newer(hardware.host, known)
    yield from _python(hardware.host, pinned, known)
    too_old = False
    if model is not None:
        found = tuple(_architecture(hardware.host, model, vllm))
        yield from found
        # A vLLM that cannot serve the model at all does not need to be told what else it lacks.
        too_old = any(finding.severity == "refuse" for finding in found)
    yield from precision_findings(hardware, settings, model, vllm, judge_gpus=not too_old)
    yield from argument_findings(hardware.host, settings, vllm)
    if pinned.device == "cuda":
        yield from _cuda(hardware, settings, known, runtime)


def _newer(host: str, known: Known) -> Finding:
    return Finding(
        "compat.vllm-newer",
        "note",
        host,
        "runtime.vllm",
        f"{known.in_words()}: what changed since is not known here, so it is judged as that one",
        "read its release notes, or update this checkout",
        evidence=f"runtime.vllm: {known.version}",
        source=known.rows[0].source,
    )


def _python(host: str, pinned: Runtime, known: Known) -> Iterator[Finding]:
    if pinned.python is None:
        return  # of a host that was not read; one that was has its own finding
    fits = [row.python.contains(pinned.python) for row in known.rows]
    if all(fits):
        return
    certain = not any(fits) and not known.is_newer
    ranges = "; ".join(f"vLLM {row.vllm} needs Python {row.python}" for row in known.rows)
    if certain:
        yield Finding(
            "compat.python",
            "refuse",
            host,
            "runtime.python",
            f"Python {pinned.python} does not suit vLLM {known.version}: {ranges}",
            "write a runtime.python in that range, with a lock made for it (locks/README.md)",
            evidence=f'runtime.python: "{pinned.python}"',
            source=known.rows[0].source,
        )
        return
    yield Finding(
        "compat.python-unknown",
        "warn",
        host,
        "runtime.python",
        f"it is not known whether Python {pinned.python} suits it: {known.in_words()}, and "
        f"{ranges}",
        "use a Python that suits both, or a vLLM version of the table",
        evidence=f'runtime.python: "{pinned.python}"',
        source="; ".join(row.source for row in known.rows),
    )


def _cuda(
    hardware: Hardware, settings: Settings, known: Known, runtime: LockedRuntime | None
) -> Iterator[Finding]:
    if runtime is not None and runtime.on_cpu:
        yield Finding(
            "compat.cpu-torch",
            "refuse",
            hardware.host,
            "runtime.lock",
            "the lock pins torch's CPU build, but runtime.device is cuda: no GPU would be used",
            "use a lock with torch's CUDA build (locks/README.md), or device: cpu for a trial",
            evidence=f"torch=={runtime.torch}",
            source="the lock file",
        )
        return
    wanted = wanted_cuda(known, runtime)
    yield from driver_findings(hardware, settings, wanted)
    yield from gpu_generation_findings(hardware, wanted)


def architecture_row(model: ModelFacts) -> tuple[str | None, ArchitectureSpan | None]:
    """The architecture's name, by model_type where config.json names none, and its row."""
    table = tables.architectures()
    name = model.architecture or table.model_types.get(model.model_type or "")
    row = next((row for row in table.architectures if name in row.names), None)
    return name, row


def _architecture(host: str, model: ModelFacts, vllm: Version) -> Iterator[Finding]:
    name, row = architecture_row(model)
    evidence = f"config.json: architectures {name}, model_type {model.model_type}"
    if row is None:
        yield Finding(
            "compat.architecture-unknown",
            "warn",
            host,
            "model.id",
            f"{name or 'the architecture of this model'} is not in the table: it is not known "
            "whether vLLM has an implementation of its own for it",
            "look it up in vLLM's list of supported models; if it serves, add it to "
            "planning/tables/architectures.yml",
            evidence=evidence,
            source="planning/tables/architectures.yml",
        )
        return
    place = row.place(vllm)
    if place == "before":
        yield _too_old(host, f"{name} models", vllm, str(row.first), evidence, row.source)
        return
    if place in ("unknown", "gone"):
        late = row.last is not None and vllm > row.last
        span = f"{row.last} and {row.gone}" if late else f"{row.absent_in} and {row.first}"
        yield Finding(
            "compat.architecture-gone" if place == "gone" else "compat.vllm-unknown-for-model",
            "warn",
            host,
            "runtime.vllm",
            f"{name} {'went' if late else 'came'} between vLLM {span}: "
            + (
                f"{vllm} has no implementation of its own for it any more"
                if place == "gone"
                else f"it is not known whether {vllm} has it"
            ),
            f"use vLLM {row.last if late else row.first}"
            + ("" if late else " or newer")
            + ", or try it on one host first",
            evidence=evidence,
            source=row.source,
        )
    for part in row.quantised:
        if part.method != (model.quant_method or "").lower():
            continue
        if part.place(vllm) == "before":
            what = f"{name} models in {part.method}"
            yield _too_old(host, what, vllm, str(part.first), evidence, part.source)


def _too_old(
    host: str, what: str, vllm: Version, first: str, evidence: str, source: str
) -> Finding:
    return Finding(
        "compat.vllm-too-old-for-model",
        "refuse",
        host,
        "runtime.vllm",
        f"vLLM {vllm} cannot serve {what}: they came with {first}",
        f"write runtime.vllm: {first} or newer, with a lock of that version (locks/README.md)",
        evidence=f"runtime.vllm: {vllm}; {evidence}",
        source=source,
    )
