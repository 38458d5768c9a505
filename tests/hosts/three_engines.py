"""Three engines behind one gateway: a host that is both, and two whose doors it goes through."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lab.plan import Host
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, LANE, another, shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.service import Service
    from tests.hosts.standin_inventory import Checkout

GATEWAY, SECOND, THIRD = DEBIAN13, DEBIAN12, {1: "gpu103", 2: "gpu113"}[LANE]
ENGINES = (SECOND, THIRD, GATEWAY)
MEMBERS: dict[str, tuple[str, ...]] = {"gpu": ENGINES, "gateway": (GATEWAY,)}
MODEL = "lab/same"
READY = "curl -s --unix-socket /run/llm-gateway/http.sock http://gateway/ready"


def write(checkout: Checkout, **engine: Any) -> None:
    """The inventory of the three, with these settings of every engine."""
    checkout.write(*ENGINES, members=MEMBERS, engine={"served_model_name": MODEL, **engine})


@contextmanager
def deployed(checkout: Checkout) -> Iterator[Service]:
    """The gateway's service while there are the three."""
    with another(Host(THIRD, "bookworm", ("lab",))):
        write(checkout)
        checkout.deploy().done()
        yield replace(checkout.service(GATEWAY), model=MODEL)
    checkout.write()


def backends() -> dict[str, dict[str, Any]]:
    """What the gateway says of its engines, by host."""
    found: dict[str, Any] = json.loads(shell(GATEWAY, READY))["backends"]
    return {name.removesuffix("-main").replace("main", GATEWAY): one for name, one in found.items()}


def all_are_well() -> bool:
    found = backends()
    assert set(found) == set(ENGINES)
    return all(one["breaker"] == "closed" and not one["draining"] for one in found.values())
