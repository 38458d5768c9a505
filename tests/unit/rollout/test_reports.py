"""What is kept of a run: a record without secrets, and a page that needs nothing else."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.rollout import record
from pyinfra_deploy.rollout.console import Console
from pyinfra_deploy.rollout.masking import MASKED, mask, masked
from pyinfra_deploy.rollout.outcome import Outcome
from pyinfra_deploy.rollout.policy import Course, Kind, Options

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = (
    "sk-prod1A2b3C4d5E6f7G8h", "hf_abcdefghijkl", "ms-0123456789ab", "hunter22secret",
)  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> record.Record:
    found = record.begin(
        tmp_path, "prod", "ro1", kind="rollout", owner="ada@desk", options=Options(),
        groups=[["gpu01"], ["gpu02"]],
        hosts={
            "gpu01": {"from": "r1", "to": "r2", "differences": ["--seed: 1 -> 2"],
                      "changes": ["go live: release r2 instead of r1"], "findings": []},
            "gpu02": {"from": "r1", "to": "r2", "findings": ["warn: <script>alert(1)</script>"]},
            "web": {"outcome": {"kind": "same"}},
        },
    )  # fmt: skip
    soak = {"asked": 60, "failed": 1, "median_seconds": 0.1, "slowest_seconds": 0.4}
    gates = {"golden": [{"prompt": "x", "seconds": 0.5}], "soak": soak}
    found.outcomes(
        [
            Outcome("gpu01", Kind.LIVE, "r2", "r2", gates=gates, seconds=81.5, drained=True),
            Outcome("gpu02", Kind.BACK, "r2", "r1", reason="it died", fix="mend it",
                    lines=("Traceback", "vllm: error: --nope <b>")),
        ]
    )  # fmt: skip
    found.event("switching", hosts=["gpu01"])
    return found


class Seen(HTMLParser):
    """What a browser would fetch or run, and the text that it would show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [
            str(value) for name, value in attrs
            if name in ("src", "href", "srcset", "action") and not str(value).startswith("#")
        ]  # fmt: skip

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(kept: record.Record) -> Seen:
    return Seen(kept.page_path.read_text(encoding="utf-8"))


def test_the_page_fetches_and_runs_nothing(kept: record.Record) -> None:
    seen = page(kept)
    assert seen.fetched == []
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.tags)
    assert "url(" not in kept.page_path.read_text()
    assert "<script>alert(1)</script>" in "".join(seen.text)


@pytest.mark.parametrize(
    "words",
    ["rollout of prod", "1 (canary)", "gpu01: serves the release", "gpu02: went back",
     "--seed: 1 -> 2", "go live: release r2 instead of r1", "it died", "Next: mend it",
     "vllm: error: --nope <b>", "81.5 s", "not ended", "nothing to do", "switching"],
)  # fmt: skip
def test_the_page_tells(kept: record.Record, words: str) -> None:
    assert words in "".join(page(kept).text)


def test_the_end_is_told_when_there_is_one(kept: record.Record) -> None:
    kept.end("stopped", "gpu02 failed", 3)
    text = "".join(page(kept).text)
    assert "stopped: gpu02 failed (exit code 3," in text
    assert "not ended" not in text


def test_nothing_secret_is_kept(kept: record.Record) -> None:
    for secret in SECRETS[:3]:
        kept.log(f"pull: with {secret} in it")
    kept.log(f"MODELSCOPE_API_TOKEN={SECRETS[3]} --hub-token {SECRETS[3]}")
    kept.log(f"https://user:{SECRETS[3]}@mirror/x Authorization: Bearer {SECRETS[3]}")
    kept.outcomes([Outcome("gpu02", Kind.BACK, lines=(f'"password": "{SECRETS[3]}"',))])
    kept.write()
    for path in (kept.path, kept.page_path):
        text = path.read_text()
        assert [secret for secret in SECRETS if secret in text] == []
        assert MASKED in text
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "line",
    [
        'password: "correct horse hunter22"',
        "--hub-token 'correct hunter22' --next",
        '{\\"secret\\": \\"correct hunter22\\"}',
        'api_key = "it was cut after hunter22',
        'password="with \\" a quote hunter22"',
        "Authorization: Basic dXNlcjpodW50ZXIyMg==",
        "curl: sent Basic dXNlcjpodW50ZXIyMg==",
        '"Authorization": "Token hunter22"',
        "passphrase: hunter22",
        "key_passphrase='a hunter22'",
        "AKIAIOSFODNN7EXAMPLE",
        "glpat-aB3dE5fG7hI9jK1l",
        "ghp_aB3dE5fG7hI9jK1laB3dE5fG7hI9jK1l",
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG",
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
    ],
)
def test_masking(line: str) -> None:
    secrets = (
        "hunter22", "aHVudGVyMjI", "odW50ZXIyMg", "IOSFODNN7", "aB3dE5fG7", "wJalrXUtnFEMI",
        "VJTUt9Us8cKj",
    )  # fmt: skip
    assert any(secret in line for secret in secrets)
    assert [secret for secret in secrets if secret in mask(line)] == []


