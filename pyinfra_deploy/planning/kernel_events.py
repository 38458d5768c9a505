"""Kernel lines about GPUs since boot: Xid codes by severity."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.facts.hardware import Gpu, Hardware, KernelEvent
    from pyinfra_deploy.planning.tables.rows import XidCode

_ADDRESS = re.compile(
    r"(?:(?P<domain>[0-9a-f]+):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-7])?",
    re.IGNORECASE,
)
_FALLEN = re.compile(r"fallen off the bus|GPU is lost", re.IGNORECASE)


def events_of(hardware: Hardware) -> tuple[KernelEvent, ...]:
    """The events, "fallen off the bus" counted as Xid 79 also where the driver gives no number."""
    return tuple(
        replace(event, code=79) if event.code is None and _FALLEN.search(event.text) else event
        for event in hardware.kernel_events
    )


def same_device(first: str | None, second: str | None) -> bool:
    """Two spellings of one PCI address: 0000:3b:00, 00000000:3B:00.0."""
    if first is None or second is None:
        return False
    one, other = _device(first), _device(second)
    return one is not None and one == other


@functools.cache
def _device(address: str) -> tuple[int, int, int] | None:
    match = _ADDRESS.search(address)
    if match is None:
        return None
    return int(match["domain"] or "0", 16), int(match["bus"], 16), int(match["device"], 16)


def events_on(hardware: Hardware, gpu: Gpu, about: str) -> list[KernelEvent]:
    """Xid events of one GPU that are about `about` (memory, power, ...)."""
    return [
        event
        for event in events_of(hardware)
        if same_device(event.pci_address, gpu.pci_address)
        and (row := _row(event.code)) is not None
        and row.about == about
    ]


@functools.cache
def _codes() -> dict[int, XidCode]:
    return {row.code: row for row in tables.xid_codes().codes}


def _row(code: int | None) -> XidCode | None:
    return _codes().get(code) if code is not None else None


def xid_findings(
    hardware: Hardware, explained: bool = False, some_missing: bool = False
) -> Iterator[Finding]:
    """One finding for each code; of the fatal ones on one card only the first refuses, since the
    others follow from it. `explained`: a refusal for what caused them stands already, so they are
    notes beside it. `some_missing`: the same for lines about cards that the driver does not list.
    """
    by_code: dict[int, list[KernelEvent]] = {}
    for event in events_of(hardware):
        # health_findings tells errors of a card's memory, where the driver counts them too.
        if event.code is not None and not _memory_is_told(hardware, event):
            by_code.setdefault(event.code, []).append(event)
    refused: list[str | None] = []
    for code, events in by_code.items():
        beside = explained or (
            some_missing and not any(_is_listed(hardware, event) for event in events)
        )
        row = _row(code)
        if row is not None and row.severity == "refuse" and not beside:
            places = {event.pci_address for event in events}
            beside = places <= set(refused)
            refused += places
        yield _finding(code, events, beside, hardware.host)


def _is_listed(hardware: Hardware, event: KernelEvent) -> bool:
    return any(same_device(gpu.pci_address, event.pci_address) for gpu in hardware.gpus)


def _memory_is_told(hardware: Hardware, event: KernelEvent) -> bool:
    row = _row(event.code)
    return (
        row is not None
        and row.about == "memory"
        and any(
            same_device(gpu.pci_address, event.pci_address) and has_memory_errors(gpu)
            for gpu in hardware.gpus
        )
    )


def has_memory_errors(gpu: Gpu) -> bool:
    """That alone refuses the card."""
    return bool(
        gpu.ecc_uncorrected_volatile
        or gpu.retired_pages_pending
        or gpu.remapped_rows_pending
        or gpu.remapped_rows_failed
    )


def _finding(code: int, events: list[KernelEvent], explained: bool, host: str) -> Finding:
    row = _row(code)
    places = sorted({event.pci_address for event in events if event.pci_address})
    subject = f"Xid {code}" + (f" on {', '.join(places)}" if places else "")
    times = f"{len(events)} times since boot" if len(events) > 1 else "once since boot"
    evidence = events[-1].text
    source = tables.xid_codes().source
    if row is None:
        return Finding(
            "gpu.xid-unknown",
            "warn",
            host,
            subject,
            f"the driver reported Xid {code} {times}, which is not in the table",
            "look it up in NVIDIA's catalogue of Xid errors and add it to planning/tables/xid.yml",
            evidence=evidence,
            source=source,
        )
    message = f"{row.meaning} ({times})"
    if row.severity == "refuse" and not explained:
        return Finding(
            "gpu.xid-fatal",
            "refuse",
            host,
            subject,
            message,
            row.action,
            evidence=evidence,
            source=source,
        )
    if row.severity == "note" or explained:
        return Finding(
            "gpu.xid-note",
            "note",
            host,
            subject,
            message,
            row.action,
            evidence=evidence,
            source=source,
        )
    return Finding(
        "gpu.xid-warning",
        "warn",
        host,
        subject,
        message,
        row.action,
        evidence=evidence,
        source=source,
    )
