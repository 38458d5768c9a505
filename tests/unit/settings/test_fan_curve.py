"""gpu_fan_curve: the file's line is named, and a curve that cools a hot GPU less is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyinfra_deploy.settings.contradictions import contradictions
from pyinfra_deploy.settings.schema import FanPoint, Settings


def problems(*points: tuple[int, int]) -> list[tuple[tuple[str, ...], str, str]]:
    curve = tuple(FanPoint(temperature_c=degrees, percent=percent) for degrees, percent in points)
    settings = Settings(gpu_fan_curve=curve)
    return list(contradictions(settings, (), frozenset(), Path()))


@pytest.mark.parametrize(
    "points",
    [
        ((40, 50), (60, 40), (75, 100)),
        ((60, 50), (40, 60), (75, 100)),
        ((40, 50), (40, 60), (75, 100)),
        ((40, 50), (75, 90)),
    ],
)
def test_a_curve_that_does_not_rise_to_full_speed(points: tuple[tuple[int, int], ...]) -> None:
    ((where, message, fix),) = problems(*points)
    assert where == ("gpu_fan_curve",)
    assert "end at 100 percent" in message
    assert "100 in the last" in fix


def test_curves_that_are_fine() -> None:
    assert problems((75, 100)) == []
    assert problems((40, 40), (50, 40), (80, 100)) == []
    assert list(contradictions(Settings(), (), frozenset(), Path())) == []
