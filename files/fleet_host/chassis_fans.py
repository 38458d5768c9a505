"""The fans of the chassis, through the BMC: set by a board's own raw commands, proven, undone.

The deploy chooses the commands from its table by the board's name and writes them, with that name,
to /etc/llm/chassis-fans.json; a raw command means something else on another board, so the name is
compared again here. A BMC keeps what it was told when the host restarts: what has to be undone is
in a state file, written before the first command.
"""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import durable, fields, layout, stamp
from .errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

UNIT = "llm-chassis-fans"
IPMITOOL_SECONDS = 30.0
POLL_SECONDS = 3.0
# Fans differ by a percent or two from one reading to the next.
REACTED = 0.05
DMI_NAMES = ("sys_vendor", "product_name", "board_vendor", "board_name")
KEYS = {"board", "name", "percent", "read_mode", "set", "undo", "settle_seconds"}
_READING = re.compile(r"^([^|]+)\|[^|]*\|\s*(\w+)\s*\|[^|]*\|\s*([\d.]+) RPM\s*$")
_BYTE = re.compile(r"[0-9a-f]{2}")


class Declined(HostError):
    """The BMC answered, and did not do it."""


@dataclass(frozen=True)
class Fans:
    """`ipmitool sdr type fan`: RPM by name, and the fans that the BMC itself calls critical."""

    rpm: dict[str, float]
    critical: tuple[str, ...]

    @property
    def mean(self) -> float:
        return sum(self.rpm.values()) / len(self.rpm)


def parse_fans(text: str) -> Fans:
    """Lines "NAME | ID | STATUS | ENTITY | 4200 RPM"; others (no reading, redundancy) say nothing
    of a speed. Status cr and nr are critical and non-recoverable (ipmitool(1), sdr)."""
    rpm: dict[str, float] = {}
    critical = []
    for line in text.splitlines():
        match = _READING.match(line)
        if match is None:
            continue
        name, status, value = match.group(1).strip(), match.group(2), float(match.group(3))
        if value > 0:
            rpm[name] = value
        if status in ("cr", "nr", "lcr", "lnr", "ucr", "unr"):
            critical.append(name)
    return Fans(rpm, tuple(critical))


