"""The largest request, where the settings leave it to the model's length."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyinfra_deploy.planning.body_limit import max_body_mb


@pytest.mark.parametrize(
    ("set_mb", "length", "expected"),
    [
        (3, 16384, 3),
        (None, None, 16),
        (None, "auto", 16),
        (None, True, 16),
        (None, 16384, 16),
        (None, 524288, 16),
        (None, 524289, 17),
        (None, 1048576, 32),
        (None, 10**9, 1024),
    ],
)
def test_the_largest_request(set_mb: int | None, length: Any, expected: int) -> None:
    args = {} if length is None else {"max-model-len": length}
    settings: Any = SimpleNamespace(
        gateway=SimpleNamespace(max_body_mb=set_mb), engine=SimpleNamespace(args=args)
    )
    assert max_body_mb(settings) == expected
