"""The configuration: its documented shape, its defaults, and what is refused."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import llm_gateway
import pytest
from llm_gateway.config import parse_config
from llm_gateway.fields import ConfigError
from llm_gateway.watched import ConfigFile

if TYPE_CHECKING:
    from pathlib import Path

BACKEND = {"name": "a", "url": "unix:/run/a.sock", "models": ["m"]}
TLS = {"ca": "/ca", "certificate": "/c", "key": "/k"}
REMOTE = {"name": "b", "url": "https://gpu01:8443", "models": ["m"], "tls": TLS}


def parse(**parts: Any) -> Any:
    return parse_config(json.dumps({"schema": 1, "backends": [BACKEND], **parts}).encode())


def documented() -> dict[str, Any]:
    """The example in the package's docstring, its remarks taken off."""
    text = llm_gateway.__doc__ or ""
    block = text[text.index('    {"schema"') : text.index("The unit:")]
    lines = [re.sub(r"\s+#.*", "", line) for line in block.splitlines()]
    found: dict[str, Any] = json.loads("\n".join(lines))
    return found


def test_the_documented_example_is_what_the_defaults_are() -> None:
    document = documented()
    config = parse_config(json.dumps(document).encode())
    smallest = {"schema": 1, "backends": [
        {name: document["backends"][0][name] for name in ("name", "url", "models")}
    ]}  # fmt: skip
    assert config == parse_config(json.dumps(smallest).encode())


def test_a_remote_engine() -> None:
    (backend,) = parse(backends=[REMOTE]).backends
    assert (backend.url, backend.socket) == ("https://gpu01:8443", None)
    assert backend.tls is not None
    assert backend.tls.server_name is None


def test_models_and_aliases() -> None:
    config = parse(backends=[BACKEND | {"aliases": {"x": "m"}}, BACKEND | {"name": "b"}])
    assert config.models == {"m", "x"}
    assert [one.served_name("x") for one in config.backends] == ["m", None]


def test_an_unknown_tier_is_the_default_one() -> None:
    config = parse(tiers={"low": {"weight": 1}, "high": {}}, default_tier="low")
    assert [config.tier(name) for name in ("high", "gone", None)] == ["high", "low", "low"]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"schema": 2}, "schema must be 1"),
        ({"schema": True}, "schema must be"),
        ({"odd": 1}, "odd is not known"),
        ({"backends": []}, "at least one engine"),
        ({"backends": None}, "backends is missing"),
        ({"backends": [1]}, r"backends\[0\] must be an object"),
        ({"backends": [BACKEND, BACKEND]}, "the same name"),
        ({"backends": [BACKEND | {"name": "a b"}]}, r"backends\[0\].name"),
        ({"backends": [BACKEND | {"odd": 1}]}, r"backends\[0\].odd is not known"),
        ({"backends": [BACKEND | {"url": "http://gpu01:80"}]}, r"url must be"),
        ({"backends": [BACKEND | {"url": "https://gpu01"}]}, r"url must be"),
        ({"backends": [BACKEND | {"url": "https://gpu01:99999"}]}, r"url must be"),
        ({"backends": [BACKEND | {"url": "https://u@gpu01:443"}]}, r"url must be"),
        ({"backends": [BACKEND | {"url": "unix:relative"}]}, r"url must be"),
        ({"backends": [BACKEND | {"tls": TLS}]}, "tls is for https alone"),
        ({"backends": [REMOTE | {"tls": None}]}, "tls is for https alone, and needed"),
        ({"backends": [REMOTE | {"tls": {"ca": "/x"}}]}, "tls.certificate is missing"),
        ({"backends": [BACKEND | {"models": []}]}, "at least one model"),
        ({"backends": [BACKEND | {"aliases": {"x": "y"}}]}, "aliases.x"),
        ({"backends": [BACKEND | {"aliases": {"m": "m"}}]}, "aliases.m"),
        ({"backends": [BACKEND | {"max_concurrent": 0}]}, "1 or more"),
        ({"tiers": {}}, "at least one tier"),
        ({"tiers": {"a": {}}}, "default_tier 'default' is none of"),
        ({"tiers": {"default": {"weight": 0}}}, "tiers.default.weight must be more than 0"),
        ({"tiers": {"default": {"odd": 0}}}, "tiers.default.odd"),
        ({"queue": {"max_waiting": -1}}, "queue.max_waiting"),
        ({"queue": {"odd": 1}}, "queue.odd"),
        ({"admission": {"maxima": {"n": "4"}}}, "admission.maxima.n must be a number"),
        ({"admission": {"allowed_parameters": "n"}}, "list of texts"),
        ({"admission": {"count_tokens": 1}}, "true or false"),
        ({"affinity": {"balance_factor": 0.5}}, "1 or more"),
        ({"health": {"open_seconds": 0}}, "more than 0"),
        ({"usage": {"kv_cache": "on"}}, "true or false"),
        ({"stop_seconds": True}, "must be a number"),
    ],
)
def test_what_is_refused(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(**parts)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"schema":1,"schema":1}', b"[" * 9999])
def test_what_is_no_configuration_at_all(content: bytes) -> None:
    with pytest.raises(ConfigError):
        parse_config(content)


def test_the_file_is_followed_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.json"
    file = ConfigFile(path)
    assert (file.refresh(), file.refresh(), file.current) == (False, False, None)
    assert len(caplog.records) == 1
    path.write_text(json.dumps({"schema": 1, "backends": [BACKEND]}))
    assert file.refresh()
    good = file.current
    assert not file.refresh()
    path.write_text('{"schema": 1}')
    assert not file.refresh()
    assert file.current is good
    assert "the configuration before it stays in force" in caplog.text
