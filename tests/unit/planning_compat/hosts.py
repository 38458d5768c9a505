"""Healthy hosts and settings to break one thing of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyinfra_deploy.facts.hardware import Gpu, Hardware, KernelEvent, NumaNode, Topology
from pyinfra_deploy.planning.compatibility import ModelFacts
from pyinfra_deploy.settings.schema import Engine, GpuHost, Model, Runtime, Settings

BUSES = ("16", "27", "38", "5a", "98", "a8", "b8", "d8")
ARGS = {"tensor-parallel-size": 8, "gpu-memory-utilization": 0.9}
QWEN3_FP8 = ModelFacts(
    "Qwen3MoeForCausalLM", "qwen3_moe", "fp8", weight_block=(128, 128), dtype="bfloat16"
)
QWEN3_BF16 = ModelFacts("Qwen3ForCausalLM", "qwen3", dtype="bfloat16")


def l20(index: int, **changes: Any) -> Gpu:
    """An idle, healthy L20."""
    return replace(
        Gpu(
            index=index,
            name="NVIDIA L20",
            uuid=f"GPU-{index:08x}-1111-2222-3333-444444444444",
            pci_address=f"0000:{BUSES[index % 8]}:00.0",
            memory_total_mib=46068,
            memory_used_mib=1,
            memory_reserved_mib=596,
            compute_capability=(8, 9),
            ecc_enabled=True,
            ecc_uncorrected_volatile=0,
            ecc_uncorrected_aggregate=0,
            retired_pages_pending=False,
            remapped_rows_pending=False,
            remapped_rows_failed=False,
            mig_enabled=None,
            persistence_enabled=True,
            power_limit_watts=350.0,
            power_default_limit_watts=350.0,
            power_draw_watts=36.4,
            temperature_c=34,
            temperature_slowdown_c=92,
            temperature_shutdown_c=95,
            performance_state="P8",
            utilization_percent=0,
            pcie_generation=1,
            pcie_generation_max=4,
            pcie_width=16,
            pcie_width_max=16,
            fan_present=False,
            display_active=False,
        ),
        **changes,
    )


def host(count: int = 8, changed: dict[int, dict[str, Any]] | None = None, **more: Any) -> Hardware:
    """A healthy host of L20; `changed`: index -> what differs of that GPU."""
    cards = tuple(l20(index, **(changed or {}).get(index, {})) for index in range(count))
    links = tuple(tuple("X" if i == j else "SYS" for j in range(count)) for i in range(count))
    healthy = Hardware(
        host="gpu01",
        gpus=cards,
        driver_version="580.65.06",
        cuda_version="13.0",
        loaded_module_version="580.65.06",
        library_version="580.65.06",
        installed_module_version="580.65.06",
        topology=Topology(links=links),  # type: ignore[arg-type]
        cpu_count=128,
        numa=(NumaNode(0, "0-63"), NumaNode(1, "64-127")),
        memory_total_bytes=1024 * 2**30,
        disk_free_bytes=2000 * 2**30,
        kernel="6.8.0-45-generic",
        os_id="ubuntu",
        os_version="24.04",
        iommu_enabled=False,
        max_map_count=1_048_576,
        bmc_present=True,
        nvidia_smi_conf_present=False,
    )
    return replace(healthy, **more)


def settings(
    vllm: str = "0.33.0",
    args: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    python: str = "3.12",
    device: Any = "cuda",
    gpu_host: dict[str, Any] | None = None,
    said: dict[str, Any] | None = None,
    **more: Any,
) -> Settings:
    """Eight L20 with tensor parallel size 8; everything stated, so nothing is warned of."""
    wanted = {"expected_gpus": 8, "expected_gpu_model": "NVIDIA L20", "expected_pcie_width": 16}
    stated = {
        "id": "Qwen/Qwen3-235B-A22B-FP8",
        "variant": None,
        "quantization_accepted_for": "support chat",
    }
    return Settings(
        gpu_host=GpuHost(**(wanted if gpu_host is None else gpu_host)),
        runtime=Runtime(vllm=vllm, lock="locks/one.txt", python=python, device=device),
        model=Model(**{**stated, **(said or {})}),
        engine=Engine(
            args=ARGS if args is None else args,
            env=env or {},
        ),
        **more,
    )


def xid(code: int, index: int = 2, text: str | None = None) -> KernelEvent:
    """A kernel line about the GPU of that index."""
    bus = BUSES[index]
    line = f"NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=1234, name=vllm"
    return KernelEvent(text or line, code, f"0000:{bus}:00.0", 100.0)


def ids(findings: Any, *severities: str) -> list[str]:
    """The ids in order, of these severities (all when none is given)."""
    return [f.id for f in findings if not severities or f.severity in severities]
