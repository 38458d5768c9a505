"""A stand-in for nvidia-smi on hosts without GPUs: eight L20, or the bad state the lab has set."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from lab.standins.gpu_states import HEALTHY, STATES, State
from lab.standins.l20 import (
    COMMON,
    CPU_AFFINITY,
    CUDA,
    DRIVER,
    NICS,
    Gpu,
    card,
    link_between,
    numa_node,
)
from lab.standins.nvidia_smi_xml import render_xml

STATE_FILE = Path("/etc/fleet-lab/gpu-state")
NODES = Path("/sys/devices/system/node")
BAD_USAGE = 2
UNITS = ("MiB", "W", "MHz", "%")
# Other names of the same properties: nvidia-smi --help-query-gpu.
ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
}
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501 - nvidia-smi's own lines

Answer = tuple[str, int]
"""What to print and the exit status."""


def gpus_of(host: str, state: State) -> list[Gpu]:
    """The cards that the driver lists, in order, each with its index."""
    changes, missing = state.get("cards", {}), state.get("missing", [])
    slots = [slot for slot in range(8) if slot not in missing]
    return [
        {
            **card(host, slot),
            **changes.get(slot, {}),
            **held_memory(state.get("held", {}).get(slot)),
            "index": str(index),
            "count": str(len(slots)),
            "driver_version": state.get("driver", DRIVER),
        }
        for index, slot in enumerate(slots)
    ]


def held_memory(size: str | None) -> Gpu:
    """Properties of a card of which the asking process holds that much."""
    if size is None:
        return {}
    total, reserved, mib = (
        int(word.split()[0]) for word in (COMMON["memory.total"], COMMON["memory.reserved"], size)
    )
    return {
        "process.pid": str(os.getppid()),
        "process.name": "VLLM::Worker_TP3",
        "process.used_memory": size,
        "memory.used": f"{mib + 1} MiB",
        "memory.free": f"{total - reserved - mib} MiB",
    }


def list_gpus(gpus: list[Gpu]) -> str:
    return "".join(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n" for gpu in gpus)


def selected(gpus: list[Gpu], wanted: str) -> list[Gpu]:
    """Cards for `-i`: indices, UUIDs or bus ids, by commas. ValueError for an unknown one."""
    found = []
    for word in wanted.split(","):
        matches = [gpu for gpu in gpus if word in (gpu["index"], gpu["uuid"], gpu["pci.bus_id"])]
        if not matches:
            raise ValueError(word)
        found += matches
    return found


def property_of(gpu: Gpu, name: str, timestamp: str) -> str:
    return timestamp if name == "timestamp" else gpu[name]


def canonical(name: str) -> str:
    name = ALIASES.get(name, name)
    return name.replace("clocks_throttle_reasons.", "clocks_event_reasons.")


def unit_of(value: str) -> str:
    unit = value.rpartition(" ")[2]
    return unit if unit in UNITS and " " in value else ""


def query(gpus: list[Gpu], names: list[str], output_format: list[str]) -> Answer:
    """--query-gpu=... --format=csv[,noheader][,nounits]."""
    if "csv" not in output_format:
        return '"--format=" switch is missing. Please run "nvidia-smi -h" for help.\n', BAD_USAGE
    known = card("any", 0).keys() | {"index", "count", "timestamp"}
    for name in names:
        if canonical(name) not in known - {"slot"}:
            return f'Field "{name}" is not a valid field to query.\n\n', BAD_USAGE
    timestamp = time.strftime("%Y/%m/%d %H:%M:%S.000")
    lines = []
    if "noheader" not in output_format:
        example = card("any", 0)
        units = [unit_of(example.get(canonical(name), "")) for name in names]
        units = [
            "%" if name == "fan.speed" else unit for name, unit in zip(names, units, strict=True)
        ]
        lines.append(
            ", ".join(
                f"{name} [{unit}]" if unit else name
                for name, unit in zip(names, units, strict=True)
            )
        )
    for gpu in gpus:
        values = [property_of(gpu, canonical(name), timestamp) for name in names]
        if "nounits" in output_format:
            values = [value.removesuffix(f" {unit_of(value)}") for value in values]
        lines.append(", ".join(values))
    return "".join(f"{line}\n" for line in lines), 0


def query_processes(gpus: list[Gpu], names: list[str], output_format: list[str]) -> Answer:
    """--query-compute-apps: no process but the one of the state "orphan"."""
    header = ", ".join(f"{n} [MiB]" if n.startswith("used") else n for n in names)
    lines = [] if "noheader" in output_format else [header]
    for gpu in gpus:
        if "process.pid" in gpu:
            said = {
                "pid": gpu["process.pid"],
                "process_name": gpu["process.name"],
                "used_memory": gpu["process.used_memory"],
                "used_gpu_memory": gpu["process.used_memory"],
                "gpu_uuid": gpu["uuid"],
                "gpu_name": gpu["name"],
                "gpu_bus_id": gpu["pci.bus_id"],
            }
            lines.append(", ".join(said.get(name, "[N/A]") for name in names))
    return "".join(f"{line}\n" for line in lines), 0


def topology(gpus: list[Gpu], node_cpus: tuple[str, ...]) -> str:
    """`topo -m`: underlined header even when no terminal reads it, cells parted by tabs.

    node_cpus: the CPUs of each NUMA node of the machine. With less than two all cards are at the
    first, since a card at a node that is not there would be a fault of its own.
    """
    several = len(node_cpus) > 1
    far = "SYS" if several else "NODE"

    def node_of(slot: int) -> int:
        return numa_node(slot) if several else 0

    def link(one: int, other: int) -> str:
        found = link_between(one, other)
        return far if found == "SYS" else found

    slots = [int(gpu["slot"]) for gpu in gpus]
    columns = [f"GPU{index}" for index in range(len(slots))] + [
        f"NIC{index}" for index in range(len(NICS))
    ]
    tail = "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    lines = ["\t\x1b[4m" + "\t".join(columns) + tail + "\x1b[0m"]
    for index, slot in enumerate(slots):
        cells = [link(slot, other) for other in slots]
        cells += ["NODE" if numa_node(slot) == nic else far for nic in range(len(NICS))]
        node = node_of(slot)
        cpus = node_cpus[node] if node_cpus else ""
        lines.append(f"GPU{index}\t" + "\t".join(cells) + f"\t{cpus}\t{node}\t\tN/A")
    for nic in range(len(NICS)):
        cells = ["NODE" if numa_node(slot) == nic else far for slot in slots]
        cells += [" X " if other == nic else far for other in range(len(NICS))]
        lines.append(f"NIC{nic}\t" + "\t".join(cells) + "\t\t\t\t")
    nics = "".join(f"  NIC{index}: {name}\n" for index, name in enumerate(NICS))
    return "\n".join(lines) + f"\n{LEGEND}\nNIC Legend:\n\n{nics}\n"


def table(gpus: list[Gpu], driver: str, cuda: str) -> str:
    """nvidia-smi without arguments."""
    rule = f"+{'':-<41}+{'':-<24}+{'':-<22}+"
    blank = f"|{'':41}|{'':24}|{'MIG M.':>21} |"
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y       "),
        "+-----------------------------------------------------------------------------------------+",
        f"| {f'NVIDIA-SMI {driver}':<26}{f'     Driver Version: {driver}':<39}"
        f"{f'CUDA Version: {cuda}':<22} |",
        rule,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A "
        "| Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage "
        "| GPU-Util  Compute M. |",
        blank,
        "|" + rule[1:-1].replace("-", "=") + "|",
    ]
    for gpu in gpus:
        persistence = "On" if gpu["persistence_mode"] == "Enabled" else "Off"
        draw, cap = (round(float(gpu[name].split()[0])) for name in ("power.draw", "power.limit"))
        memory = (
            f"{gpu['memory.used'].replace(' ', ''):>8} / {gpu['memory.total'].replace(' ', ''):>9}"
        )
        ecc = gpu["ecc.errors.uncorrected.volatile.total"]
        load = gpu["utilization.gpu"].replace(" ", "")
        lines += [
            f"| {gpu['index']:>3}  {gpu['name']:<27}{persistence:>6}  "
            f"|   {gpu['pci.bus_id']} Off | {ecc:>20} |",
            f"| N/A {gpu['temperature.gpu']:>4}C{gpu['pstate']:>6} {draw:>14}W /{cap:>5}W "
            f"| {memory:>22} | {load:>7}{gpu['compute_mode']:>13} |",
            f"|{'':41}|{'':24}|{'N/A':>21} |",
            rule,
        ]
    processes = """
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""
    return "\n".join(lines) + "\n" + processes


