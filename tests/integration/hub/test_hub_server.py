"""The hub's interface and each of its faults, over real connections on loopback."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.parse
from typing import TYPE_CHECKING

import pytest

from lab.hub import store
from lab.hub.faults import Fault
from lab.hub.places import models_directory, wheels_directory
from lab.hub.stub_wheel import write_stub_wheels
from tests.fakes.lab_hub import FILES, MODEL, SHARD, make_directory

if TYPE_CHECKING:
    from tests.fakes.lab_hub import RunningHub


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_listing_has_every_file_with_size_and_hash(hub: RunningHub) -> None:
    blobs = {path: e for path, e in hub.entries().items() if e["Type"] == "blob"}
    assert {p: (e["Size"], e["Sha256"]) for p, e in blobs.items()} == {
        path: (len(content), sha256(content)) for path, content in FILES.items()
    }
    assert {path for path, e in hub.entries().items() if e["Type"] == "tree"} == {"sub", "sub/dir"}


def test_listing_of_one_directory(hub: RunningHub) -> None:
    assert set(hub.entries(Recursive="False")) == {*FILES, "sub"} - {"sub/dir/notes.txt"}
    assert set(hub.entries(Recursive="False", Root="sub/dir")) == {"sub/dir/notes.txt"}
    assert set(hub.entries(Root="sub")) == {"sub/dir", "sub/dir/notes.txt"}


@pytest.mark.parametrize("path", sorted(FILES))
def test_file_whole(hub: RunningHub, path: str) -> None:
    answer = hub.file(path)
    assert (answer.status, answer.body) == (200, FILES[path])


def test_file_from_an_offset(hub: RunningHub) -> None:
    answer = hub.file(SHARD, Range="bytes=100-")
    assert (answer.status, answer.body) == (206, FILES[SHARD][100:])
    assert answer.headers["Content-Range"] == "bytes 100-2047/2048"


def test_part_of_a_file_and_a_range_past_its_end(hub: RunningHub) -> None:
    assert hub.file(SHARD, Range="bytes=10-19").body == FILES[SHARD][10:20]
    past = hub.file(SHARD, Range="bytes=2048-")
    assert (past.status, past.headers["Content-Range"]) == (416, "bytes */2048")


def test_head_has_the_length_and_no_body(hub: RunningHub) -> None:
    answer = hub.file(SHARD, method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == "2048"


def test_branch_and_commit_are_the_same_revision(hub: RunningHub) -> None:
    commit = store.branches(models_directory(hub.hub.directory), MODEL)["master"]
    assert hub.listing(commit).data == hub.listing("master").data
    found = hub.get(f"/api/v1/models/{MODEL}/revisions").data["RevisionMap"]["Branches"]
    assert [branch["Revision"] for branch in found] == ["master"]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/models/lab/other/repo/files?Revision=master",
        "/api/v1/models/../../repo/files?Revision=master",
        f"/api/v1/models/{MODEL}/repo/files?Revision=v9",
        f"/api/v1/models/{MODEL}/repo/files?Revision=..",
        f"/api/v1/models/{MODEL}/repo?Revision=master&FilePath=../../branches.json",
        f"/api/v1/models/{MODEL}/repo?Revision=master&FilePath=%2Fetc%2Fpasswd",
        "/wheels/..%2Fhub.log",
        "/",
    ],
)
def test_what_is_not_there_is_404(hub: RunningHub, path: str) -> None:
    assert hub.get(path).status == 404


def test_acceleration_probe_names_no_region(hub: RunningHub) -> None:
    data = hub.get("/api/v1/repos/internalAccelerationInfo").data
    assert data == {"InternalRegionQueryAddress": ""}


def test_wheels_page_links_with_the_hash(hub: RunningHub) -> None:
    wheel = write_stub_wheels(wheels_directory(hub.hub.directory))[0]
    link = f'href="/wheels/{urllib.parse.quote(wheel.name)}#sha256={sha256(wheel.read_bytes())}"'
    assert link in hub.get("/wheels/").body.decode()
    assert hub.get(f"/wheels/{urllib.parse.quote(wheel.name)}").body == wheel.read_bytes()


def test_corrupt_once_then_right(hub: RunningHub) -> None:
    hub.set_faults(Fault("corrupt", path="*.safetensors", times=1))
    spoiled = hub.file(SHARD).body
    assert len(spoiled) == len(FILES[SHARD])
    assert sum(a != b for a, b in zip(spoiled, FILES[SHARD], strict=True)) == 1
    assert hub.file(SHARD).body == FILES[SHARD]
    assert hub.hub.board.counters()["applied"] == {"corrupt": 1}


def test_a_fault_of_one_file_leaves_the_others(hub: RunningHub) -> None:
    hub.set_faults(Fault("corrupt", path=SHARD))
    assert hub.file("config.json").body == FILES["config.json"]
    assert hub.file(SHARD).body != FILES[SHARD]


def test_drop_ends_the_connection_early(hub: RunningHub) -> None:
    hub.set_faults(Fault("drop", path=SHARD, times=1, value=1000))
    with pytest.raises(http.client.IncompleteRead) as caught:
        hub.file(SHARD)
    assert caught.value.partial == FILES[SHARD][:1000]
    assert hub.hub.board.counters()["bytes"] == {SHARD: 1000}


def test_stall_sends_a_part_and_keeps_the_connection(hub: RunningHub) -> None:
    hub.set_faults(Fault("stall", path=SHARD, value=1000))
    place = urllib.parse.urlsplit(hub.url)
    connection = http.client.HTTPConnection(place.netloc, timeout=0.3)
    connection.request("GET", f"/api/v1/models/{MODEL}/repo?Revision=master&FilePath={SHARD}")
    response = connection.getresponse()
    assert response.read(1000) == FILES[SHARD][:1000]
    with pytest.raises(TimeoutError):
        response.read(1)
    connection.close()


def test_slow_takes_its_time(hub: RunningHub) -> None:
    hub.set_faults(Fault("slow", path=SHARD, value=10_000))
    started = time.monotonic()
    assert hub.file(SHARD).body == FILES[SHARD]
    assert 0.15 < time.monotonic() - started < 5


def test_error_n_times_and_for_other_requests(hub: RunningHub) -> None:
    hub.set_faults(Fault("error", path=SHARD, times=2), Fault("error", path="@listing", value=503))
    assert [hub.file(SHARD).status for _ in range(3)] == [500, 500, 200]
    assert hub.listing().status == 503
    hub.set_faults(Fault("error", path=SHARD, value=404))
    assert hub.file(SHARD).status == 404


def test_redirect_to_the_hub_itself_and_to_another(hub: RunningHub) -> None:
    hub.set_faults(Fault("redirect", path=SHARD))
    answer = hub.file(SHARD)
    location = answer.headers["Location"]
    assert (answer.status, location.startswith(f"{hub.url}/cdn/api/")) == (302, True)
    assert hub.get(location.removeprefix(hub.url)).body == FILES[SHARD]
    hub.set_faults(Fault("redirect", value="http://127.0.0.1:1/elsewhere"))
    assert hub.file(SHARD).headers["Location"].startswith("http://127.0.0.1:1/elsewhere/api/v1/")


def test_token_is_required_in_either_place(hub: RunningHub) -> None:
    hub.set_faults(Fault("token", value="right"))
    assert (hub.listing().status, hub.file(SHARD).status) == (401, 401)
    assert hub.file(SHARD, Authorization="Bearer wrong").status == 401
    assert hub.file(SHARD, Authorization="Bearer right").status == 200
    assert hub.file(SHARD, Cookie="a=b; m_session_id=right").status == 200


@pytest.mark.parametrize("pattern", [SHARD, "*.safetensors"])
def test_listing_without_hash_with_a_wrong_one_or_a_wrong_size(
    hub: RunningHub, pattern: str
) -> None:
    right = hub.entries()[SHARD]
    hub.set_faults(Fault("no_sha256", path=pattern))
    assert "Sha256" not in hub.entries()[SHARD]
    assert "Sha256" in hub.entries()["config.json"]
    hub.set_faults(Fault("wrong_sha256", path=pattern))
    assert hub.entries()[SHARD]["Sha256"] != right["Sha256"]
    hub.set_faults(Fault("wrong_size", path=pattern))
    assert hub.entries()[SHARD]["Size"] == right["Size"] + 1


def test_listing_without_a_shard(hub: RunningHub) -> None:
    hub.set_faults(Fault("omit", path=SHARD, times=1))
    assert SHARD not in hub.entries()
    assert SHARD in hub.entries()


@pytest.mark.parametrize(
    "path", ["model-00003-of-00002.safetensors", "../../etc/x", "/etc/x", "sub/../../x"]
)
def test_extra_entry_is_listed_as_it_is_and_can_be_downloaded(hub: RunningHub, path: str) -> None:
    hub.set_faults(Fault("extra", value=path))
    entry = hub.entries()[path]
    body = hub.file(path).body
    assert (entry["Size"], entry["Sha256"]) == (len(body), sha256(body))
    assert set(hub.entries()) - {path, "sub", "sub/dir"} == set(FILES)


def test_a_listing_ends_at_3000_entries_without_a_word(hub: RunningHub) -> None:
    hub.set_faults(Fault("many", value=3100))
    answer = hub.listing()
    assert (answer.status, len(answer.data["Files"])) == (200, 3000)
    whole = {
        path
        for root in ("filler/00", "filler/01", "filler/02", "filler/03")
        for path in hub.entries(Root=root)
    }
    assert len(whole) == 3100 - len(FILES)
    assert hub.file("filler/00/00007.txt").status == 200


def test_revision_that_does_not_exist(hub: RunningHub) -> None:
    hub.set_faults(Fault("no_revision", path="master"))
    assert (hub.listing().status, hub.file(SHARD).status) == (404, 404)


def test_revision_that_moves_between_listing_and_files(hub: RunningHub) -> None:
    models = models_directory(hub.hub.directory)
    changed = make_directory(hub.hub.directory / "made", {**FILES, SHARD: b"another"})
    commit = store.publish(models, changed, MODEL, "next")
    hub.set_faults(Fault("moves", value=commit))
    assert hub.entries()[SHARD]["Size"] == 2048
    assert hub.file(SHARD).body == b"another"
    assert hub.entries()[SHARD]["Size"] == 7
    hub.set_faults()
    assert hub.file(SHARD).body == FILES[SHARD]


def test_counters_by_path(hub: RunningHub) -> None:
    hub.listing()
    hub.file(SHARD)
    hub.file(SHARD, Range="bytes=2000-")
    found = hub.hub.board.counters()
    assert found["requests"] == {"@listing": 1, SHARD: 2}
    assert found["bytes"][SHARD] == 2048 + 48
    assert found["statuses"] == {"200": 2, "206": 1}
    hub.hub.board.reset_counters()
    assert hub.hub.board.counters()["requests"] == {}
