"""The fans of GPUs that have their own: follow a curve of temperatures, and always give them back.

Setting a fan switches its policy to manual, and the driver then leaves it as it is however hot the
card becomes (nvml.h, nvmlDeviceSetFanSpeed_v2). So whoever sets one has to give it back, whatever
happens: this program when it is stopped or fails, the unit's ExecStopPost= when it was killed or
hung (WatchdogSec=), its ExecStartPre= whenever it starts, at boot too, where the driver begins with
automatic control anyhow.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import durable, fields, layout, nvml, stamp
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .nvml import Card, Library

UNIT = "llm-fans"
# A fan is slowed down only by as much as can be heard: no hunting around a point of the curve.
SLOWER_BY_PERCENT = 5


@dataclass(frozen=True)
class Curve:
    """(temperature in C, speed in percent), ascending."""

    points: tuple[tuple[int, int], ...]

    def percent_at(self, temperature_c: int) -> int:
        """On the line between two points; beyond the ends, that of the end. Rounded up."""
        before = self.points[0]
        if temperature_c <= before[0]:
            return before[1]
        for point in self.points[1:]:
            if temperature_c <= point[0]:
                degrees, rise = point[0] - before[0], point[1] - before[1]
                return before[1] - (-(temperature_c - before[0]) * rise) // degrees
            before = point
        return before[1]


def configuration_path() -> Path:
    return layout.etc_root() / "llm" / "fans.json"


def read_configuration() -> tuple[Curve, float]:
    """(curve, seconds between two looks). SpecError when the file is not what the deploy writes."""
    path = configuration_path()
    document = durable.read_json(path)
    if not isinstance(document, dict):
        raise SpecError(f"{path} is missing", "it holds the curve.", "Deploy again.")
    points = document.get("curve")
    if not isinstance(points, list) or not points or not all(_is_point(point) for point in points):
        raise SpecError(f"{path} has no curve", "it must hold pairs of numbers.", "Deploy again.")
    curve = tuple((point[0], point[1]) for point in points)
    rising = all(one[0] < two[0] and one[1] <= two[1] for one, two in itertools.pairwise(curve))
    if not rising or not all(0 <= percent <= 100 for _, percent in curve):
        raise SpecError(
            f"the curve in {path} does not rise", "hotter must not mean slower.", "Deploy again."
        )
    return Curve(curve), fields.seconds(document, "poll_seconds", 5.0)


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(isinstance(number, int) and not isinstance(number, bool) for number in point)
    )


def run(_request: dict[str, Any]) -> dict[str, Any]:
    """`fans run`: the main process of llm-fans.service, until SIGTERM."""
    curve, poll_seconds = read_configuration()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with nvml.opened() as library:
        cards = library.cards()
        _refuse_passive(cards)
        set_to: dict[int, int] = {}
        stamped = False
        try:
            while not stop.is_set():
                for card in cards:
                    follow(library, card, curve, set_to)
                if not stamped:
                    stamp.write(UNIT, configuration_path())
                    stamped = True
                _tell_systemd("READY=1\nWATCHDOG=1")
                stop.wait(poll_seconds)
        finally:
            give_back_all(library, cards)
    return {"stopped": True}


def _refuse_passive(cards: Sequence[Card]) -> None:
    passive = [str(card.index) for card in cards if not card.fans]
    if passive or not cards:
        raise SpecError(
            f"GPU {', '.join(passive)} has no fan" if passive else "there is no GPU",
            "the chassis cools a passive card, and NVML sets nothing there."
            if passive
            else "NVML lists none.",
            "Write gpu_cooling: report (or bmc, on a board that is known).",
        )


def follow(library: Library, card: Card, curve: Curve, set_to: dict[int, int]) -> None:
    """Set one card's fans as its temperature asks. set_to: GPU -> percent that was set last."""
    temperature_c = library.temperature_c(card)
    percent = min(max(curve.percent_at(temperature_c), card.lowest), card.highest)
    last = set_to.get(card.index)
    if last is not None and last - SLOWER_BY_PERCENT < percent <= last:
        percent = last
    # Also where nothing changes: another program may have set it meanwhile.
    for fan in range(card.fans):
        library.set_speed(card, fan, percent)
    if percent != last:
        _say(f"GPU {card.index}: {temperature_c} C, fans to {percent}%")
    set_to[card.index] = percent


def restore(_request: dict[str, Any]) -> dict[str, Any]:
    """`fans restore` -> {restored: number of fans}: automatic control for every fan there is."""
    with nvml.opened() as library:
        return {"restored": give_back_all(library, library.cards())}


def give_back_all(library: Library, cards: Sequence[Card]) -> int:
    """Every fan, also after one could not be given back. HostError at the end if any could not."""
    failed: list[HostError] = []
    done = 0
    for card in cards:
        for fan in range(card.fans):
            try:
                library.give_back(card, fan)
                done += 1
            except HostError as error:
                failed.append(error)
    if failed:
        raise HostError(
            f"{len(failed)} fans could not be given back to the driver",
            failed[0].why,
            "They stay at their last speed: drain the host and reboot it, which gives them back.",
            [f"{error.what}: {error.why}" for error in failed],
        )
    return done


def _tell_systemd(text: str) -> None:
    """sd_notify(3): one datagram to $NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.connect(address)
        channel.send(text.encode())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