def parse(argv: list[str]) -> dict[str, str]:
    """Options as nvidia-smi takes them: `-i 0`, `--id=0`, `--query-gpu=...`, and two words."""
    options: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        name, has_value, value = word.partition("=")
        name = {"--id": "-i", "--query": "-q", "--xml-format": "-x", "--list-gpus": "-L"}.get(
            name, name
        )
        name = {"--matrix": "-m", "--persistence-mode": "-pm"}.get(name, name)
        if name in ("-i", "-pm", "-d", "-f") and not has_value and words:
            value = words.pop(0)
        options[name] = value
    return options


def answer(
    argv: list[str], host: str, state_name: str, node_cpus: tuple[str, ...] = CPU_AFFINITY
) -> Answer:
    """What nvidia-smi prints on that host in that state. `hang` is the caller's affair."""
    state = STATES[state_name]
    if "says" in state:
        return state["says"], state["exit"]
    options = parse(argv)
    gpus = gpus_of(host, state)
    driver, cuda = state.get("driver", DRIVER), state.get("cuda", CUDA)
    if "-i" in options:
        try:
            gpus = selected(gpus, options["-i"])
        except ValueError as error:
            return f'No devices were found matching "{error}"\n', 6
    output_format = [word.strip() for word in options.get("--format", "").split(",")]
    if "topo" in options and "-m" in options:
        return topology(gpus, node_cpus), 0
    if "--query-gpu" in options:
        names = [name.strip() for name in options["--query-gpu"].split(",")]
        return query(gpus, names, output_format)
    for option in ("--query-compute-apps", "--query-accounted-apps"):
        if option in options:
            return query_processes(gpus, options[option].split(","), output_format)
    if "--query-remapped-rows" in options:
        names = [name.strip() for name in options["--query-remapped-rows"].split(",")]
        return query(gpus, names, output_format)
    if "-q" in options and "-x" in options:
        xml = render_xml(gpus, time.strftime("%a %b %e %H:%M:%S %Y"), driver, cuda)
        return (xml[: len(xml) // 2] if state.get("cut") else xml), 0
    if "-L" in options:
        return list_gpus(gpus), 0
    if "--gpu-reset" in options:
        lines = [f"GPU {gpu['pci.bus_id']} was successfully reset.\n" for gpu in gpus]
        return "".join(lines) + "All done.\n", 0
    if "-pm" in options:
        lines = [f"Enabled persistence mode for GPU {gpu['pci.bus_id']}.\n" for gpu in gpus]
        return "".join(lines) + "All done.\n", 0
    if "--version" in options:
        return (
            f"NVIDIA-SMI version  : {driver}\nNVML version        : {driver.rpartition('.')[0]}\n"
            f"DRIVER version      : {driver}\nCUDA Version        : {cuda}\n",
            0,
        )
    if set(options) <= {"-i"}:
        return table(gpus, driver, cuda), 0
    return f"The lab's stand-in for nvidia-smi does not know: {' '.join(argv)}\n", BAD_USAGE


def machine_nodes() -> tuple[str, ...]:
    """The CPUs of each NUMA node, as /sys lists them."""
    nodes = sorted(NODES.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    return tuple((node / "cpulist").read_text().strip() for node in nodes)


def current_state() -> str:
    """The state the lab has set; a host that the lab has not told anything is healthy."""
    try:
        name = STATE_FILE.read_text().strip()
    except FileNotFoundError:
        return HEALTHY
    return name if name in STATES else HEALTHY


def main(argv: list[str]) -> int:
    name = current_state()
    if STATES[name].get("hangs"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            time.sleep(3600)
    text, status = answer(argv, os.uname().nodename, name, machine_nodes())
    sys.stdout.write(text)
    return status
