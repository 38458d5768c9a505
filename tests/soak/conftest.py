"""The hosts' fixtures, for tests that take long: `make soak`."""

from __future__ import annotations

import os

import pytest

from tests.hosts.conftest import checkout, hub_faults, lab_hosts, real_deploy, say, steady

__all__ = ["checkout", "hub_faults", "lab_hosts", "real_deploy", "say", "steady"]

HERE = __file__.rsplit("/", 1)[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    reason = "real hosts need root (namespaces, mounts, a bridge): run `sudo make soak`"
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.skip(reason=reason))
