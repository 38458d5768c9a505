"""The driver and the GPUs against the CUDA that torch is built for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.gpu_table import capability_of, model_row, named
from pyinfra_deploy.planning.runtime_facts import dotted, driver_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Gpu, Hardware
    from pyinfra_deploy.planning.runtime_facts import Known, LockedRuntime
    from pyinfra_deploy.planning.tables.rows import CapabilityCuda, CudaMajor
    from pyinfra_deploy.settings.schema import Settings

Cuda = tuple[int, int]


@dataclass(frozen=True)
class WantedCuda:
    """The CUDA versions that may be meant, certain when there is one, and what says so."""

    cudas: tuple[Cuda, ...]
    because: str
    source: str


def wanted_cuda(known: Known, runtime: LockedRuntime | None) -> WantedCuda:
    """The lock's own line is certain; else the table, in which neighbours may differ."""
    if runtime is not None and runtime.cuda is not None:
        return WantedCuda((runtime.cuda,), f"the lock pins {runtime.cuda_line}", "the lock file")
    cudas = tuple(dict.fromkeys(row.cuda for row in known.rows))
    sources = "; ".join(dict.fromkeys(f"vLLM {row.vllm}: {row.source}" for row in known.rows))
    words = " or ".join(dotted(cuda) for cuda in cudas)
    return WantedCuda(cudas, f"{known.in_words()}; its torch is built for CUDA {words}", sources)


def driver_findings(
    hardware: Hardware, settings: Settings, wanted: WantedCuda
) -> Iterator[Finding]:
    """At most one refusal: the driver, judged by CUDA's rules of compatibility."""
    if hardware.failure is not None or not hardware.gpus:
        return  # what is wrong with the driver itself comes first, and is said elsewhere
    yield from driver_version_findings(hardware, settings, wanted)


def driver_version_findings(
    hardware: Hardware, settings: Settings, wanted: WantedCuda
) -> Iterator[Finding]:
    """The same by the driver's version, whether or not it lists GPUs."""
    driver = hardware.driver_version or hardware.loaded_module_version
    if driver is None or not driver_key(driver):
        yield Finding(
            "compat.driver-unknown",
            "warn",
            hardware.host,
            "NVIDIA driver",
            "the driver's version was not read, so it is not known whether it suits "
            f"{_words(wanted)}",
            "run nvidia-smi on the host and collect the facts again",
            evidence=str(driver),
            source=wanted.source,
        )
        return
    judged = [tuple(_judge(hardware, settings, driver, cuda, wanted)) for cuda in wanted.cudas]
    refused = [any(f.severity == "refuse" for f in findings) for findings in judged]
    if any(refused) and not all(refused):
        yield Finding(
            "compat.cuda-unknown",
            "warn",
            hardware.host,
            "runtime.vllm",
            f"{wanted.because}, and driver {driver} suits only one of them",
            "give the plan the lock file, which pins torch's CUDA, or use a vLLM version of the "
            "table",
            evidence=f"driver {driver}",
            source=wanted.source,
        )
        return
    yield from judged[0]


def _words(wanted: WantedCuda) -> str:
    return "CUDA " + " or ".join(dotted(cuda) for cuda in wanted.cudas)


def major_row(cuda: Cuda) -> CudaMajor | None:
    return next((row for row in tables.cuda_drivers().majors if row.cuda == cuda[0]), None)


