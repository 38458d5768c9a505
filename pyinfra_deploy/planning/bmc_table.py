"""The row of the table of BMCs for a host, and what its chassis-fan unit is told."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pyinfra_deploy.planning import tables

if TYPE_CHECKING:
    from pyinfra_deploy.facts.hardware import Hardware
    from pyinfra_deploy.planning.tables.rows import BmcBoard

# Fans take some seconds to change their speed, and BMCs read them every few.
SETTLE_SECONDS = 60


def bmc_board(hardware: Hardware) -> BmcBoard | None:
    """The board's row; None where the board is unknown, or was not read."""
    for row in tables.bmc_cooling().boards:
        vendor, model = (
            (hardware.board_vendor, hardware.board_name)
            if row.match == "board"
            else (hardware.system_vendor, hardware.system_name)
        )
        if vendor in row.vendor and model and re.fullmatch(row.model, model):
            return row
    return None


def board_text(hardware: Hardware) -> str:
    """The board and system as the firmware names them, for a message."""
    board = f"{hardware.board_vendor or '?'} {hardware.board_name or '?'}"
    return f"board {board}, system {hardware.system_vendor or '?'} {hardware.system_name or '?'}"


def chassis_fans_file(row: BmcBoard, hardware: Hardware, percent: int) -> str:
    """/etc/llm/chassis-fans.json: what `fleet-host chassis-fans apply` reads."""
    seen = {
        "sys_vendor": hardware.system_vendor,
        "product_name": hardware.system_name,
        "board_vendor": hardware.board_vendor,
        "board_name": hardware.board_name,
    }
    commands = row.full if percent == 100 else row.duty
    document = {
        "name": row.name,
        "board": {name: value for name, value in seen.items() if value},
        "percent": percent,
        "read_mode": row.read_mode,
        "set": [command.replace("{percent}", f"0x{percent:02x}") for command in commands],
        "undo": list(row.undo),
        "settle_seconds": SETTLE_SECONDS,
    }
    return json.dumps(document, indent=1) + "\n"
