from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.foresight.places import Place

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """One healthy host of eight L20, the settings of production, Qwen3-235B-A22B-FP8."""
    found = Place(tmp_path / "fleet")
    found.write()
    return found
