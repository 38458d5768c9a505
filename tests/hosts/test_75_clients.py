"""The clients that people have, against the real vLLM behind the real vhost.

OpenAI's clients for Python and for Node, curl, and a page of another origin in headless Chromium.
The same against a stub, in both modes of the gateway: tests/integration/clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lab.layout import current_layout
from lab.plan import INVENTORY_GROUP, address_of
from pyinfra_deploy.settings import load_fleet
from tests.clients.browser import PageServer, lacks_browser, make_home, with_chromium
from tests.clients.clients import (
    Heard,
    Vhost,
    install_node_client,
    lacks_node,
    with_curl,
    with_node,
    with_python,
)
from tests.hosts.lab_session import REAL
from tests.hosts.pyinfra_run import REPOSITORY
from tests.hosts.real_deploy import deploy, real_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.hosts.real_deploy import RealDeploy


@pytest.fixture(scope="module")
def pages() -> Iterator[PageServer]:
    with PageServer() as server:
        yield server


@pytest.fixture(scope="module")
def vhost(real_deploy: RealDeploy) -> Vhost:
    real_deploy.end().done()
    service = real_service(load_fleet("lab", REPOSITORY))
    # test_65 has left its host in a reboot.
    service.wait(300)
    return Vhost(service.server_name, 443, address_of(REAL), service.ca, service.key, service.model)


@pytest.fixture(scope="module")
def listed(vhost: Vhost, pages: PageServer) -> Iterator[None]:
    """The pages' origin is in gateway.cors_origins of this one host, for these tests."""
    path = current_layout().inventory
    before = path.read_text()
    document: dict[str, Any] = yaml.safe_load(before)
    shared = yaml.safe_load((REPOSITORY / "group_vars" / "lab.yml").read_text())["gateway"]
    # A host's mapping replaces the group's.
    host = document["all"]["children"][INVENTORY_GROUP]["hosts"][REAL]
    host["gateway"] = {**shared, "cors_origins": [pages.origin()]}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    try:
        deploy().done()
        yield
    finally:
        path.write_text(before)
        deploy().done()


def assert_official(heard: Heard, model: str) -> None:
    heard.assert_spread()
    assert model in heard.more["models"]
    assert heard.more["whole"].strip()
    assert heard.more["refused"] == {
        "name": "AuthenticationError",
        "status": 401,
        "code": "invalid_api_key",
    }


def report(say: Callable[[str], None], client: str, heard: Heard) -> None:
    took = heard.seconds[-1] - heard.seconds[0]
    say(f"{client}: {len(heard.seconds)} chunks over {took:.1f} s")


def test_openai_for_python(vhost: Vhost, say: Callable[[str], None]) -> None:
    heard = with_python(vhost)
    assert_official(heard, vhost.model)
    report(say, "openai for Python", heard)


def test_openai_for_node(vhost: Vhost, tmp_path: Path, say: Callable[[str], None]) -> None:
    if (why := lacks_node()) is not None:
        pytest.skip(why)
    heard = with_node(vhost, install_node_client(tmp_path))
    assert_official(heard, vhost.model)
    report(say, "openai for Node", heard)


def test_curl(vhost: Vhost, say: Callable[[str], None]) -> None:
    heard = with_curl(vhost)
    heard.assert_spread()
    assert heard.more == {"status": 200, "version": "2", "last": "data: [DONE]"}
    report(say, "curl", heard)


@pytest.mark.usefixtures("listed")
def test_a_page_of_another_origin(
    vhost: Vhost, tmp_path: Path, pages: PageServer, say: Callable[[str], None]
) -> None:
    if (why := lacks_browser()) is not None:
        pytest.skip(why)
    home = make_home(tmp_path, vhost.ca)
    heard = with_chromium(vhost, home, pages)
    assert heard.more["error"] is None, heard.more["error"]
    heard.assert_spread()
    assert heard.more["done"]
    assert heard.more["refused"] == {"status": 401, "code": "invalid_api_key"}
    report(say, "a page in Chromium", heard)
    # localhost is another origin than 127.0.0.1, and not listed.
    other = with_chromium(vhost, home, pages, host="localhost")
    assert other.more["error"] == "TypeError: Failed to fetch"
    assert "status" not in other.more
