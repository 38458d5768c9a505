"""`fleet model lock` from a Hugging Face hub, a directory, a web server, and for an inventory."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub.faults import Fault
from pyinfra_deploy.cli import main
from pyinfra_deploy.planning.model_lock import read_lock
from tests.fakes import huggingface_hub
from tests.fakes.huggingface_hub import COMMIT, HuggingFace
from tests.fakes.lab_hub import make_directory
from tests.fakes.lock_world import MODEL, whole_model
from tests.fakes.model_hub import FIRST, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.lock_world import LockWorld

HF = ("--from", "huggingface", "--endpoint")
HF_LOCK = "locks/models/acme--tiny/main.json"


@pytest.fixture
def face() -> Iterator[HuggingFace]:
    hub = HuggingFace(whole_model(), large=frozenset({FIRST, SECOND}))
    server = huggingface_hub.serve(hub)
    yield hub
    server.shutdown()
    server.server_close()


def lock_of_face(world: LockWorld, face: HuggingFace, *words: str) -> int:
    return world.lock(*HF, face.endpoint, *words, what=huggingface_hub.MODEL)


def test_large_files_are_taken_from_the_listing_and_small_ones_hashed_here(
    world: LockWorld, face: HuggingFace
) -> None:
    assert lock_of_face(world, face) == 0
    written = world.written(HF_LOCK)
    assert {file["path"]: file["sha256"] for file in written["files"]} == {
        path: hashlib.sha256(body).hexdigest() for path, body in whole_model().items()
    }
    assert (written["commit"], written["hub"]) == (COMMIT, "huggingface")
    assert sorted(face.downloads()) == sorted(set(whole_model()) - {FIRST, SECOND})
    # Three entries a page: the listing was read to its end.
    assert sum("/tree/" in path for _, path, _ in face.requests) == 4


def test_the_same_model_of_two_hubs_has_the_same_digest(
    world: LockWorld, face: HuggingFace
) -> None:
    lock_of_face(world, face)
    world.lock()
    assert world.written(HF_LOCK)["digest"] == world.written()["digest"]


def test_a_mirror_that_passes_on_links_of_the_hub_behind_it(
    world: LockWorld, face: HuggingFace
) -> None:
    face.next_base = "https://huggingface.invalid"
    assert lock_of_face(world, face) == 0
    assert len(world.written(HF_LOCK)["files"]) == len(whole_model())


def test_the_token_does_not_follow_a_redirect_to_another_host(
    world: LockWorld, face: HuggingFace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "very-secret")
    face.token = "very-secret"
    seen: list[dict[str, str]] = []
    with web_server(make_directory(tmp_path / "cdn", whole_model()), seen) as address:
        face.cdn = address
        assert lock_of_face(world, face) == 0
    assert len(seen) == len(whole_model()) - 2
    assert not any("Authorization" in headers for headers in seen)
    assert all(headers["Authorization"] == "Bearer very-secret" for *_, headers in face.requests)


def test_without_its_token_the_hub_refuses(world: LockWorld, face: HuggingFace) -> None:
    face.token = "very-secret"
    error = lock_of_face(world, face), world.error
    assert error[0] == 1
    assert "HF_TOKEN" in error[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lfs": {"size": 5}}, "has no SHA-256"),
        ({"lfs": {"oid": "0" * 64}, "size": None}, "has no size"),
        ({"path": "../evil", "lfs": None}, "leaves the model's directory"),
        ({"path": "odd\ud800.safetensors"}, "is no text that a file system could hold"),
        ({"path": "x.py"}, "brings code of its own"),
        ({"path": FIRST}, "is listed twice"),
    ],
)
def test_a_listing_that_cannot_be_locked_is_refused(
    world: LockWorld, face: HuggingFace, change: dict[str, Any], words: str
) -> None:
    entry = {**face.entry(SECOND), "path": "odd.safetensors", **change}
    odd = {key: value for key, value in entry.items() if value is not None}
    face.told = [*face.entries(), odd]
    assert lock_of_face(world, face) == 1
    assert words in world.error
    assert not (world.root / "locks").exists()


def test_a_small_file_that_is_not_the_listed_blob_is_refused(
    world: LockWorld, face: HuggingFace
) -> None:
    face.told = face.entries()
    face.files["config.json"] = b'{"model_type": "other"}'
    assert lock_of_face(world, face) == 1
    assert "config.json is not what the hub's own listing says" in world.error


def test_a_model_that_the_hub_does_not_have(world: LockWorld, face: HuggingFace) -> None:
    assert world.lock(*HF, face.endpoint, what="acme/other") == 1
    assert "404" in world.error


# --- a directory


def sums_of(files: dict[str, bytes]) -> bytes:
    lines = [f"{hashlib.sha256(body).hexdigest()}  {path}\n" for path, body in files.items()]
    return "".join(lines).encode()


def test_a_snapshot_of_links_as_the_clients_cache_has_it(world: LockWorld, tmp_path: Path) -> None:
    blobs, snapshot = make_directory(tmp_path / "blobs", whole_model()), tmp_path / "snapshot"
    for path in whole_model():
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).symlink_to(blobs / path)
    make_directory(snapshot / ".cache", {"huggingface/x.lock": b""})
    make_directory(snapshot / ".git", {"HEAD": b"ref"})
    assert world.lock("--from", str(snapshot)) == 0
    written = world.written("locks/models/lab--tiny/local.json")
    assert {file["path"] for file in written["files"]} == set(whole_model())
    assert (written["hub"], written["commit"]) == ("directory", None)


def test_a_copy_that_differs_from_its_checksums_is_not_locked(
    world: LockWorld, tmp_path: Path
) -> None:
    files = whole_model()
    copy = make_directory(tmp_path / "copy", files | {"SHA256SUMS": sums_of(files)})
    assert world.lock("--from", str(copy)) == 0
    (copy / SECOND).write_bytes(b"other")
    (copy / FIRST).unlink()
    (copy / "stray.txt").write_bytes(b"")
    error = world.refused("--from", str(copy), "-o", "locks/other.json")
    assert f"{FIRST} is missing" in error
    assert f"{SECOND} has SHA-256" in error
    assert "stray.txt is not named in it" in error


def test_what_is_no_file_is_refused(world: LockWorld, tmp_path: Path) -> None:
    copy = make_directory(tmp_path / "copy", whole_model())
    (copy / "gone").symlink_to("nowhere")
    assert "leads nowhere" in world.refused("--from", str(copy))
    (copy / "gone").unlink()
    (copy / "up").symlink_to("..")
    assert "link to a directory" in world.refused("--from", str(copy))
    (copy / "up").unlink()
    os.mkfifo(copy / "pipe")
    assert "pipe is no file" in world.refused("--from", str(copy))
    assert "is no directory" in world.refused("--from", str(tmp_path / "none"))


# --- a web server with SHA256SUMS


@contextmanager
def web_server(directory: Path, seen: list[dict[str, str]] | None = None) -> Iterator[str]:
    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            if seen is not None:
                seen.append(dict(self.headers.items()))

    handler = functools.partial(Files, directory=str(directory))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_web_server_gives_hashes_by_its_sums_and_sizes_by_head(
    world: LockWorld, tmp_path: Path
) -> None:
    files = whole_model() | {"a b/ü.txt": b"odd name"}
    served = make_directory(tmp_path / "www", files | {"SHA256SUMS": sums_of(files)})
    with web_server(served) as address:
        assert world.lock("--from", f"{address}/") == 0
        written = world.written("locks/models/lab--tiny/local.json")
        assert {file["path"]: file["size"] for file in written["files"]} == {
            path: len(body) for path, body in files.items()
        }
        assert (written["hub"], written["endpoint"]) == ("http", address)
        (served / "config.json").write_bytes(b'{"model_type": "other"}')
        assert "is not what the listing says" in world.refused("--from", address)


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        (None, "has no SHA256SUMS"),
        (b"", "names no file"),
        (b"<html>\n", "line 1"),
        (b"0" * 64 + b"  ../evil\n", "leaves the model's directory"),
        (b"0" * 64 + b"  not-there\n", "404"),
        (b"0" * 64 + b"  a\n" + b"1" * 64 + b"  a\n", "has another hash before"),
    ],
)
def test_sums_that_cannot_be_used_are_refused(
    world: LockWorld, tmp_path: Path, sums: bytes | None, words: str
) -> None:
    files = whole_model() if sums is None else whole_model() | {"SHA256SUMS": sums}
    with web_server(make_directory(tmp_path / "www", files)) as address:
        assert words in world.refused("--from", address)


# --- for an inventory


def inventory(world: LockWorld, model: str) -> None:
    hosts = "all: {children: {prod: {hosts: {gpu01: {}, gpu02: {}}}, gpu: {hosts: {gpu01: {}}}}}\n"
    settings = f"runtime: {{vllm: '0.33.0', lock: locks/one.txt}}\nmodel: {model}\n"
    make_directory(
        world.root,
        {
            "inventories/prod/hosts.yml": hosts.encode(),
            "inventories/prod.py": b"",
            "group_vars/prod.yml": settings.encode(),
            "locks/one.txt": f"vllm==0.33.0 --hash=sha256:{'0' * 64}\n".encode(),
        },
    )


def lock_inventory(world: LockWorld, *words: str) -> int:
    code = main(["model", "lock", "inventories/prod.py", *words])
    world.out, world.error = world.capsys.readouterr()
    return code


def test_an_inventory_says_model_endpoint_and_file(world: LockWorld) -> None:
    inventory(world, f"{{id: {MODEL}, endpoint: '{world.hub.url}', lock: locks/mine.json}}")
    assert lock_inventory(world) == 0, world.error
    lock = read_lock((world.root / "locks/mine.json").read_text())
    assert (lock.model, lock.endpoint) == (MODEL, world.hub.url)
    assert (world.root / "locks/mine/config.json").is_file()
    assert "to use it" not in world.out


def test_an_inventory_whose_settings_name_no_lock_is_told_how_to_use_it(world: LockWorld) -> None:
    inventory(world, f"{{id: {MODEL}, endpoint: '{world.hub.url}'}}")
    assert lock_inventory(world) == 0, world.error
    assert "lock: locks/models/lab--tiny/master.json}" in world.out


def test_what_is_accepted_is_said_by_the_settings(world: LockWorld) -> None:
    world.publish(whole_model() | {"modeling_tiny.py": b""})
    inventory(world, f"{{id: {MODEL}, endpoint: '{world.hub.url}'}}")
    assert lock_inventory(world) == 1
    assert "model.accept: [code]" in world.error
    assert lock_inventory(world, "--accept", "code") == 1
    assert "its settings decide" in world.error
    inventory(world, f"{{id: {MODEL}, endpoint: '{world.hub.url}', accept: [code]}}")
    assert lock_inventory(world) == 0, world.error


def test_the_token_of_the_settings_is_for_their_own_hub_alone(
    world: LockWorld, face: HuggingFace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TOKEN", "very-secret")
    token = "token: \"{{ lookup('env', 'THE_TOKEN') }}\""
    where = f"endpoint: '{world.hub.url}', revision: main"
    inventory(world, f"{{id: {huggingface_hub.MODEL}, {where}, {token}}}")
    assert lock_inventory(world, *HF, face.endpoint) == 0, world.error
    assert face.requests
    assert not any("Authorization" in headers for *_, headers in face.requests)
    assert "model.token is not sent to" in world.out
    monkeypatch.setenv("HF_TOKEN", "for-the-face")
    face.requests.clear()
    assert lock_inventory(world, *HF, face.endpoint) == 0, world.error
    sent = {headers.get("Authorization") for *_, headers in face.requests}
    assert sent == {"Bearer for-the-face"}
    # Another place of the same kind of hub.
    seen: list[dict[str, str]] = []
    with web_server(tmp_path, seen) as address:
        assert lock_inventory(world, "--endpoint", address) == 1
    assert seen
    assert not any({"Authorization", "Cookie"} & set(headers) for headers in seen)


def test_the_token_of_the_settings_goes_to_their_own_hub(
    world: LockWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.hub.set_faults(Fault("token", value="very-secret"))
    monkeypatch.setenv("THE_TOKEN", "very-secret")
    token = "token: \"{{ lookup('env', 'THE_TOKEN') }}\""
    inventory(world, f"{{id: {MODEL}, endpoint: '{world.hub.url}', {token}}}")
    assert lock_inventory(world) == 0, world.error
    # As somebody may write it who locks from the mirror that the settings name.
    assert lock_inventory(world, "--endpoint", f"{world.hub.url}/") == 0, world.error