def ipmitool(arguments: list[str]) -> str:
    words = " ".join(["ipmitool", *arguments])
    try:
        done = subprocess.run(
            ["ipmitool", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=IPMITOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(
            f"'{words}' could not be run",
            f"{error}.",
            "Look at /dev/ipmi0 (modprobe ipmi_si ipmi_devintf) and at 'ipmitool mc info'.",
        ) from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Declined(
            f"'{words}' failed with exit code {done.returncode}",
            (lines or ["it printed no reason."])[-1],
            "A BMC whose firmware refuses raw commands cannot be set from here: write "
            "gpu_cooling: report, and set the fan profile in the BMC's own interface.",
            lines,
        )
    return done.stdout


def read_fans() -> Fans:
    fans = parse_fans(ipmitool(["sdr", "type", "fan"]))
    if not fans.rpm:
        raise HostError(
            "the BMC tells no fan's speed",
            "'ipmitool sdr type fan' has no line with RPM, so a change could not be proven.",
            "Write gpu_cooling: report.",
        )
    return fans


def read_mode(command: str | None) -> str | None:
    """The BMC's fan mode, a byte like "02"; None for boards that do not tell it."""
    if command is None:
        return None
    answer = ipmitool(command.split()).strip().lower()
    if not _BYTE.fullmatch(answer):
        raise HostError(
            "the BMC's fan mode cannot be read",
            f"'ipmitool {command}' said {answer!r}.",
            "Write gpu_cooling: report.",
        )
    return answer


def record_path() -> Path:
    return layout.state_root() / UNIT / "before.json"


def configuration_path() -> Path:
    return layout.etc_root() / "llm" / "chassis-fans.json"


def apply(_request: dict[str, Any]) -> dict[str, Any]:
    """`chassis-fans apply` -> {before, after: mean RPM}. Undone when the fans do not react."""
    spec = durable.read_json(configuration_path())
    if not isinstance(spec, dict):
        raise SpecError(f"{configuration_path()} is missing", "nothing to do.", "Deploy again.")
    fields.refuse_unknown(spec, KEYS, "chassis fans")
    _same_board(fields.text_map(spec, "board"))
    record = durable.read_json(record_path())
    fresh = not isinstance(record, dict)
    if fresh:
        # Else an earlier start was not undone (power loss): what was before it still counts.
        before = read_fans()
        record = {
            "mode": read_mode(fields.optional_text(spec, "read_mode")),
            "read_mode": fields.optional_text(spec, "read_mode"),
            "undo": fields.texts(spec, "undo"),
            "mean_rpm": before.mean,
            "fans": sorted(before.rpm),
        }
        durable.make_directories(record_path().parent)
        durable.write_json(record_path(), record)
    taken = 0
    try:
        for command in fields.texts(spec, "set"):
            ipmitool(command.split())
            taken += 1
        settle_seconds = fields.seconds(spec, "settle_seconds")
        after = _proven(record, fields.whole(spec, "percent"), settle_seconds)
    except HostError as error:
        if isinstance(error, Declined) and fresh and not taken:
            # A firmware that takes none of these commands: there is nothing to undo.
            durable.remove_file(record_path())
        else:
            _undo(record, error)
        raise
    stamp.write(UNIT, configuration_path())
    return {"before": record["mean_rpm"], "after": after.mean}


def _same_board(expected: dict[str, str]) -> None:
    directory = layout.dmi_root()
    for name in DMI_NAMES:
        file = directory / name
        found = file.read_text().strip() if file.exists() else ""
        if name in expected and found != expected[name]:
            raise SpecError(
                "the chassis' fans are not touched: this is another board",
                f"{file} says {found!r}, and the commands are for {expected[name]!r}.",
                "Deploy again, which chooses the commands anew.",
            )


def _proven(record: dict[str, Any], percent: int, settle_seconds: float) -> Fans:
    """The fans, once they have changed their speed: upwards where full speed was asked for."""
    before, deadline = float(record["mean_rpm"]), time.monotonic() + settle_seconds
    while True:
        fans = read_fans()
        change = fans.mean / before - 1
        reacted = change >= REACTED if percent == 100 else abs(change) >= REACTED
        lost = sorted(set(record["fans"]) - set(fans.rpm))
        if reacted and not lost and not fans.critical:
            return fans
        if time.monotonic() >= deadline:
            break
        time.sleep(min(POLL_SECONDS, settle_seconds / 10))
    if lost or fans.critical:
        names = ", ".join([*lost, *fans.critical])
        why = f"after the commands these fans are critical or tell no speed: {names}."
    else:
        why = (
            f"they ran at {before:.0f} RPM before and at {fans.mean:.0f} RPM after, on average, "
            f"{settle_seconds:.0f} seconds later."
        )
    raise HostError(
        "the chassis' fans did not react as they should",
        why,
        "It was undone. Either the BMC ignores the commands, or the fans ran so fast before: write "
        "gpu_cooling: report, and set the fan profile in the BMC's own interface.",
        [f"{name}: {rpm:.0f} RPM" for name, rpm in sorted(fans.rpm.items())],
    )


def undo(_request: dict[str, Any]) -> dict[str, Any]:
    """`chassis-fans undo` -> {undone}: give the fans back to the BMC, if they were taken."""
    record = durable.read_json(record_path())
    if not isinstance(record, dict):
        return {"undone": False}
    _undo(record, None)
    return {"undone": True}


def _undo(record: dict[str, Any], because: HostError | None) -> None:
    """Every command, also after one failed; then the mode is read back where the board tells it."""
    problems = []
    for command in record["undo"]:
        try:
            ipmitool(command.replace("{mode}", f"0x{record['mode']}").split())
        except HostError as error:
            problems.append(f"{error.what}: {error.why}")
    if not problems:
        try:
            mode = read_mode(record["read_mode"])
            if mode != record["mode"]:
                problems.append(f"the fan mode is {mode}, and was {record['mode']}")
        except HostError as error:
            problems.append(f"{error.what}: {error.why}")
    if problems:
        raise HostError(
            "the chassis' fans could not be given back to the BMC",
            problems[0],
            "Do it in the BMC's own interface now: until then they do not follow temperatures.",
            [*problems, *([f"after: {because.what}: {because.why}"] if because else [])],
        )
    durable.remove_file(record_path())
