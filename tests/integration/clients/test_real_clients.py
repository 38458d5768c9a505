"""Real clients against a real Nginx, in both modes of the gateway, with a stub for an engine.

OpenAI's clients for Python and for Node, curl, and a page of another origin in Chromium; the
certificate is by the CA that an inventory gets, with its name constraints.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.keys import ca, keyfile
from pyinfra_deploy.settings.fleet import Fleet
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
from tests.fakes.key_fleet import gateway_host
from tests.integration.nginx import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

MODES = {"direct": whole.direct_mode, "full": whole.full_mode}
RATE, CHUNKS = 20.0, 10


@pytest.fixture(scope="module")
def pages() -> Iterator[PageServer]:
    with PageServer() as server:
        yield server


@pytest.fixture(scope="module", params=list(MODES))
def vhost(request: pytest.FixtureRequest, nginx: None, pages: PageServer) -> Iterator[Vhost]:
    with tempfile.TemporaryDirectory(prefix="gc") as directory, asyncio.Runner() as runner:
        place = Path(directory)
        key = keyfile.new_key("clients", datetime.now(UTC), None)
        (place / "keys.json").write_text(json.dumps(keyfile.to_document(1, [key.record])))
        trusted = certificate(place, place / request.param)
        stack = AsyncExitStack()
        try:
            engine = runner.run(stack.enter_async_context(whole.stub(place, RATE, CHUNKS)))
            start = MODES[request.param](place, engine, key.plaintext, [pages.origin()], trusted)
            way = runner.run(stack.enter_async_context(start))
            port = int(way.door.base.rsplit(":", 1)[1])
            yield Vhost(whole.SERVER_NAME, port, "127.0.0.1", trusted, key.plaintext, "m")
        finally:
            runner.run(stack.aclose())


@pytest.fixture(scope="module")
def nginx() -> None:
    if shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None:
        pytest.skip("nginx is not installed (apt-get install nginx)")


def certificate(place: Path, directory: Path) -> Path:
    """tls.crt and tls.key by the CA of an inventory; the CA's certificate."""
    host = gateway_host("gw1", "10.1.2.3", plaintext_ca_key=True)
    inventory = place / "inventories" / "prod"
    inventory.mkdir(parents=True)
    directory.mkdir()
    fleet = Fleet(
        name="prod",
        directory=inventory,
        root=place,
        hosts={host.name: host},
        groups={"gateway": [host.name]},
    )
    authority = ca.ensure_ca(fleet)
    request = subprocess.run(
        [
            *("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", str(directory / "tls.key"), "-subj", f"/CN={whole.SERVER_NAME}"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (directory / "tls.crt").write_text(ca.sign_leaf(authority, request, [whole.SERVER_NAME]))
    return inventory / "ca.crt"


@pytest.fixture(scope="session")
def node_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (why := lacks_node()) is not None:
        pytest.skip(why)
    return install_node_client(tmp_path_factory.mktemp("node"))


@pytest.fixture
def home(tmp_path: Path, vhost: Vhost) -> Path:
    if (why := lacks_browser()) is not None:
        pytest.skip(why)
    return make_home(tmp_path, vhost.ca)


def assert_whole(heard: Heard) -> None:
    assert heard.text.count("@") == CHUNKS
    heard.assert_spread()
    # Not faster than the engine sent it: the first was not held back until the last.
    assert heard.seconds[-1] - heard.seconds[0] > 0.5 * (CHUNKS - 1) / RATE


def assert_official(heard: Heard) -> None:
    assert_whole(heard)
    assert heard.more["models"] == ["m"]
    assert heard.more["whole"] == "all at once"
    assert heard.more["refused"] == {
        "name": "AuthenticationError",
        "status": 401,
        "code": "invalid_api_key",
    }


def test_openai_for_python(vhost: Vhost) -> None:
    assert_official(with_python(vhost))


def test_openai_for_node(vhost: Vhost, node_program: Path) -> None:
    assert_official(with_node(vhost, node_program))


def test_curl(vhost: Vhost) -> None:
    heard = with_curl(vhost)
    assert_whole(heard)
    assert heard.more == {"status": 200, "version": "2", "last": "data: [DONE]"}


def test_a_page_of_another_origin(vhost: Vhost, home: Path, pages: PageServer) -> None:
    heard = with_chromium(vhost, home, pages)
    assert heard.more["error"] is None, heard.more["error"]
    assert_whole(heard)
    assert heard.more["status"] == 200
    assert heard.more["done"]
    assert heard.more["request_id"]
    assert heard.more["refused"] == {"status": 401, "code": "invalid_api_key"}


def test_a_page_of_an_origin_that_is_not_listed(
    vhost: Vhost, home: Path, pages: PageServer
) -> None:
    """localhost is another origin than 127.0.0.1. The browser gives it nothing."""
    heard = with_chromium(vhost, home, pages, host="localhost")
    assert heard.more["origin"].startswith("http://localhost:")
    assert heard.more["error"] == "TypeError: Failed to fetch"
    assert "status" not in heard.more
    assert not heard.text


def test_a_browser_that_does_not_know_the_ca(
    vhost: Vhost, tmp_path: Path, pages: PageServer, home: Path
) -> None:
    """Without it the page gets nothing: the others check the certificate, and do not ignore it."""
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    heard = with_chromium(vhost, stranger, pages)
    assert heard.more["error"] == "TypeError: Failed to fetch"
