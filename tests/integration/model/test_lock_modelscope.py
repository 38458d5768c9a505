"""`fleet model lock` against the lab's hub: what is written, and every way in which it refuses."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from lab.hub.faults import LISTING, Fault
from pyinfra_deploy.planning.model_lock import read_lock
from tests.fakes.lab_hub import make_directory
from tests.fakes.lock_world import MODEL, README, whole_model
from tests.fakes.model_hub import FIRST, SECOND

if TYPE_CHECKING:
    from tests.fakes.lock_world import LockWorld

LOCK = "locks/models/lab--tiny/master.json"


def test_every_file_is_locked_with_size_and_hash_and_small_ones_lie_beside(
    world: LockWorld,
) -> None:
    commit = world.publish(whole_model())
    assert world.lock() == 0
    written = world.written()
    assert {file["path"]: (file["size"], file["sha256"]) for file in written["files"]} == {
        path: (len(body), hashlib.sha256(body).hexdigest()) for path, body in whole_model().items()
    }
    assert (written["commit"], written["license"]) == (commit, "apache-2.0")
    assert (written["hub"], written["endpoint"]) == ("modelscope", world.hub.url)
    beside = world.root / "locks/models/lab--tiny/master"
    found = {path.name: path.read_bytes() for path in beside.rglob("*") if path.is_file()}
    wanted = (
        *("config.json", "model.safetensors.index.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    )
    assert found == {name: whole_model()[name] for name in wanted}
    assert f"lock: {LOCK}" in world.out
    assert f"on hosts lab--tiny/master-{written['digest'][:12]}" in world.out
    assert f"commit {commit[:12]}, licence apache-2.0 (README.md)" in world.out


def test_locked_again_nothing_changes_and_no_weights_are_downloaded(world: LockWorld) -> None:
    world.lock()
    before = (world.root / LOCK).read_bytes()
    assert world.lock() == 0
    assert f"{LOCK}: as it was" in world.out
    assert (world.root / LOCK).read_bytes() == before
    assert not {FIRST, SECOND} & set(world.hub.hub.board.counters()["bytes"])


def test_one_file_a_line_so_that_a_change_is_one_line_of_a_diff(world: LockWorld) -> None:
    world.lock()
    before = (world.root / LOCK).read_text().splitlines()
    world.publish(whole_model() | {"tokenizer.json": b'{"model": {"type": "BPE"}}'})
    world.lock()
    after = (world.root / LOCK).read_text().splitlines()
    changed = [line for line in after if line not in before]
    assert len(after) == len(before)
    assert [line.split('"')[1] for line in changed] == ["commit", "digest", "total_bytes", "path"]


def test_an_update_tells_what_changed_in_words(world: LockWorld) -> None:
    world.lock()
    files = whole_model() | {"tokenizer.json": b'{"model": {"type": "BPE"}}', "new.txt": b"new"}
    files["renamed.json"] = files.pop("assets/tokenizer.json") + b""
    del files[".gitattributes"]
    world.publish(files)
    assert world.lock("--check") == 3
    assert "tokenizer.json changed, 13 bytes -> 26 bytes: how text becomes tokens" in world.out
    assert "new.txt is new, 3 bytes" in world.out
    assert "renamed.json was assets/tokenizer.json, unchanged" in world.out
    assert ".gitattributes is gone" in world.out
    assert "nothing is written" in world.out
    assert "tokenizer.json changed" in (world.lock(), world.out)[1]
    assert {file["path"] for file in world.written()["files"]} == set(files)


def test_small_files_that_were_changed_by_hand_are_put_right(world: LockWorld) -> None:
    world.lock()
    config = world.root / "locks/models/lab--tiny/master/config.json"
    config.write_text("{}")
    (config.parent / "left-over.json").write_text("{}")
    assert world.lock("--check") == 3
    assert "the small files beside it were missing or changed" in world.out
    assert world.lock() == 0
    assert config.read_bytes() == whole_model()["config.json"]
    assert not (config.parent / "left-over.json").exists()


def test_a_commit_can_be_locked(world: LockWorld) -> None:
    commit = world.publish(whole_model())
    assert world.lock(what=f"{MODEL}@{commit}") == 0
    assert world.written(f"locks/models/lab--tiny/{commit}.json")["commit"] == commit


def test_a_branch_that_moves_meanwhile_gives_one_commit_not_a_mixture(world: LockWorld) -> None:
    old = world.publish(whole_model())
    new = world.publish(whole_model() | {"tokenizer.json": b"[]"}, "next")
    world.hub.set_faults(Fault("moves", value=new, times=1))
    assert world.lock() == 0
    written = world.written()
    assert written["commit"] == old
    beside = world.root / "locks/models/lab--tiny/master/tokenizer.json"
    assert beside.read_bytes() == whole_model()["tokenizer.json"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("no_sha256", path=SECOND), f"{SECOND} has no SHA-256"),
        (Fault("omit", path=SECOND), f"1 of 2 shards that the listing lacks, {SECOND} first"),
        (Fault("extra", value="../evil.txt"), "'../evil.txt' leaves the model's directory"),
        (Fault("extra", value="/etc/passwd"), "'/etc/passwd' leaves the model's directory"),
        (Fault("extra", value="modeling_tiny.py"), "brings code of its own"),
        (Fault("extra", value="pytorch_model.bin"), "brings pickled weights"),
        (Fault("many", value=3000), "cuts listings at 3000 entries"),
        (Fault("omit", path="config.json"), "it has no config.json"),
        (Fault("omit", path="model*"), "weights in safetensors format"),
        (Fault("wrong_sha256", path="tokenizer.json"), "is not what the listing says"),
        (Fault("wrong_size", path="config.json"), "is not what the listing says"),
        (Fault("corrupt", path="config.json"), "is not what the listing says"),
        (Fault("no_revision", path="master"), "it answered 404"),
        (Fault("error", path=LISTING), "it answered 500, 4 times"),
        (Fault("token", value="secret"), "it wants a token"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_what_cannot_be_locked_is_refused_and_nothing_is_written(
    world: LockWorld, fault: Fault, words: str
) -> None:
    world.hub.set_faults(fault)
    assert words in world.refused()


def test_a_file_with_an_extra_harmless_name_is_locked_like_the_rest(world: LockWorld) -> None:
    world.hub.set_faults(Fault("extra", value="notes/more.txt"))
    assert world.lock() == 0
    assert "notes/more.txt" in {file["path"] for file in world.written()["files"]}


def test_an_unknown_model_and_revision_are_named(world: LockWorld) -> None:
    assert "404" in world.refused(what="lab/nothing")
    error = world.refused(what=f"{MODEL}@v9")
    assert "no revision 'v9'" in error
    assert "it has master" in error
    assert "cannot be a revision here" in world.refused(what=f"{MODEL}@feature/x")


def test_a_hub_that_stumbles_is_asked_again(world: LockWorld) -> None:
    world.hub.set_faults(Fault("error", times=2))
    assert world.lock() == 0


def test_a_hub_that_is_gone_is_named_with_the_way_out(world: LockWorld) -> None:
    error = world.refused("--endpoint", "http://127.0.0.1:9")
    assert "Connection refused" in error
    assert "curl -v http://127.0.0.1:9" in error


def test_the_token_of_the_environment_is_used_and_appears_nowhere(
    world: LockWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.hub.set_faults(Fault("token", value="very-secret"))
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "wrong-one")
    assert "the token is not accepted" in world.refused()
    assert "wrong-one" not in world.error
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "very-secret")
    assert world.lock() == 0
    written = [path.read_bytes() for path in world.root.rglob("*") if path.is_file()]
    assert not any(b"very-secret" in content for content in [*written, world.out.encode()])


def test_pickles_and_code_are_accepted_by_name_and_locked_by_digest(world: LockWorld) -> None:
    code = {"modeling_tiny.py": b"print()", "training_args.bin": b"\x80\x04"}
    world.publish(whole_model() | code)
    assert "--without '*.bin'" in world.refused("--accept", "code")
    assert world.lock("--accept", "code", "--accept", "pickle") == 0
    written = world.written()
    assert written["accepts"] == ["code", "pickle"]
    hashes = {file["path"]: file["sha256"] for file in written["files"]}
    assert hashes["modeling_tiny.py"] == hashlib.sha256(b"print()").hexdigest()
    assert "with code and pickle" in world.out


def test_what_is_left_out_stays_out_at_the_next_update(world: LockWorld) -> None:
    world.publish(whole_model() | {"original/consolidated.pth": b"x", "modeling_tiny.py": b"y"})
    assert world.lock("--without", "*.pth", "--without", "*.py") == 0
    digest = world.written()["digest"]
    assert {file["path"] for file in world.written()["files"]} == set(whole_model())
    assert world.lock() == 0
    assert world.written()["digest"] == digest


def test_pickles_alone_are_a_model_only_where_they_are_accepted(world: LockWorld) -> None:
    weights = {"config.json": b"{}", "pytorch_model.bin": b"\x80\x04"}
    world.publish(weights)
    assert "pickled weights" in world.refused()
    assert "safetensors" in world.refused("--without", "*.bin")
    assert world.lock("--accept", "pickle") == 0
    world.publish(
        weights
        | {"pytorch_model.bin.index.json": json.dumps({"weight_map": {"a": "b.bin"}}).encode()}
    )
    assert "1 of 1 shards that the listing lacks, b.bin first" in world.refused(
        "--accept", "pickle"
    )


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"<html>", "it has no weight_map"),
        (b'{"weight_map": {}}', "its weight_map is empty"),
        (b'{"weight_map": {"a": "../x.safetensors"}}', "its weight_map names '../x.safetensors'"),
    ],
)
def test_an_index_that_cannot_be_used_is_refused(
    world: LockWorld, index: bytes, words: str
) -> None:
    world.publish(whole_model() | {"model.safetensors.index.json": index})
    assert words in world.refused()


@pytest.mark.parametrize(
    ("readme", "named"),
    [
        (README, "apache-2.0"),
        (b"---\nlicense: other\nlicense_name: qwen\n---\n", "qwen"),
        (b"no head", None),
        (b"---\nlicense: [a\n---\n", None),
        (b"---\n- a list\n---\n", None),
    ],
)
def test_the_licence_is_read_from_the_locked_readme(
    world: LockWorld, readme: bytes, named: str | None
) -> None:
    world.publish(whole_model() | {"README.md": readme})
    assert world.lock() == 0
    assert world.written()["license"] == named


def test_weights_that_the_index_does_not_name_are_noted_with_how_to_leave_them_out(
    world: LockWorld,
) -> None:
    world.publish(whole_model() | {"consolidated.safetensors": whole_model()[FIRST]})
    assert world.lock() == 0
    assert "consolidated.safetensors" in {file["path"] for file in world.written()["files"]}
    assert "1 weight files" in world.out + world.error
    assert "--without 'consolidated.safetensors'" in world.out + world.error
    world.lock("--without", "consolidated.safetensors")
    assert "weight files" not in world.out + world.error


def test_a_licence_that_the_operator_states_holds_at_the_next_update(world: LockWorld) -> None:
    world.publish(whole_model() | {"README.md": b"nothing"})
    world.lock("--license", "acme-internal")
    world.publish(whole_model() | {"README.md": b"still nothing"})
    assert world.lock() == 0
    assert (world.written()["license"], world.written()["license_from"]) == (
        "acme-internal", "the operator",
    )  # fmt: skip


def test_a_lock_that_was_edited_by_hand_is_refused_not_overwritten(world: LockWorld) -> None:
    world.lock()
    path = world.root / LOCK
    path.write_text(path.read_text().replace('"size": 2,', '"size": 3,'))
    assert "edited by hand" in world.refused()


def test_the_lock_that_is_written_can_be_read(world: LockWorld) -> None:
    world.lock()
    lock = read_lock((world.root / LOCK).read_text())
    assert lock.directory == f"master-{lock.digest[:12]}"
    assert lock.total_bytes == sum(len(body) for body in whole_model().values())


def test_a_directory_that_is_a_copy_gives_the_same_content(world: LockWorld) -> None:
    world.lock()
    copy = make_directory(world.root.parent / "copy", whole_model())
    assert world.lock("--from", str(copy), "-o", "locks/copy.json") == 0
    assert world.written("locks/copy.json")["digest"] == world.written()["digest"]
