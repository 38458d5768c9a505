"""A hub on loopback with one model of a few small files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from hub_world import FILES, MODEL, RunningHub, make_directory

from lab.hub import store
from lab.hub.places import models_directory
from lab.hub.server import Hub, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published once: its many fsyncs would be most of the suite's time."""
    directory = tmp_path_factory.mktemp("published")
    store.publish(models_directory(directory), make_directory(directory / "made", FILES), MODEL)
    return directory


@pytest.fixture
def hub_directory(tmp_path: Path, published: Path) -> Path:
    return shutil.copytree(published, tmp_path / "hub")


@pytest.fixture
def hub(hub_directory: Path) -> Iterator[RunningHub]:
    state = Hub(hub_directory)
    with running(state) as url:
        yield RunningHub(url, state)
