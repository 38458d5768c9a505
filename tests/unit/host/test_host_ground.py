"""`host prepare`, `host facts` and `credential write`: what is written, in which order, and by whom
it may be read."""

from __future__ import annotations

import getpass
import grp
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import host as ground
from fleet_host.errors import HostError, SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.engine_host import FakeHost

TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
[ ! -e "$CALLS.fail" ] || { cat "$CALLS.fail" >&2; exit 1; }
"""


@pytest.fixture
def calls(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where systemctl, systemd-sysusers and systemd-tmpfiles note how they were called."""
    path = host.root / "calls"
    monkeypatch.setenv("CALLS", str(path))
    for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles"):
        program = host.root / "bin" / name
        program.write_text(TOOL)
        program.chmod(0o755)
    return path


def file(host: FakeHost, name: str, content: str = "x\n", **change: str) -> dict[str, str]:
    return {
        "path": str(host.root / "etc" / name),
        "content": content,
        "mode": "0644",
        "owner": getpass.getuser(),
        "group": grp.getgrgid(os.getgid()).gr_name,
        **change,
    }


def request(host: FakeHost, *files: dict[str, str]) -> dict[str, Any]:
    own = [file(host, "sysusers.d/llm.conf", "u llm"), file(host, "tmpfiles.d/llm.conf", "d /x")]
    return {
        "files": [*files, *own],
        "sysusers": own[0]["path"],
        "tmpfiles": own[1]["path"],
    }


def test_users_and_directories_come_before_the_files_that_need_them(
    host: FakeHost, calls: Path
) -> None:
    unit = file(host, "systemd/system/llm.service", "[Unit]\n")
    asked = request(host, unit)
    answer = ground.prepare(asked)
    assert answer["changed"] == [asked["sysusers"], asked["tmpfiles"], unit["path"]]
    assert calls.read_text().splitlines() == [
        f"systemd-sysusers {asked['sysusers']}",
        f"systemd-tmpfiles --create {asked['tmpfiles']}",
        "systemctl --no-pager --no-ask-password daemon-reload",
    ]
    assert (host.root / "etc/systemd/system/llm.service").read_text() == "[Unit]\n"
    assert (host.llm_root / "state/schema_version").read_text() == "1\n"
    (event,) = (host.llm_root / "state/events.jsonl").read_text().splitlines()
    assert json.loads(event)["what"] == "files written"


def test_the_same_again_writes_nothing(host: FakeHost, calls: Path) -> None:
    asked = request(host, file(host, "a"))
    ground.prepare(asked)
    before = (host.root / "etc/a").stat().st_ino
    assert ground.prepare(asked)["changed"] == []
    assert (host.root / "etc/a").stat().st_ino == before
    # All the same: a run that was killed before its daemon-reload left systemd stale.
    assert calls.read_text().count("daemon-reload") == 2


@pytest.mark.parametrize("how", ["content", "mode", "link"])
def test_what_differs_is_put_right(host: FakeHost, calls: Path, how: str) -> None:
    asked = request(host, file(host, "a", "wanted\n"))
    ground.prepare(asked)
    path = host.root / "etc/a"
    if how == "content":
        path.write_text("edited\n")
    elif how == "mode":
        path.chmod(0o666)
    else:
        path.rename(path.with_name("b"))
        path.symlink_to("b")
    assert ground.prepare(asked)["changed"] == [str(path)]
    assert not path.is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("wanted\n", 0o644)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"owner": "nobody-of-this-name"}, "there is no user nobody-of-this-name"),
        ({"group": "nogroup-of-this-name"}, "there is no group nogroup-of-this-name"),
    ],
)
def test_a_user_that_was_not_made_is_named(
    host: FakeHost, calls: Path, change: dict[str, str], said: str
) -> None:
    with pytest.raises(HostError, match=said) as caught:
        ground.prepare(request(host, file(host, "a", **change)))
    assert "systemd-sysusers" in caught.value.fix


def test_a_tool_that_fails_is_shown_with_its_words(host: FakeHost, calls: Path) -> None:
    calls.with_name("calls.fail").write_text("line one\nFailed to parse UID: 'x'\n")
    with pytest.raises(HostError, match=r"'systemd-sysusers .*' failed with exit code 1") as caught:
        ground.prepare(request(host, file(host, "a")))
    assert caught.value.why == "Failed to parse UID: 'x'"
    assert caught.value.detail == ["line one", "Failed to parse UID: 'x'"]
    assert not (host.root / "etc/a").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"path": "etc/passwd"},
        {"path": "/etc/../etc/passwd"},
        {"mode": 420},
        {"content": None},
        {"owner": None},
    ],
)
def test_a_malformed_file_is_refused_before_any_is_written(
    host: FakeHost, calls: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(SpecError):
        ground.prepare(request(host, file(host, "a"), {**file(host, "b"), **change}))
    assert not (host.root / "etc/a").exists()
    assert not calls.exists()


def test_facts_are_those_of_the_snapshot(host: FakeHost) -> None:
    found = ground.facts({})
    assert {"id", "version_id", "nginx", "nginx_openssl", "ipv6", "name_servers", "pythons"} <= set(
        found
    )


class TestCredential:
    @pytest.fixture(autouse=True)
    def _owners(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A test need not be root."""
        self.owners: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "fchown", lambda _, uid, gid: self.owners.append((uid, gid)))

    def test_it_is_roots_alone(self, host: FakeHost) -> None:
        asked = {"name": "hub-token", "secret": "hunter2"}
        assert ground.write_credential(asked) == {"changed": True}
        path = host.root / "etc/llm/credentials/hub-token"
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("hunter2", 0o600)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert self.owners == [(0, 0)]
        assert "hunter2" not in (host.llm_root / "state/events.jsonl").read_text()
        assert ground.write_credential(asked) == {"changed": False}
        assert ground.write_credential({**asked, "secret": "new"}) == {"changed": True}
        assert path.read_text() == "new"

    @pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", ""])
    def test_a_name_is_a_files_name(self, host: FakeHost, name: str) -> None:
        with pytest.raises(SpecError):
            ground.write_credential({"name": name, "secret": "hunter2"})
        assert not (host.root / "etc/llm").exists()


def test_a_directory_where_a_file_belongs_is_named(host: FakeHost, calls: Path) -> None:
    asked = request(host, file(host, "llm/watch-main.json"))
    place = host.root / "etc/llm/watch-main.json"
    place.mkdir(parents=True)
    (place / "theirs").write_text("x")
    with pytest.raises(HostError) as caught:
        ground.prepare(asked)
    assert str(place) in caught.value.what
    assert "is a directory" in caught.value.why
    assert f"mv {place}" in caught.value.fix
    assert [path.name for path in place.parent.iterdir()] == ["watch-main.json"]
    assert (place / "theirs").read_text() == "x"
