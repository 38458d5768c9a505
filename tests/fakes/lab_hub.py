"""What the hub's tests share: one model of a few small files, and a client of a running hub."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub import store
from lab.hub.places import models_directory
from lab.hub.server import Hub, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lab.hub.faults import Fault

MODEL = "lab/small"
SHARD = "model-00001-of-00002.safetensors"
FILES = {
    "config.json": b"{}\n",
    SHARD: bytes(range(256)) * 8,
    "model-00002-of-00002.safetensors": b"second shard",
    "sub/dir/notes.txt": b"below",
}


def make_directory(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Any:
        return json.loads(self.body)["Data"]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass
class RunningHub:
    url: str
    hub: Hub

    def set_faults(self, *faults: Fault) -> None:
        self.hub.board.replace(list(faults))

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """`headers` with underscores for dashes. Redirects are not followed."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        # S310: the URL is the hub's own, from `running`.
        request = urllib.request.Request(self.url + path, headers=named, method=method)  # noqa: S310
        # An empty ProxyHandler: loopback is never behind the machine's proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
        try:
            with opener.open(request, timeout=10) as response:
                return Answer(response.status, response.read(), dict(response.headers))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), dict(error.headers))

    def listing(self, revision: str = "master", **query: str) -> Answer:
        wanted = {"Revision": revision, "Recursive": "True", **query}
        return self.get(f"/api/v1/models/{MODEL}/repo/files?{urllib.parse.urlencode(wanted)}")

    def entries(self, **query: str) -> dict[str, dict[str, Any]]:
        return {entry["Path"]: entry for entry in self.listing(**query).data["Files"]}

    def file(
        self, path: str, revision: str = "master", method: str = "GET", **headers: str
    ) -> Answer:
        query = urllib.parse.urlencode({"Revision": revision, "FilePath": path})
        return self.get(f"/api/v1/models/{MODEL}/repo?{query}", method, **headers)


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
