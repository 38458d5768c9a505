"""`nvidia-smi -q -x` of the stand-in, in the shape of nvsmi_device_v12.dtd."""

from __future__ import annotations

from lab.standins.l20 import EVENT_REASONS, Gpu

Tree = list[tuple[str, "str | Tree"]]
"""Elements in order: tag and either text or further elements."""


def plain(value: str) -> str:
    """XML says N/A where the CSV says [N/A]."""
    return "N/A" if value == "[N/A]" else value


def ecc_counts(gpu: Gpu, kind: str) -> Tree:
    return [
        ("sram_correctable", "0"),
        ("sram_uncorrectable_parity", "0"),
        ("sram_uncorrectable_secded", "0"),
        ("dram_correctable", gpu[f"ecc.errors.corrected.{kind}.total"]),
        ("dram_uncorrectable", gpu[f"ecc.errors.uncorrected.{kind}.total"]),
    ]


def retired_pages(gpu: Gpu) -> Tree:
    pending = plain(gpu["retired_pages.pending"])
    count = "N/A" if pending == "N/A" else "1"
    return [
        ("multiple_single_bit_retirement", [("retired_count", count), ("retired_pagelist", count)]),
        ("double_bit_retirement", [("retired_count", count), ("retired_pagelist", count)]),
        ("pending_blacklist", pending),
        ("pending_retirement", pending),
    ]


def processes_tree(gpu: Gpu) -> Tree | str:
    if "process.pid" not in gpu:
        return ""
    of_process: Tree = [
        ("gpu_instance_id", "N/A"),
        ("compute_instance_id", "N/A"),
        ("pid", gpu["process.pid"]),
        ("type", "C"),
        ("process_name", gpu["process.name"]),
        ("used_memory", gpu["process.used_memory"]),
    ]
    return [("process_info", of_process)]


def pci_tree(gpu: Gpu) -> Tree:
    generations: Tree = [
        ("max_link_gen", gpu["pcie.link.gen.max"]),
        ("current_link_gen", gpu["pcie.link.gen.current"]),
        ("device_current_link_gen", gpu["pcie.link.gen.current"]),
        ("max_device_link_gen", gpu["pcie.link.gen.gpumax"]),
        ("max_host_link_gen", gpu["pcie.link.gen.hostmax"]),
    ]
    widths: Tree = [
        ("max_link_width", f"{gpu['pcie.link.width.max']}x"),
        ("current_link_width", f"{gpu['pcie.link.width.current']}x"),
    ]
    return [
        ("pci_bus", gpu["pci.bus"].removeprefix("0x")),
        ("pci_device", "00"),
        ("pci_domain", "0000"),
        ("pci_base_class", "3"),
        ("pci_sub_class", "2"),
        ("pci_device_id", gpu["pci.device_id"].removeprefix("0x")),
        ("pci_bus_id", gpu["pci.bus_id"]),
        ("pci_sub_system_id", gpu["pci.sub_device_id"].removeprefix("0x")),
        ("pci_gpu_link_info", [("pcie_gen", generations), ("link_widths", widths)]),
        ("pci_bridge_chip", [("bridge_chip_type", "N/A"), ("bridge_chip_fw", "N/A")]),
        ("replay_counter", "0"),
        ("replay_rollover_counter", "0"),
        ("tx_util", "0 KB/s"),
        ("rx_util", "0 KB/s"),
        ("atomic_caps_outbound", "N/A"),
        ("atomic_caps_inbound", "N/A"),
    ]


def event_reasons(gpu: Gpu) -> Tree:
    reasons: Tree = [
        (f"clocks_event_reason_{reason}", gpu[f"clocks_event_reasons.{reason}"])
        for reason in EVENT_REASONS
    ]
    return [*reasons, ("clocks_event_reason_display_clocks_setting", "Not Active")]


def power_tree(gpu: Gpu) -> Tree:
    return [
        ("power_state", gpu["pstate"]),
        ("average_power_draw", gpu["power.draw"]),
        ("instant_power_draw", gpu["power.draw"]),
        ("current_power_limit", gpu["power.limit"]),
        ("requested_power_limit", gpu["power.limit"]),
        ("default_power_limit", gpu["power.default_limit"]),
        ("min_power_limit", gpu["power.min_limit"]),
        ("max_power_limit", gpu["power.max_limit"]),
    ]