def _judge(
    hardware: Hardware, settings: Settings, driver: str, cuda: Cuda, wanted: WantedCuda
) -> Iterator[Finding]:
    major = major_row(cuda)
    if major is None:
        yield Finding(
            "compat.cuda-unknown",
            "warn",
            hardware.host,
            "runtime.lock",
            f"nothing is known about the drivers for CUDA {dotted(cuda)}",
            "add it to planning/tables/cuda_drivers.yml, from CUDA's release notes",
            evidence=wanted.because,
            source=wanted.source,
        )
        return
    if driver_key(driver) < driver_key(major.driver):
        yield from _older_major(hardware, settings, driver, cuda, wanted, major)
        return
    release = _release_driver(cuda)
    if release is not None and driver_key(driver) < driver_key(release):
        yield Finding(
            "compat.driver-limited",
            "warn",
            hardware.host,
            "NVIDIA driver",
            f"driver {driver} is older than CUDA {dotted(cuda)}, with which {release} came. It "
            "runs by minor-version compatibility, but kernels compiled on the host from PTX "
            'fail ("the provided PTX was compiled with an unsupported toolchain")',
            f"install driver {release} or newer when convenient",
            evidence=f"driver {driver}; {wanted.because}",
            source=major.source,
        )


def _release_driver(cuda: Cuda) -> str | None:
    rows = tables.cuda_drivers().releases
    return next((row.driver for row in rows if row.cuda == cuda), None)


def _older_major(
    hardware: Hardware,
    settings: Settings,
    driver: str,
    cuda: Cuda,
    wanted: WantedCuda,
    major: CudaMajor,
) -> Iterator[Finding]:
    """The driver is of an older CUDA: only forward compatibility can help."""
    forward = tables.cuda_drivers().forward_compatibility
    package = f"cuda-compat-{cuda[0]}-{cuda[1]}"
    reasons = tuple(_not_forward(hardware, driver, cuda, major, package))
    if reasons:
        yield Finding(
            "compat.driver-too-old",
            "refuse",
            hardware.host,
            "NVIDIA driver",
            f"driver {driver} is too old for CUDA {dotted(cuda)}, which needs {major.driver} or "
            f"newer; and forward compatibility does not help: {'; '.join(reasons)}",
            f"install driver {major.driver} or newer (your Ansible role, or packages) and "
            f"reboot; or use a vLLM that is built for CUDA {cuda[0] - 1}{_older_vllm(cuda[0])}"
            + (f"; or apt-get install {package}" if reasons == (_absent(package),) else ""),
            evidence=f"driver {driver}; {wanted.because}",
            source=f"{major.source}; {forward.source}",
        )
        return
    path = forward.library_path.format(major=cuda[0], minor=cuda[1])
    on_path = "compat" in settings.engine.env.get("LD_LIBRARY_PATH", "")
    yield Finding(
        "compat.forward-compatibility",
        "note" if on_path else "warn",
        hardware.host,
        "NVIDIA driver",
        f"driver {driver} is older than CUDA {dotted(cuda)} needs ({major.driver}); the engine "
        f"runs by forward compatibility, over {package}"
        + ("" if on_path else ", whose library it does not find by itself"),
        f"install driver {major.driver} or newer when convenient"
        + ("" if on_path else f'; until then set engine.env: {{LD_LIBRARY_PATH: "{path}"}}'),
        evidence=f"driver {driver}; cuda-compat {hardware.cuda_compat_version}; {wanted.because}",
        source=forward.source,
    )


def _older_vllm(major: int) -> str:
    rows = [row for row in tables.vllm_versions().versions if row.cuda[0] < major]
    return f" ({rows[-1].vllm} or older)" if rows else ""


def _not_forward(
    hardware: Hardware, driver: str, cuda: Cuda, major: CudaMajor, package: str
) -> Iterator[str]:
    if driver_key(driver) < driver_key(major.forward_driver):
        yield f"{package} needs driver {major.forward_driver} at least"
    unsupported = [gpu for gpu in hardware.gpus if not _is_forward(gpu)]
    if unsupported:
        yield f"{named(unsupported)} ({unsupported[0].name}) is not known to support it"
    if hardware.cuda_compat_version is None:
        yield _absent(package)
    elif not _compat_matches(hardware.cuda_compat_version, cuda, major):
        yield f"the installed cuda-compat {hardware.cuda_compat_version} is not for {dotted(cuda)}"


def _absent(package: str) -> str:
    return f"{package} is not installed"


