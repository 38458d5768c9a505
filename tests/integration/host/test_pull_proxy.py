"""model.proxy: our own requests go through it, the client is told, exceptions go straight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fleet_host.errors import SpecError

if TYPE_CHECKING:
    from tests.fakes.logging_proxy import LoggingProxy
    from tests.fakes.pull_world import PullWorld


@pytest.fixture(autouse=True)
def other_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a drop-in of the unit says, where nobody listens."""
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_hub_and_client_are_asked_through_the_proxy_of_the_settings(
    world: PullWorld, logging_proxy: LoggingProxy
) -> None:
    assert world.pull(proxy=logging_proxy.url, no_proxy=[".example.com"])["state"] == "pulled"
    for part in ("/revisions", "/repo/files", "FilePath=config.json"):
        assert any(
            url.startswith(world.hub.endpoint) and part in url for url in logging_proxy.asked
        )
    told = world.starts()[0]["environment"]
    assert {told[name] for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY")} == {
        logging_proxy.url
    }
    assert (told["no_proxy"], told["all_proxy"]) == (".example.com", "")


def test_exceptions_go_straight(world: PullWorld, logging_proxy: LoggingProxy) -> None:
    spec = {"proxy": logging_proxy.url, "no_proxy": ["127.0.0.1"]}
    assert world.pull(**spec)["state"] == "pulled"
    assert logging_proxy.asked == []
    assert world.starts()[0]["environment"]["no_proxy"] == "127.0.0.1"


def test_without_one_the_units_environment_counts(world: PullWorld) -> None:
    world.pull(proxy=None)
    assert world.starts()[0]["environment"]["http_proxy"] == "http://127.0.0.1:9"


@pytest.mark.parametrize("url", ["http://user:secret@proxy:3128", "proxy:3128", "ftp://proxy"])
def test_one_that_carries_a_password_or_is_none_is_refused(world: PullWorld, url: str) -> None:
    with pytest.raises(SpecError) as caught:
        world.pull(proxy=url)
    assert "model.proxy" in caught.value.fix
    assert "secret" not in str(caught.value)
