"""The pull job from nothing to a published model, and each way in which it must refuse."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import staging
from fleet_host.errors import HostError, SpecError

from tests.fakes.model_hub import FIRST, SECOND, FakeHub, entry_of, serve
from tests.fakes.traced import only, order, traced_job

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.pull_world import PullWorld


def refused(world: PullWorld, **changes: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        world.pull(**changes)
    assert not world.final.exists()
    return caught.value


def test_a_model_is_published_whole_and_read_only_with_its_record(world: PullWorld) -> None:
    answer = world.pull()
    world.assert_whole()
    assert answer["state"] == "pulled"
    assert not world.staging.exists()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in world.final.rglob("*") if path.is_file()}
    assert modes == {0o444}
    assert stat.S_IMODE(world.final.stat().st_mode) == 0o555
    assert stat.S_IMODE((world.final / "assets").stat().st_mode) == 0o555
    record = json.loads((world.final.parent / "master.json").read_text())
    assert record["commit"] == "c0ffee"
    assert record["endpoint"] == world.hub.endpoint
    assert {file["path"] for file in record["files"]} == set(world.hub.files)
    first = next(file for file in record["files"] if file["path"] == FIRST)
    found = (world.final / FIRST).stat()
    assert first["sha256"] == hashlib.sha256(world.hub.files[FIRST]).hexdigest()
    assert (first["mtime_ns"], first["inode"]) == (found.st_mtime_ns, found.st_ino)


def test_a_model_is_on_the_disk_before_it_has_its_name_and_the_record_is_last(
    world: PullWorld, tmp_path: Path
) -> None:
    calls = traced_job(tmp_path, "pull", world.spec())
    world.assert_whole()
    staged, final = "/models/.incoming/Qwen--Tiny/master/model", "/models/Qwen--Tiny/master"
    published = only(calls, rf'^rename "{staged}", "{final}"')
    for name in world.hub.files:
        # The client writes to a name of its own and renames that.
        came = [
            at
            for at, call in enumerate(calls)
            if re.match(rf'(write \d+<{staged}/{name}>|rename .*"{staged}/{name}")', call)
        ]
        synced = [
            at for at, call in enumerate(calls) if re.match(rf"fsync \d+<{staged}/{name}>", call)
        ]
        assert came
        assert synced, f"{name} was never synced"
        assert max(came) < max(synced) < published
    for directory in {staged, *(f"{staged}/{name}".rsplit("/", 1)[0] for name in world.hub.files)}:
        assert any(re.match(rf"fsync \d+<{directory}>", call) for call in calls[:published]), (
            directory
        )
    order(
        calls[published:],
        r"^fsync \d+</models/Qwen--Tiny>",
        r"^write \d+</models/Qwen--Tiny/TEMPORARY>",
        r"^fsync \d+</models/Qwen--Tiny/TEMPORARY>",
        rf'^rename "/models/Qwen--Tiny/TEMPORARY", "{final}.json"',
        r"^fsync \d+</models/Qwen--Tiny>",
    )
    assert only(calls, rf'^rename .*"{final}\.json"') > published


def test_the_client_runs_in_its_own_home_with_its_timeouts_and_nobodys_token(
    world: PullWorld,
) -> None:
    world.pull(files_at_once=3, file_timeout_seconds=7200)
    (start,) = world.starts()
    given = start["environment"]
    assert given["HOME"] == str(world.staging / "home")
    assert given["MODELSCOPE_ENDPOINT"] == world.hub.endpoint
    assert given["MODELSCOPE_DOWNLOAD_TOTAL_TIMEOUT"] == "7200"
    assert given["MODELSCOPE_DOWNLOAD_INTRA_CLOUD"] == "false"
    assert "MODELSCOPE_API_TOKEN" not in given
    assert start["argv"][start["argv"].index("--max-workers") + 1] == "3"
    assert "--include" not in start["argv"]


def test_a_published_model_asks_neither_hub_nor_client(world: PullWorld) -> None:
    world.pull()
    asked, started = len(world.hub.requests), len(world.starts())
    assert world.pull()["state"] == "present"
    assert (len(world.hub.requests), len(world.starts())) == (asked, started)


def test_a_revision_that_does_not_exist_is_refused_with_those_that_do(world: PullWorld) -> None:
    error = refused(world, revision="v9")
    assert "'v9'" in error.what
    assert "master, v1.0" in error.why
    assert world.starts() == []


def test_an_unknown_model_is_refused(world: PullWorld) -> None:
    assert "404" in refused(world, model_id="Qwen/Nothing").why


@pytest.mark.parametrize("lacking", ["Sha256", "Size"])
def test_a_listing_that_cannot_be_checked_is_refused(world: PullWorld, lacking: str) -> None:
    entries = world.hub.listing()
    next(entry for entry in entries if entry["Path"] == SECOND)[lacking] = None
    world.hub.entries = entries
    error = refused(world)
    assert f"{SECOND} has no {lacking}" in error.detail
    assert world.starts() == []


def test_a_listing_at_the_hubs_limit_is_refused_as_cut(world: PullWorld) -> None:
    extra = [entry_of(f"f{number}", b"") for number in range(3000)]
    world.hub.entries = world.hub.listing() + extra
    assert "3000" in refused(world).why


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "a/../../b", "a\nb", "a//b", "a\\b", ""]
)
def test_names_that_leave_the_directory_are_refused(world: PullWorld, name: str) -> None:
    world.hub.entries = [*world.hub.listing(), entry_of(name, b"x")]
    assert "not fit" in refused(world).what


def test_a_shard_that_the_listing_lacks_is_refused_before_any_download(world: PullWorld) -> None:
    world.hub.entries = [entry for entry in world.hub.listing() if entry["Path"] != SECOND]
    error = refused(world)
    assert error.detail == [SECOND]
    assert world.starts() == []


def test_weights_without_an_index_are_refused(world: PullWorld) -> None:
    del world.hub.files["model.safetensors.index.json"]
    assert "safetensors" in refused(world).what


@pytest.mark.parametrize(
    ("path", "word"), [("pytorch_model.bin", "pickle"), ("extra/modeling.py", "code")]
)
def test_what_runs_code_is_pulled_only_where_settings_accept_it(
    world: PullWorld, path: str, word: str
) -> None:
    world.hub.files[path] = b"\x80\x04"
    error = refused(world)
    assert "the settings do not accept" in error.what
    assert path in error.why
    assert f"accept: [{word}]" in error.fix
    assert world.starts() == []
    assert world.pull(accept=[word])["state"] == "pulled"
    world.assert_whole()


def test_accepted_pickles_count_as_weights(world: PullWorld) -> None:
    for name in ("model.safetensors.index.json", FIRST, SECOND):
        del world.hub.files[name]
    world.hub.files["pytorch_model.bin"] = b"\x80\x04"
    assert world.pull(accept=["pickle"])["state"] == "pulled"


def test_an_index_that_differs_from_its_own_listing_is_refused(world: PullWorld) -> None:
    world.hub.corrupt["model.safetensors.index.json"] = 9
    assert "does not match the hub's own listing" in refused(world).what


def test_a_hub_that_fails_three_times_is_asked_again(world: PullWorld) -> None:
    world.hub.statuses = [("/revisions", 500), ("/revisions", 502), ("/repo/files", 503)]
    assert world.pull()["state"] == "pulled"


def test_a_hub_that_keeps_failing_is_named(world: PullWorld) -> None:
    world.hub.statuses = [("/revisions", 500)] * 9
    error = refused(world)
    assert world.hub.endpoint in error.what
    assert "500, 4 times" in error.why


def test_a_hub_that_is_gone_is_named(world: PullWorld) -> None:
    error = refused(world, endpoint="http://127.0.0.1:9")
    assert "cannot be reached" in error.what
    assert "Connection refused" in error.why


def test_a_full_disk_is_refused_with_numbers(
    world: PullWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = namedtuple("size", "f_bavail f_frsize")
    monkeypatch.setattr(os, "statvfs", lambda _: size(1000, 4096))
    error = refused(world)
    assert "does not fit" in error.what
    assert "0.00 GB are free" in error.why
    assert world.starts() == []


def test_a_disk_that_fills_up_is_told_from_a_failing_hub(world: PullWorld) -> None:
    world.client_does("full", path=FIRST)
    error = refused(world)
    assert "disk space" in error.what
    assert any("Errno 28" in line for line in error.detail)
    assert len(world.starts()) == 1
    assert world.pull()["state"] == "pulled"


def test_exit_zero_with_a_bad_file_is_pulled_once_more(world: PullWorld) -> None:
    world.client_does("lie", path=SECOND, times=1)
    assert world.pull()["state"] == "pulled"
    world.assert_whole()
    again = world.starts()[1]["argv"]
    assert again[again.index("--include") :] == ["--include", SECOND]


def test_a_file_that_stays_bad_fails_the_job_and_is_named(world: PullWorld) -> None:
    world.client_does("lie", path=SECOND, times=9)
    error = refused(world)
    assert "damaged at the hub or on the way" in error.what
    assert error.detail[0].startswith(f"{SECOND} has SHA-256")
    assert len(world.starts()) == 2
    assert not (world.staging / "model" / SECOND).exists()
    assert (world.staging / "model" / FIRST).exists()


def test_a_client_that_finds_a_file_corrupt_fails_with_its_last_lines(world: PullWorld) -> None:
    world.hub.corrupt[SECOND] = 99
    error = refused(world)
    assert "not as the hub lists them" in error.what
    assert SECOND in error.why
    assert any("Hash mismatch" in line for line in error.detail)
    assert not any("OO" in line or "%|" in line for line in error.detail)


def test_exit_zero_with_a_file_missing_is_not_believed(world: PullWorld) -> None:
    world.client_does("omit", path=SECOND, times=9)
    error = refused(world)
    assert SECOND in error.why


def test_a_dropped_connection_resumes_without_fetching_good_files_again(world: PullWorld) -> None:
    world.client_does("drop", path=SECOND, times=1)
    assert world.pull()["state"] == "pulled"
    assert len(world.starts()) == 2
    assert world.hub.downloads(FIRST) == 1


def test_a_download_that_stands_still_is_ended(world: PullWorld) -> None:
    world.client_does("hang", path=SECOND, times=1)
    error = refused(world, stall_timeout_seconds=0.3)
    assert "stands still" in error.what
    assert world.pull()["state"] == "pulled"


def test_stale_and_extra_files_stay_out_of_the_model(world: PullWorld) -> None:
    model = world.staging / "model"
    (model / "old").mkdir(parents=True)
    (model / "old" / "shard").write_bytes(b"of another revision")
    (model / f"{FIRST}.parallel_tmp").write_bytes(b"x")
    (model / "link").symlink_to("/etc/passwd")
    world.pull()
    world.assert_whole()
    assert sorted(path.name for path in world.final.iterdir()) == sorted(
        {path.split("/")[0] for path in world.hub.files}
    )


def test_good_files_in_staging_are_kept_and_truncated_ones_replaced(world: PullWorld) -> None:
    model = world.staging / "model"
    model.mkdir(parents=True)
    (model / FIRST).write_bytes(world.hub.files[FIRST])
    (model / SECOND).write_bytes(world.hub.files[SECOND][:100])
    world.pull()
    world.assert_whole()
    assert (world.hub.downloads(FIRST), world.hub.downloads(SECOND)) == (0, 1)


def test_two_pulls_of_one_model_exclude_each_other(world: PullWorld) -> None:
    place = staging.places(world.target, "Qwen/Tiny", "master")
    with staging.held(place):
        assert "already" in refused(world).what


def test_the_token_goes_to_hub_and_client_but_not_to_another_host(
    world: PullWorld, tmp_path: Path
) -> None:
    cdn = FakeHub()
    server = serve(cdn)
    world.hub.redirect_to = cdn.endpoint
    token = tmp_path / "hub-token"
    token.write_text("s3cret\n")
    world.pull(token_file=str(token))
    server.shutdown()
    server.server_close()
    sent = [
        headers.get("Authorization") for path, headers in world.hub.requests if "/revis" in path
    ]
    assert sent == ["Bearer s3cret"]
    assert cdn.requests
    assert not any({"Authorization", "Cookie"} & set(headers) for _, headers in cdn.requests)
    (start,) = world.starts()
    assert start["environment"]["MODELSCOPE_API_TOKEN"] == "s3cret"
    assert not any("s3cret" in word for word in start["argv"])


@pytest.mark.parametrize("content", ["", "unset", "two\nlines"])
def test_a_token_that_is_none_is_refused(world: PullWorld, tmp_path: Path, content: str) -> None:
    token = tmp_path / "hub-token"
    token.write_text(content)
    assert "token cannot be used" in refused(world, token_file=str(token)).what


@pytest.mark.parametrize(
    "changes",
    [
        {"model_id": "noowner"},
        {"model_id": "a/../b"},
        {"revision": "../x"},
        {"revision": "a.json"},
        {"hub": "other"},
        {"target": "models"},
        {"files_at_once": "4"},
        {"unknown": 1},
    ],
)
def test_a_bad_spec_is_the_callers_mistake(world: PullWorld, changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        world.pull(**changes)


def test_a_missing_client_is_named_before_the_hub_is_asked(world: PullWorld) -> None:
    assert "/nonexistent/modelscope" in refused(world, client="/nonexistent/modelscope").what
    assert world.hub.requests == []
