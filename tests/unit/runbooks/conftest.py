from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.repository import empty, repository
from tests.unit.runbooks.world import World

if TYPE_CHECKING:
    from tests.fakes.repository import Repository

__all__ = ["empty", "repository"]


@pytest.fixture
def there(repository: Repository) -> World:
    return World(repository)
