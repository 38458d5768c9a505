"""What every place that has models is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyinfra_deploy.planning.model_files import Listed


@dataclass(frozen=True)
class Asked:
    """model: OWNER/NAME. left_out: whether a file is to be no part of the lock: what is left out
    is neither downloaded nor hashed."""

    model: str
    revision: str
    left_out: Callable[[str], bool]


@dataclass(frozen=True)
class Answered:
    """A model as its place has it now. read: the content of a file of up to 64 MiB."""

    hub: str
    endpoint: str
    commit: str | None
    license: str | None
    license_from: str | None
    files: tuple[Listed, ...]
    read: Callable[[str], bytes]
    notes: tuple[str, ...] = ()
