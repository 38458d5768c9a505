"""Kernel lines about GPUs, in each of the formats in which people save them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.facts.errors import UnreadableOutput
from pyinfra_deploy.facts.kernel_log import parse_kernel_log

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import KernelEvent

DIRECTORY = Path(__file__).parent / "fixtures" / "kernel"


def events(name: str) -> tuple[KernelEvent, ...]:
    return parse_kernel_log((DIRECTORY / f"{name}.txt").read_text())[0]


def test_xids_with_codes_addresses_and_seconds() -> None:
    found = events("dmesg")
    assert [(event.code, event.pci_address, event.seconds) for event in found][:4] == [
        (63, "0000:38:00.0", 401.220145),
        (95, "0000:38:00.0", 402.9),
        (79, "0000:a8:00.0", 9021.551),
        (None, "0000:a8:00.0", 9021.55102),
    ]
    # Loading, serial numbers and crash dumps are no trouble of their own; nor is another driver's.
    assert not any("loading" in event.text or "EXT4" in event.text for event in found)
    assert not any("Board Serial" in event.text or "crash dump" in event.text for event in found)


def test_messages_of_several_lines_are_one_event() -> None:
    (mismatch,) = events("mismatch")
    assert mismatch.text.startswith("NVRM: API mismatch: the client has the version 570.190, but")
    assert "this kernel module has the version 570.181" in mismatch.text
    gone = [event for event in events("gsp") if "fallen off" in event.text]
    assert [(event.pci_address, event.seconds) for event in gone] == [("0000:d8:00.0", 703.0001)]
    (raw,) = events("raw-levels")
    assert (raw.pci_address, raw.seconds) == ("0000:d8:00.0", 88.125)
    assert raw.text.endswith("fallen off the bus and is not responding to commands.")


def test_gsp_failures() -> None:
    found = events("gsp")
    assert "Cannot initialize GSP firmware RM" in found[0].text
    assert found[1].pci_address == found[3].pci_address == "0000:5a:00.0"
    assert [event.code for event in found if event.code] == [119]
    assert any("rm_init_adapter failed" in event.text for event in found)
    assert any("probe of 0000:d8:00.0 failed" in event.text for event in found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dmesg-T", [(31, "0001:00:00.0", None)]),
        ("journal", [(48, "0000:c1:00.0", None), (45, "0000:c1:00.0", None)]),
        ("kmsg", [(13, "0000:38:00.0", 401.220145)]),
    ],
)
def test_other_formats(name: str, expected: list[tuple[int, str, float | None]]) -> None:
    found = [(event.code, event.pci_address, event.seconds) for event in events(name)]
    assert found == expected


def test_an_xid_line_that_cannot_be_read_is_told() -> None:
    _, unread = parse_kernel_log((DIRECTORY / "raw-levels.txt").read_text())
    assert unread == ("NVRM: Xid (garbled): what",)


def test_an_empty_log_is_not_a_quiet_one() -> None:
    with pytest.raises(UnreadableOutput, match="empty"):
        parse_kernel_log("\n")
    assert parse_kernel_log("[    0.000000] Linux version 6.8\n") == ((), ())
