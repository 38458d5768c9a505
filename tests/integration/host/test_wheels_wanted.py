"""A server of wheels that ends when nobody asks stays while conda or a venv takes its time."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import environment, wheels_wanted
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.integration.host.test_install_from_wheels import set_root, spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.conda_world import CondaWorld
    from tests.fakes.wheel_index import Index


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """(a server's address, what it was asked)."""
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            requests.append(f"{self.command} {self.path}")
            self.send_response(404)
            self.end_headers()

        do_GET = do_HEAD  # noqa: N815 - http.server's name

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", requests
    server.shutdown()
    server.server_close()


def test_it_asks_at_once_and_then_now_and_then(
    asked: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, requests = asked
    now = [1000.0]
    monkeypatch.setattr("fleet_host.wheels_wanted.time.monotonic", lambda: now[0])
    remind = wheels_wanted.reminder(place)
    for seconds in (0, 1, 14, 16, 17, 40):
        now[0] = 1000.0 + seconds
        remind()
    assert requests == ["HEAD /"] * 3


@pytest.mark.parametrize("place", [None, "/srv/wheels", "http://127.0.0.1:9/"])
def test_what_is_no_server_or_none_that_answers_is_nobodys_error(place: str | None) -> None:
    wheels_wanted.reminder(place)()


def test_conda_asks_while_it_works(
    conda_world: CondaWorld, asked: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it takes: its own steps ask, and the waiting for `conda create` does."""
    place, requests = asked
    monkeypatch.setattr(wheels_wanted, "INTERVAL_SECONDS", 0.0)
    with pytest.raises(HostError, match="wheels at"):  # there are no wheels at this server
        conda_world.build(wheelhouse=place, find_links=[], pip_args=[])
    assert requests.count("HEAD /") > 2


def test_a_venv_with_pip_asks_while_it_is_made(
    asked: tuple[str, list[str]], index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, requests = asked
    monkeypatch.setattr(wheels_wanted, "INTERVAL_SECONDS", 0.0)
    set_root(tmp_path, monkeypatch)
    index.add("alpha", size_bytes=1_000)
    with pytest.raises(HostError):  # there are no wheels at this server
        environment.run(spec(tmp_path, index, place, "pip"), Progress(None))
    assert requests.count("HEAD /") > 2
