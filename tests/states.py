"""States of the lab's simulated GPUs -> what the plan has to say of them; shared by the unit tests
and those on hosts."""

# The one refusal of each, "" where there is none, by the settings of production: eight L20 with
# x16, vLLM for CUDA 13.
REFUSALS = {
    "ok": "",
    "fans": "",
    "no-driver": "gpu.no-driver",
    "mismatch": "gpu.driver-mismatch",
    "lost": "gpu.lost",
    "unknown-error": "gpu.lost",
    "none": "gpu.none",
    "no-library": "gpu.no-driver",
    "hang": "gpu.hang",
    "cut": "",
    "old-driver": "compat.driver-too-old",
    "older-driver": "compat.driver-too-old",
    "seven": "gpu.too-few",
    "fallen-off": "gpu.fallen-off",
    "gsp": "gpu.xid-fatal",
    "app-error": "",
    "narrow": "gpu.pcie-width",
    "half": "gpu.pcie-width",
    "slot": "gpu.pcie-width",
    "narrow-idle": "",
    "slow-memory": "",
    "hot": "gpu.thermal-slowdown",
    "ecc": "gpu.ecc-uncorrected",
    "retirement": "gpu.page-retirement-pending",
    "remap": "gpu.row-remap-pending",
    "remap-failed": "gpu.row-remap-failed",
    "brake": "gpu.power-brake",
    "warm": "",
    "limited": "",
    "mig": "gpu.mig-enabled",
    "mixed": "gpu.mixed-models",
    "other-model": "gpu.wrong-model",
    "display": "",
    "orphan": "gpu.orphan-memory",
    "busy": "gpu.memory-in-use",
    "no-persistence": "",
}
# What is said of those that are not refused.
LESSER = {
    # What --query-gpu says of the cards is enough to judge them.
    "cut": "facts.unread",
    "app-error": "gpu.xid-note",
    "narrow-idle": "gpu.pcie-width-idle",
    "slow-memory": "gpu.memory-clock-low",
    "warm": "gpu.temperature-near-limit",
    "limited": "gpu.power-limit-low",
    "display": "gpu.display-active",
    "no-persistence": "gpu.persistence-off",
}