def _is_forward(gpu: Gpu) -> bool:
    row = model_row(gpu)
    return row is not None and row.forward_compatible is True


def _compat_matches(found: str, cuda: Cuda, major: CudaMajor) -> bool:
    """`found`: the package's version, which is that of the driver it was cut from
    (580.82.07-1), or the CUDA it is for (13.0, 13-0)."""
    driver = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?", found)
    if driver:
        return driver_key(driver.group()) >= driver_key(major.driver)
    release = re.search(r"\b(\d{1,2})[.-](\d{1,2})\b", found)
    return release is not None and (int(release[1]), int(release[2])) >= cuda


def gpu_generation_findings(hardware: Hardware, wanted: WantedCuda) -> Iterator[Finding]:
    """GPUs that this CUDA no longer, or not yet, compiles for."""
    unknown = [gpu for gpu in hardware.gpus if capability_of(gpu) is None]
    if unknown:
        yield Finding(
            "compat.capability-unknown",
            "warn",
            hardware.host,
            named(unknown),
            "the compute capability was not read and the model is not in the table, so it is not "
            "known what the GPU can compute",
            "read it: nvidia-smi --query-gpu=name,compute_cap --format=csv; and add the model to "
            "planning/tables/gpu_models.yml",
            evidence=unknown[0].name,
            source="developer.nvidia.com/cuda-gpus",
        )
    for cuda in wanted.cudas[:1] if len({c[0] for c in wanted.cudas}) == 1 else ():
        yield from _too_old(hardware, cuda, wanted)
        yield from _too_new(hardware, cuda, wanted)


def _too_old(hardware: Hardware, cuda: Cuda, wanted: WantedCuda) -> Iterator[Finding]:
    major = major_row(cuda)
    engine = tables.quantisations().engine
    least = max(major.oldest_capability if major else (0, 0), engine.capability)
    old = [gpu for gpu in hardware.gpus if (c := capability_of(gpu)) is not None and c < least]
    if old:
        yield Finding(
            "compat.gpu-too-old",
            "refuse",
            hardware.host,
            named(old),
            f"{old[0].name} has compute capability {dotted(capability_of(old[0]) or (0, 0))}; vLLM "
            f"with CUDA {cuda[0]} needs {dotted(least)} at least",
            "use newer GPUs, or a vLLM that is built for an older CUDA"
            + (_older_vllm(cuda[0]) if least > engine.capability else ""),
            evidence=wanted.because,
            source=major.source if major and least > engine.capability else engine.source,
        )


def _too_new(hardware: Hardware, cuda: Cuda, wanted: WantedCuda) -> Iterator[Finding]:
    table = tables.cuda_drivers()
    for row in table.capabilities:
        new = [gpu for gpu in hardware.gpus if _row_of(capability_of(gpu)) == row]
        if new and cuda < row.cuda:
            own = capability_of(new[0]) or row.capability
            least = dotted(row.cuda) + ("" if own == row.capability else " at least")
            yield Finding(
                "compat.gpu-too-new",
                "refuse",
                hardware.host,
                named(new),
                f"{new[0].name} (compute capability {dotted(own)}) needs CUDA {least}, and the "
                f"runtime's torch is built for {dotted(cuda)}",
                "use a newer vLLM, whose torch is built for "
                f"CUDA {dotted(row.cuda)} or newer ({_first_with(row.cuda)})",
                evidence=wanted.because,
                source=table.capabilities_source,
            )


def _row_of(capability: Cuda | None) -> CapabilityCuda | None:
    """The nearest row at or below a capability; None below all, where _too_old speaks."""
    rows = tables.cuda_drivers().capabilities
    below = [row for row in rows if capability is not None and row.capability <= capability]
    return below[-1] if below else None


def _first_with(cuda: Cuda) -> str:
    rows = [row for row in tables.vllm_versions().versions if row.cuda >= cuda]
    return f"{rows[0].vllm} is the first known" if rows else "none is known"
