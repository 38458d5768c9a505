"""A run's report in headless Chromium: everything is there, nothing runs, nothing is fetched."""

from __future__ import annotations

import http.server
import threading
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.rollout import record
from pyinfra_deploy.rollout.outcome import Outcome
from pyinfra_deploy.rollout.policy import Kind, Options
from tests.clients.browser import dumped, lacks_chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHY = lacks_chromium()
pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))
OWNED = "the page was taken over"


class Listener:
    """Where hostile texts call to. seen: the paths that were asked for."""

    def __init__(self) -> None:
        seen = self.seen = list[str]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.server.shutdown()
    found.server.server_close()


def hostile(url: str, where: str) -> str:
    """What a program on a host may print. where: told apart by it."""
    take = f"document.title='{OWNED}'"
    return (
        f"{where} <script>{take}</script><script src='{url}/{where}-script'></script>"
        f'"><img src="{url}/{where}-image" onerror="{take}"><b onclick={take} id=owned>'
        f"<svg onload={take}><link rel=stylesheet href={url}/{where}-style>"
        f"'\"--></pre></style><iframe src={url}/{where}-frame></iframe>"
        f"<style>@import '{url}/{where}-import'</style>{{{{ 7 * 7 }}}}"
    )


def kept(tmp_path: Path, url: str) -> tuple[record.Record, list[str]]:
    """A record in which every text is hostile, and these texts."""
    texts: list[str] = []

    def text(where: str) -> str:
        texts.append(hostile(url, where))
        return texts[-1]

    name = "gpu\"02'><img src=x onerror=alert(1)>"
    found = record.begin(
        tmp_path, "prod", "ro1", kind="rollout", owner=text("owner"), options=Options(),
        groups=[["gpu01"], [name]],
        hosts={
            "gpu01": {"from": "r1", "to": "r2", "differences": [text("difference")],
                      "changes": [text("change")], "findings": []},
            name: {"from": text("former"), "to": "r2", "findings": [text("finding")]},
        },
    )  # fmt: skip
    soak = {"asked": 60, "failed": 1, "median_seconds": 0.125, "slowest_seconds": 0.75}
    gates = {"golden": [{"prompt": "x", "seconds": 0.5}], "soak": soak}
    found.outcomes(
        [
            Outcome("gpu01", Kind.LIVE, "r2", "r2", gates=gates, seconds=81.5, drained=True,
                    notes=(text("note"),)),
            Outcome(name, Kind.BACK, "r2", "r1", reason=text("reason"), fix=text("fix"),
                    lines=("Traceback", text("line"))),
        ]
    )  # fmt: skip
    found.log(text("log"))
    found.event(text("event"), hosts=[name])
    found.end("stopped", text("end"), 3)
    return found, [*texts, name]


class Seen(HTMLParser):
    """A document as a browser has it: what it could run or fetch, and its text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags = list[str]()
        self.attributes = list[tuple[str, str | None]]()
        self.parts = list[str]()
        self.feed(document)
        self.text = "".join(self.parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def test_a_page_that_does_run_something_is_noticed(tmp_path: Path, listener: Listener) -> None:
    """What the next test goes by: such texts do work where they are not escaped."""
    page = tmp_path / "page.html"
    page.write_text(f"<title>x</title><p>{hostile(listener.url, 'here')}")
    assert f"<title>{OWNED}</title>" in dumped(page, tmp_path)
    assert {"/here-script", "/here-image"} <= set(listener.seen)


def test_hostile_texts_are_shown_and_do_nothing(tmp_path: Path, listener: Listener) -> None:
    found, texts = kept(tmp_path, listener.url)
    document = dumped(found.page_path, tmp_path)
    seen = Seen(document)
    assert listener.seen == []
    assert f"<title>rollout of prod, {found.document['began']}</title>" in document
    assert {"script", "img", "iframe", "svg", "link", "object", "b"} & set(seen.tags) == set()
    assert [name for name, _ in seen.attributes if name.startswith("on")] == []
    targets = [value for name, value in seen.attributes if name in ("href", "src", "action")]
    assert [value for value in targets if not str(value).startswith("#host-")] == []
    assert [text for text in texts if text not in seen.text] == []
    # A batch's host leads to what is told of it.
    sections = {value for name, value in seen.attributes if name == "id"}
    assert {str(value)[1:] for value in targets} <= sections


def test_everything_of_a_run_is_on_it(tmp_path: Path, listener: Listener) -> None:
    found, _ = kept(tmp_path, listener.url)
    parts = Seen(dumped(found.page_path, tmp_path)).parts
    text = " ".join(" ".join(parts).split())
    for words in (
        "rollout of prod",
        "stopped : end <script>",
        "Hosts by group 1 (canary) gpu01: serves the release 2 gpu\"02'>",
        "went back",
        "Timeline",
        f"{found.document['events'][0]['when']} event <script>",
        "Gates host drained golden prompts",
        "gpu01 to the end 1, slowest 0.5 s 60 1 0.125 0.75 81.5 s",
        "difference <script>",
        "change <script>",
        "note <script>",
        "finding <script>",
        "reason <script>",
        "Next: fix <script>",
        "Traceback line <script>",
        "Log 1 lines log <script>",
    ):
        assert words in text, (words, text)