def gpu_tree(gpu: Gpu) -> Tree:
    memory: Tree = [(part, gpu[f"memory.{part}"]) for part in ("total", "reserved", "used", "free")]
    return [
        ("product_name", gpu["name"]),
        ("product_brand", "NVIDIA"),
        ("product_architecture", "Ada Lovelace"),
        ("display_mode", gpu["display_mode"]),
        ("display_active", gpu["display_active"]),
        ("persistence_mode", gpu["persistence_mode"]),
        ("addressing_mode", gpu["addressing_mode"]),
        (
            "mig_mode",
            [
                ("current_mig", plain(gpu["mig.mode.current"])),
                ("pending_mig", plain(gpu["mig.mode.pending"])),
            ],
        ),
        ("mig_devices", "None"),
        ("accounting_mode", gpu["accounting.mode"]),
        ("accounting_mode_buffer_size", "4000"),
        ("driver_model", [("current_dm", "N/A"), ("pending_dm", "N/A")]),
        ("serial", gpu["serial"]),
        ("uuid", gpu["uuid"]),
        ("minor_number", gpu["index"]),
        ("vbios_version", gpu["vbios_version"]),
        ("multigpu_board", "No"),
        ("board_id", f"0x{gpu['pci.bus'].removeprefix('0x').lower()}00"),
        ("gpu_part_number", "26BA-850-A1"),
        ("gpu_recovery_action", gpu["gpu_recovery_action"]),
        ("gsp_firmware_version", gpu["driver_version"]),
        ("pci", pci_tree(gpu)),
        ("fan_speed", plain(gpu["fan.speed"])),
        ("performance_state", gpu["pstate"]),
        ("clocks_event_reasons", event_reasons(gpu)),
        ("fb_memory_usage", memory),
        (
            "bar1_memory_usage",
            [("total", "65536 MiB"), ("used", "1 MiB"), ("free", "65535 MiB")],
        ),
        ("compute_mode", gpu["compute_mode"]),
        (
            "utilization",
            [("gpu_util", gpu["utilization.gpu"]), ("memory_util", gpu["utilization.memory"])],
        ),
        (
            "ecc_mode",
            [
                ("current_ecc", gpu["ecc.mode.current"]),
                ("pending_ecc", gpu["ecc.mode.pending"]),
            ],
        ),
        (
            "ecc_errors",
            [
                ("volatile", ecc_counts(gpu, "volatile")),
                ("aggregate", ecc_counts(gpu, "aggregate")),
            ],
        ),
        ("retired_pages", retired_pages(gpu)),
        (
            "remapped_rows",
            [
                ("remapped_row_corr", gpu["remapped_rows.correctable"]),
                ("remapped_row_unc", gpu["remapped_rows.uncorrectable"]),
                ("remapped_row_pending", gpu["remapped_rows.pending"]),
                ("remapped_row_failure", gpu["remapped_rows.failure"]),
            ],
        ),
        (
            "temperature",
            [
                ("gpu_temp", f"{gpu['temperature.gpu']} C"),
                ("gpu_temp_max_threshold", "92 C"),
                ("gpu_temp_slow_threshold", "89 C"),
                ("gpu_temp_max_gpu_threshold", "87 C"),
                ("gpu_target_temperature", "N/A"),
                ("memory_temp", plain(gpu["temperature.memory"])),
                ("gpu_temp_max_mem_threshold", "N/A"),
            ],
        ),
        ("gpu_power_readings", power_tree(gpu)),
        (
            "clocks",
            [
                ("graphics_clock", gpu["clocks.current.graphics"]),
                ("sm_clock", gpu["clocks.current.sm"]),
                ("mem_clock", gpu["clocks.current.memory"]),
                ("video_clock", gpu["clocks.current.video"]),
            ],
        ),
        (
            "max_clocks",
            [
                ("graphics_clock", gpu["clocks.max.graphics"]),
                ("sm_clock", gpu["clocks.max.sm"]),
                ("mem_clock", gpu["clocks.max.memory"]),
                ("video_clock", "1965 MHz"),
            ],
        ),
        ("processes", processes_tree(gpu)),
    ]


def render_tree(tree: Tree, depth: int) -> list[str]:
    indent = "\t" * depth
    lines = []
    for tag, content in tree:
        if isinstance(content, str):
            lines.append(f"{indent}<{tag}>{content}</{tag}>")
        else:
            lines += [f"{indent}<{tag}>", *render_tree(content, depth + 1), f"{indent}</{tag}>"]
    return lines


def render_xml(gpus: list[Gpu], timestamp: str, driver: str, cuda: str) -> str:
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{timestamp}</timestamp>",
        f"\t<driver_version>{driver}</driver_version>",
        f"\t<cuda_version>{cuda}</cuda_version>",
        f"\t<attached_gpus>{len(gpus)}</attached_gpus>",
    ]
    for gpu in gpus:
        lines += [f'\t<gpu id="{gpu["pci.bus_id"]}">', *render_tree(gpu_tree(gpu), 2), "\t</gpu>"]
    return "\n".join([*lines, "", "</nvidia_smi_log>"]) + "\n"
