"""From what nvidia-smi prints to the finding: the lab's bad states, and recorded reality."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_host import collect

from lab.standins import driver, nvidia_smi
from lab.standins.gpu_states import STATES
from pyinfra_deploy.facts import raw
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.facts.raw import RawOutput
from pyinfra_deploy.planning.compatibility import check
from pyinfra_deploy.planning.hardware_findings import hardware_findings
from tests.states import LESSER, REFUSALS
from tests.unit.planning_compat.hosts import QWEN3_FP8, host, ids, settings


def outputs(state: str) -> dict[str, RawOutput]:
    if STATES[state].get("hangs"):
        return {raw.SMI_XML: RawOutput("", 124, "no answer")}
    found = {
        name: RawOutput(*nvidia_smi.answer(argv, "gpu1", state))
        for name, argv in (
            (raw.SMI_XML, ["-q", "-x"]),
            (raw.SMI_QUERY, [f"--query-gpu={collect.QUERIES[0]}", "--format=csv"]),
            (raw.SMI_TOPOLOGY, ["topo", "-m"]),
        )
    }
    pid = nvidia_smi.gpus_of("gpu1", STATES["orphan"])[3]["process.pid"]
    return found | {
        raw.KERNEL_LOG: RawOutput(driver.dmesg(STATES[state])),
        raw.MODULE_LOADED: RawOutput(driver.version_file(STATES[state])),
        raw.MODULE_INSTALLED: RawOutput(
            *driver.modinfo(["-F", "version", "nvidia"], STATES[state])
        ),
        raw.PROCESSES: RawOutput(f"{pid}\tbash\t/user.slice/user-1000.slice/session-4.scope\n"),
    }


@pytest.mark.parametrize("state", STATES)
def test_the_labs_bad_states(state: str) -> None:
    hardware = assemble("gpu1", outputs(state))
    found = (*hardware_findings(hardware, settings()), *check(hardware, settings(), QWEN3_FP8))
    assert ids(found, "refuse") == [*filter(None, [REFUSALS[state]])]
    if state in LESSER:
        assert LESSER[state] in ids(found)


@pytest.mark.parametrize(
    ("state", "refusal"), [("remap-failed", "gpu.row-remap-failed"),
                           ("remap", "gpu.row-remap-pending"),
                           ("retirement", "gpu.page-retirement-pending"),
                           ("ecc", "gpu.ecc-uncorrected"),
                           ("orphan", "gpu.orphan-memory"), ("mig", "gpu.mig-enabled")]
)  # fmt: skip
def test_half_an_xml_hides_nothing_that_refuses(state: str, refusal: str) -> None:
    """The collector asks remapped rows and processes by themselves then."""
    found = outputs(state)
    xml = found[raw.SMI_XML].text
    found[raw.SMI_XML] = RawOutput(xml[: len(xml) // 2])
    found |= {
        name: RawOutput(*nvidia_smi.answer([query, "--format=csv"], "gpu1", state))
        for name, query in collect.INSTEAD_OF_XML.items()
    }
    hardware = assemble("gpu1", found)
    assert "known from --query-gpu only" in dict(hardware.unread)[raw.SMI_XML]
    assert ids(hardware_findings(hardware, settings()), "refuse") == [refusal]


def test_what_was_not_asked_is_said_where_the_xml_is_cut() -> None:
    found = outputs("remap-failed")
    found[raw.SMI_XML] = RawOutput(found[raw.SMI_XML].text[:9000])
    hardware = assemble("gpu1", found)
    assert {raw.SMI_REMAPPED, raw.SMI_APPS} <= dict(hardware.unread).keys()


def test_at_least_twenty_states_are_refused() -> None:
    assert sum(bool(refusal) for refusal in REFUSALS.values()) >= 20


CORPUS = Path(os.environ.get("CORPUS", "none")) / "smi"
RECORDED = sorted(path for path in CORPUS.glob("*") if path.suffix in (".xml", ".txt"))


@pytest.mark.skipif(not RECORDED, reason="$CORPUS names no directory with recorded outputs")
def test_recorded_outputs_are_judged_and_nothing_stumbles() -> None:
    anything = settings(args={}, gpu_host={})
    for path in RECORDED:
        text = path.read_text(encoding="utf-8", errors="replace")
        for name in (raw.SMI_XML, raw.KERNEL_LOG, raw.SMI_TOPOLOGY):
            hardware = assemble("gpu1", {name: RawOutput(text)})
            for one in (hardware, replace(host(), kernel_events=hardware.kernel_events)):
                found = (*hardware_findings(one, anything), *check(one, anything, QWEN3_FP8))
                assert all(f.message and f.fix for f in found), path.name
        if path.name.startswith("fail_"):
            hardware = assemble("gpu1", {raw.SMI_XML: RawOutput(text, 1)})
            found = hardware_findings(hardware, anything)
            assert len(ids(found, "refuse")) == 1, path.name
