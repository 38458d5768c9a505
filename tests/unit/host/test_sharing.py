"""A host's part in a fan-out: its file, its secrets, its server's rate, what its pull tells."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import share_opening, share_server, share_state, sharing
from fleet_host.errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.job_systemd import FakeSystemd

MODEL = "Qwen--Tiny/master-123456789abc"
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "name": "gpu01",
    "rank": 0,
    "pulling": True,
    "token": "a" * 64,
    "peers": [{"name": "gpu02", "rank": 1, "address": "192.0.2.12", "port": 8472}],
    "allowed": ["192.0.2.11", "192.0.2.12"],
    "rate_bytes_per_second": None,
    "address": "127.0.0.1",
    "port": 8472,
    "idle_seconds": 60,
}


def opened(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    """Opened on a host whose server answers at once."""
    asked: list[Any] = []
    monkeypatch.setattr(share_opening, "wait_until_open", lambda *words: asked.append(words))
    return share_opening.open_for({**REQUEST, **changes})


def test_a_host_is_opened_with_a_file_that_only_root_and_the_build_user_read(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened(monkeypatch) == {"state": "open", "why": "", "published": False}
    path = sharing.path_of(MODEL)
    assert path.stat().st_mode & 0o777 == 0o640
    found = sharing.read(MODEL)
    assert found is not None
    assert found.tokens == ("a" * 64,)
    assert [peer.place for peer in found.peers] == ["gpu02 (192.0.2.12 port 8472)"]
    assert systemd.started() == 1
    stored = (systemd.root / "llm/jobs/share/models/spec.json").read_text()
    assert json.loads(stored)["spec"] == {
        "address": "127.0.0.1", "port": 8472, "idle_seconds": 60,
    }  # fmt: skip
    assert "a" * 64 not in stored
    filter_lines = share_opening.drop_in().read_text().split()
    assert filter_lines == [
        "[Service]",
        "IPAddressAllow=127.0.0.1",
        "IPAddressAllow=192.0.2.11",
        "IPAddressAllow=192.0.2.12",
    ]
    assert sum("daemon-reload" in call for call in systemd.calls()) == 1


def test_a_second_run_adds_its_secret_and_peers_and_reloads_only_for_new_addresses(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch)
    third = {"name": "gpu03", "rank": 2, "address": "192.0.2.13", "port": 8472}
    opened(monkeypatch, token="b" * 64, peers=[third])
    found = sharing.read(MODEL)
    assert found is not None
    assert found.tokens == ("b" * 64, "a" * 64)
    assert [peer.name for peer in found.peers] == ["gpu02", "gpu03"]
    assert sum("daemon-reload" in call for call in systemd.calls()) == 1
    opened(monkeypatch, allowed=["192.0.2.14"])
    assert sum("daemon-reload" in call for call in systemd.calls()) == 2


def test_secrets_of_long_ago_are_forgotten(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(sharing.KEPT_TOKENS + 3):
        opened(monkeypatch, token=f"{number:064d}")
    found = sharing.read(MODEL)
    assert found is not None
    assert len(found.tokens) == sharing.KEPT_TOKENS
    assert found.tokens[0] == f"{sharing.KEPT_TOKENS + 2:064d}"


def test_a_host_without_the_model_that_does_not_pull_listens_to_nobody(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = opened(monkeypatch, pulling=False)
    assert (answer["state"], answer["published"]) == ("nothing", False)
    assert systemd.started() == 0
    assert sharing.read(MODEL) is None


def test_a_host_whose_address_is_not_known_takes_and_does_not_give(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = opened(monkeypatch, address=None)
    assert (answer["state"], answer["why"]) == ("closed", "its address is not known")
    assert sharing.read(MODEL) is not None
    assert systemd.started() == 0


def test_a_host_that_cannot_listen_says_why_and_takes_all_the_same(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise HostError("the model cannot be shared", "the port is in use.", "Take another.")

    monkeypatch.setattr(share_opening, "wait_until_open", fails)
    answer = share_opening.open_for(REQUEST)
    assert answer["state"] == "closed"
    assert "the port is in use." in answer["why"]
    assert sharing.read(MODEL) is not None


def test_a_server_that_was_about_to_end_is_started_again(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [share_opening.Ended("ended", "idle.", "again")]

    def answers(*_: Any) -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr(share_opening, "wait_until_open", answers)
    assert share_opening.open_for(REQUEST)["state"] == "open"
    assert systemd.started() == 2


def test_the_secrets_and_the_holes_in_the_filter_go_with_the_server(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch)
    assert share_opening.closed({}) == {"removed": 0}  # of a run that has just begun
    assert share_opening.drop_in().exists()
    monkeypatch.setattr(share_opening, "YOUNG_SECONDS", 0.0)
    assert share_opening.closed({}) == {"removed": 1}
    assert sharing.read(MODEL) is None
    assert not share_opening.drop_in().exists()
    assert share_opening.closed({}) == {"removed": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"model": "../etc/passwd"},
        {"model": ".incoming/x"},
        {"model": "a/b/c"},
        {"rank": "first"},
        {"token": None},
        {"peers": [{"name": "gpu02"}]},
        {"peers": "gpu02"},
        {"allowed": ["gpu02"]},
        {"else": 1},
    ],
)
def test_a_request_that_is_none_is_refused(
    systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    with pytest.raises(SpecError):
        opened(monkeypatch, **change)
    assert systemd.started() == 0
    assert not list(sharing.directory().glob("*"))


def test_a_file_of_another_version_is_no_file(systemd: FakeSystemd) -> None:
    path = sharing.path_of(MODEL)
    path.parent.mkdir(parents=True)
    for text in ("", "[]", "{}", '{"model": "x", "tokens": 5}'):
        path.write_text(text)
        assert sharing.read(MODEL) is None


# --- the secret


def test_a_proof_is_of_one_request_alone() -> None:
    header = sharing.proof("t", "/a/b", 5)
    assert sharing.is_proven(header, ("x", "t"), "/a/b", 5)
    assert not sharing.is_proven(header, ("x",), "/a/b", 5)
    assert not sharing.is_proven(header, ("t",), "/a/c", 5)
    assert not sharing.is_proven(header, ("t",), "/a/b", 6)
    assert "t" not in header.split()[1].split(":")[0] or len(header) > 80
    assert header != sharing.proof("t", "/a/b", 5)


@pytest.mark.parametrize("header", ["", "Fleet-HMAC", "Fleet-HMAC :", "Fleet-HMAC x:\xe9", "x y:z"])
def test_what_is_no_proof_proves_nothing(header: str) -> None:
    assert not sharing.is_proven(header, ("t",), "/a/b", 0)
    assert not sharing.is_proven(header, (), "/a/b", 0)


# --- the server


def test_the_rate_holds_over_all_uploads_together() -> None:
    meter = share_server.Meter()
    began = time.monotonic()
    for _ in range(5):
        meter.take(100_000, 1_000_000)
    assert time.monotonic() - began >= 0.25
    began = time.monotonic()
    meter.take(10**12, None)
    assert time.monotonic() - began < 60, "without a rate nobody waits"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"/{MODEL}", (MODEL, None)),
        (f"/{MODEL}/{'a' * 64}", (MODEL, "a" * 64)),
        (f"/{MODEL}/{'A' * 64}", None),
        ("/Qwen--Tiny/../x", None),
        ("/", None),
        (f"/{MODEL}/../../x", None),
        (f"//{MODEL}", None),
    ],
)
def test_nothing_else_than_a_model_and_a_digest_can_be_asked_for(
    path: str, found: tuple[str, str | None] | None
) -> None:
    match = share_server.TARGET.fullmatch(path)
    assert (match and (match[1], match[2])) == found


# --- what a pull tells


@pytest.fixture
def job(systemd: FakeSystemd) -> Path:
    path = share_state.state_path(MODEL).parent
    path.mkdir(parents=True)
    return path


TELLING = {"coming": ["a"], "bytes": 7, "hub": True, "hub_failed": None, "ended": False}


def test_a_pull_that_works_is_believed(job: Path) -> None:
    share_state.write(MODEL, TELLING)
    told = share_state.read(MODEL, opened_at=time.monotonic(), expected=True)
    assert (told["pulling"], told["starting"], told["coming"]) == (True, False, ["a"])
    assert (told["hub"], told["bytes"]) == (True, 7)


def test_a_pull_that_was_killed_is_not(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.monotonic()
    share_state.write(MODEL, TELLING)
    monkeypatch.setattr(share_state, "FRESH_SECONDS", -1.0)
    told = share_state.read(MODEL, opened_at=before, expected=True)
    assert (told["pulling"], told["coming"], told["hub"]) == (False, [], False)


def test_a_pull_that_failed_at_the_hub_says_so_in_its_own_run_only(job: Path) -> None:
    before = time.monotonic()
    share_state.write(MODEL, {**TELLING, "ended": True, "hub_failed": "500"})
    told = share_state.read(MODEL, opened_at=before, expected=True)
    assert (told["pulling"], told["hub_failed"]) == (False, "500")
    told = share_state.read(MODEL, opened_at=time.monotonic(), expected=True)
    assert (told["pulling"], told["starting"], told["hub_failed"]) == (True, True, None)


def test_a_pull_that_is_about_to_start_counts_for_a_while(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert share_state.read(MODEL, opened_at=time.monotonic(), expected=True)["starting"]
    assert not share_state.read(MODEL, opened_at=time.monotonic(), expected=False)["starting"]
    monkeypatch.setattr(share_state, "START_SECONDS", 0.0)
    assert not share_state.read(MODEL, opened_at=time.monotonic(), expected=True)["pulling"]


@pytest.mark.usefixtures("systemd")
def test_a_pull_that_is_no_job_tells_nothing_and_goes_on() -> None:
    assert not share_state.write(MODEL, TELLING)
    assert not share_state.read(MODEL, opened_at=0.0, expected=False)["pulling"]


def test_a_spoiled_state_is_none(job: Path) -> None:
    for text in ("", "[1]", '{"at": "x"}', '{"at": null, "coming": 5}'):
        share_state.state_path(MODEL).write_text(text)
        assert not share_state.read(MODEL, opened_at=0.0, expected=False)["pulling"]


def test_while_a_host_waits_no_other_has_more_than_one_place() -> None:
    slots = share_server.Slots()
    assert [slots.take("192.0.2.11") for _ in range(5)] == [True] * 4 + [False]
    assert not slots.take("192.0.2.12"), "all places are taken"
    slots.give_back("192.0.2.11")
    assert not slots.take("192.0.2.11"), "the other one waits"
    assert slots.take("192.0.2.12")
    slots.give_back("192.0.2.11")
    assert slots.take("192.0.2.11"), "nobody waits who has none"
    assert slots.count == 4


def test_who_has_gone_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = share_server.Slots()
    for _ in range(share_server.MOST_UPLOADS):
        slots.take("192.0.2.11")
    assert not slots.take("192.0.2.12")
    slots.give_back("192.0.2.11")
    monkeypatch.setattr(share_server, "WAITING_SECONDS", -1.0)
    assert slots.take("192.0.2.11")