def test_long_lines_are_masked_soon() -> None:
    """Without a bound, dots alone took minutes."""
    began = time.process_time()
    for line in ("a." * 10_000, "A1b" * 7_000):
        mask(line)
    assert time.process_time() - began < 20


KEY = (
    "-----BEGIN RSA PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED", "c2hvcnQgbGFzdCBsaW5l",
    "-----END RSA PRIVATE KEY-----",
)  # fmt: skip


def test_a_private_key_that_goes_over_lines_is_masked_to_its_end(
    kept: record.Record, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(kept, Course(("gpu01",), Options()))
    for line in ("before it", *KEY, "after it"):
        console.line(line)
    console.say(f"Bearer {SECRETS[3]}")
    kept.write()
    for said in (capsys.readouterr().out, kept.path.read_text(), kept.page_path.read_text()):
        assert [secret for secret in (KEY[2], SECRETS[3]) if secret in said] == []
        assert "before it" in said
        assert "after it" in said


def test_a_key_that_was_cut_does_not_take_the_rest_of_a_log() -> None:
    lines = masked([KEY[0], *["x"] * 400])
    assert lines[200] == MASKED
    assert lines[202] == "x"


@pytest.mark.parametrize(
    "line",
    [
        "max-model-len: 1024, 4096 tokens, key 7 of 9, http://mirror/x: token limit reached",
        "Basic Authentication is off, basic functions work",
        f"--hash=sha256:{'0123456789abcdef' * 4}",
        "/srv/llm/runtimes/vllm0330cu130py312/lib/python3/site/packages/torch/nn/Modules7",
    ],
)
def test_masking_leaves_ordinary_lines(line: str) -> None:
    assert mask(line) == line
    assert masked({"a": ["x", 1, None]}) == {"a": ["x", 1, None]}


def test_the_newest_is_found_or_one_by_its_beginning(tmp_path: Path, kept: record.Record) -> None:
    second: dict[str, Any] = {
        "kind": "rollback", "owner": "bob", "options": Options(), "groups": [], "hosts": {},
    }  # fmt: skip
    record.begin(tmp_path, "prod", "ro2", **second)
    newest = record.newest(tmp_path, "prod")
    assert newest is not None
    assert newest["id"] == "ro2"
    named = record.newest(tmp_path, "prod", "ro1")
    assert named is not None
    assert named == json.loads(kept.path.read_text())
    assert record.page_of(tmp_path, named) == kept.page_path
    assert record.newest(tmp_path, "other") is None


def test_what_is_gone_on_with_keeps_what_it_had(tmp_path: Path, kept: record.Record) -> None:
    kept.log("the first line")
    kept.write()
    again: dict[str, Any] = {"gpu02": {"from": "r1", "to": "r2", "findings": []}}
    second = record.begin(
        tmp_path, "prod", "ro1", kind="rollout", owner="bob", options=Options(),
        groups=[["gpu01"], ["gpu02"]], hosts=again,
    )  # fmt: skip
    document = json.loads(second.path.read_text())
    assert document["hosts"]["gpu01"]["outcome"]["kind"] == "live"
    assert document["log"] == ["the first line"]
    assert [event["what"] for event in document["events"]] == [
        "switching", "gone on with by bob",
    ]  # fmt: skip
    kept.path.write_text("{cut")
    assert record.newest(tmp_path, "prod") is None
