"""The snapshot as the deploy runs it: the file's text given to a bare interpreter."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import integrity, snapshot
from fleet_host.listing import FileEntry

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(snapshot.__file__).read_text(encoding="utf-8")
# Of `dpkg -L libpython3.11-minimal` and its built-in modules, what a snapshot may need.
IN_PYTHON_MINIMAL = {
    "_socket", "_ssl", "ast", "binascii", "glob", "grp", "hashlib", "os", "pwd", "re", "struct",
    "subprocess", "sys", "time", "__future__",
}  # fmt: skip
SECTIONS = {
    "os", "packages", "users", "files", "units", "sysctl", "disk", "state", "environments",
    "models", "engines", "gateway", "listeners", "memory", "cpus", "driver", "drop_ins",
}  # fmt: skip


def run_inline(request: dict[str, Any], source: str = SOURCE) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source, json.dumps(request)],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read(request: dict[str, Any]) -> dict[str, Any]:
    """The same in this process, which starts no interpreter."""
    found: dict[str, Any] = json.loads(snapshot.to_json(snapshot.collect(request)))
    return found


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script of a name before all others on PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")

    def put_program(name: str, text: str) -> None:
        (directory / name).write_text("#!/bin/sh\n" + text, encoding="utf-8")
        (directory / name).chmod(0o755)

    return put_program


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_a_bare_machine_has_every_section_and_no_error(tmp_path: Path) -> None:
    found = run_inline({"llm_root": str(tmp_path / "srv/llm"), "engines": ["main"]})
    assert set(found) == SECTIONS | {"format"}
    assert [
        name for name in SECTIONS if isinstance(found[name], dict) and "error" in found[name]
    ] == []
    assert found["disk"]["llm_root"]["path"] == str(tmp_path)
    assert found["disk"]["llm_root"]["free_bytes"] > 0
    assert found["memory"]["total_bytes"] > found["memory"]["available_bytes"] > 0
    assert found["engines"]["main"]["current"] is None
    assert found["state"]["generation"] == 0


def test_it_imports_only_what_python3_minimal_has() -> None:
    imported = set()
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    # json is tried; collections.abc and typing are for type checkers only.
    assert imported - {"json", "collections.abc", "typing"} <= IN_PYTHON_MINIMAL


def test_it_asks_no_gpu() -> None:
    """The collector does, and masks UUIDs where it is asked to; and a driver that hangs must not
    hold up a converge that does not look at it."""
    assert "nvidia-smi" not in SOURCE


def test_without_the_json_module_it_answers_the_same(tmp_path: Path) -> None:
    odd = tmp_path / 'an "odd"\\ name é'
    odd.write_text("x", encoding="utf-8")
    put(tmp_path / "state/lease.json", {"run": None, "held": True, "text": "true null"})
    request = {"llm_root": str(tmp_path), "files": [str(odd), "/nonexistent"]}
    with_json = run_inline(request)
    bare = SOURCE.replace("    import json\n", "    raise ImportError\n")
    assert bare != SOURCE
    without = run_inline(request, source=bare)
    assert without["files"] == with_json["files"]
    assert without["files"][str(odd)]["size"] == 1
    assert without["state"]["lease"] == {"run": None, "held": True, "text": "true null"}


@pytest.mark.parametrize(
    "value", ["", 'a"b\\c\n\t\x00', "é€😀", [1, 2.5, {"k": [None, True, False]}], {}]
)
def test_the_small_json_writer_writes_what_json_reads(value: Any) -> None:
    assert json.loads(snapshot.plain_to_json(value)) == value


def test_units_are_read_by_one_systemctl(
    tmp_path: Path, program: Callable[[str, str], None]
) -> None:
    calls = tmp_path / "calls"
    block = (
        "Id={0}\\nLoadState=loaded\\nActiveState=active\\nSubState=running\\nUnitFileState=enabled\\n"
        "Result=success\\nMainPID={1}\\nInvocationID=abc\\nNRestarts=2\\nNeedDaemonReload=yes\\n"
    )
    both = block.format("nginx.service", 11) + "\\n" + block.format("ssh.service", 12)
    program(
        "systemctl",
        f'echo "$@" >> {calls}\n[ "$1" = show ] && printf \'{both}\'\n',
    )
    found = read({"units": ["nginx.service", "sshd.service"]})
    assert found["units"]["sshd.service"] == {
        "load": "loaded", "active": "active", "sub": "running", "enabled": "enabled",
        "result": "success", "main_pid": 12,
        "invocation_id": "abc", "restarts": 2, "need_reload": True,
    }  # fmt: skip
    assert calls.read_text(encoding="utf-8").count("show") == 1


def test_a_failing_section_says_so_and_the_others_are_there(
    tmp_path: Path, program: Callable[[str, str], None]
) -> None:
    program("systemctl", "echo 'Failed to connect to bus'; exit 1\n")
    found = read({"units": ["a.service", "b.service"]})
    assert "Failed to connect to bus" in found["units"]["error"]
    assert found["cpus"] >= 1


def test_packages_tell_installed_from_removed_and_unknown(
    tmp_path: Path, program: Callable[[str, str], None]
) -> None:
    listing = "nginx\\t1.22.1-9\\tii \\nbash\\t5.2\\trc \\n"
    program(
        "dpkg-query",
        f"printf '{listing}'; echo 'no packages found' >&2; exit 1\n",
    )
    found = read({"packages": ["nginx", "bash", "nope"]})
    assert found["packages"] == {"nginx": "1.22.1-9", "bash": None, "nope": None}


def test_a_model_is_intact_only_with_every_file_in_full_size(tmp_path: Path) -> None:
    models = tmp_path / "models/Qwen--Tiny"
    files = [
        {"path": "a.safetensors", "size": 3, "sha256": "x"},
        {"path": "sub/b", "size": 2, "sha256": "y"},
    ]
    put(models / "master.json", {"model": "Qwen/Tiny", "files": files})
    put(models / "master/a.safetensors", "123")
    put(models / "master/sub/b", "12")
    found = read({"llm_root": str(tmp_path)})["models"]["Qwen--Tiny"]["master"]
    assert found == {
        "record": {"model": "Qwen/Tiny"},
        "files": 2,
        "bytes": 5,
        "intact": True,
        "complete": True,
        "problems": [],
    }
    put(models / "master/a.safetensors", "1")
    (models / "master/sub/b").unlink()
    found = read({"llm_root": str(tmp_path)})["models"]["Qwen--Tiny"]["master"]
    assert (found["intact"], found["complete"]) == (False, False)
    assert found["problems"] == [
        "a.safetensors: 1 bytes, 3 expected",
        "sub/b: No such file or directory",
    ]


def test_what_a_model_has_beside_its_record_is_seen(tmp_path: Path) -> None:
    models = tmp_path / "models/Qwen--Tiny"
    files = [{"path": "a", "size": 1, "sha256": "x"}, {"path": "sub/b", "size": 1, "sha256": "y"}]
    put(models / "master.json", {"files": files})
    for path in ("a", "sub/b", "notes.txt", "sub/b.orig", "other/deep/file"):
        put(models / "master" / path, "1")
    (models / "master/sub/link").symlink_to("b")
    found = read({"llm_root": str(tmp_path)})["models"]["Qwen--Tiny"]["master"]
    assert (found["intact"], found["complete"]) == (False, True)
    assert found["problems"] == [
        f"{path}: does not belong to the model"
        for path in ("notes.txt", "other", "sub/b.orig", "sub/link")
    ]
    directory = models / "master"
    theirs = integrity.extra_files(directory, [FileEntry(str(row["path"]), 1, "") for row in files])
    assert [path.relative_to(directory).as_posix() for path in theirs] == [
        problem.split(":")[0] for problem in found["problems"]
    ]


def test_an_engine_s_links_releases_and_records(tmp_path: Path) -> None:
    home = tmp_path / "engines/main"
    put(home / "releases/r1/release.json", {"id": "r1"})
    put(home / "releases/r2/release.json", "{not json")
    (home / "current").symlink_to("releases/r1")
    put(home / "golive.json", {"phase": "switched"})
    put(tmp_path / "jobs/golive/main/spec.json", {"spec": {"release": "r2", "run": "a"}})
    put(home / "start.json", {"release": "r1", "gpus": [], "lines": ["KV cache size: 1 tokens"]})
    found = read({"llm_root": str(tmp_path), "engines": ["main"]})["engines"]["main"]
    assert (found["current"], found["previous"]) == ("r1", None)
    assert found["releases"]["r1"] == {"id": "r1"}
    assert "is not JSON" in found["releases"]["r2"]["error"]
    assert found["golive"] == {"phase": "switched"}
    assert found["golive_asked"] == "r2"
    assert found["start"]["release"] == "r1"


def test_sysctl_files_are_read_in_systemd_s_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc, usr = tmp_path / "etc", tmp_path / "usr"
    monkeypatch.setattr(snapshot, "SYSCTL_DIRECTORIES", (str(etc), str(usr)))
    put(usr / "10-map-count.conf", "vm.max_map_count=1048576\n")
    put(usr / "50-hidden.conf", "vm.max_map_count=1\n")
    put(etc / "50-hidden.conf", "# vm.max_map_count=2\n; vm.max_map_count=3\nvm.swappiness=1\n")
    put(etc / "99-other.conf", "\n-vm/max_map_count = 262144\n")
    put(etc / "99-not-read.txt", "vm.max_map_count=4\n")
    assert snapshot.sysctl_assignments(snapshot.sysctl_files()) == [
        {"file": str(usr / "10-map-count.conf"), "line": 1, "value": "1048576"},
        {"file": str(etc / "99-other.conf"), "line": 2, "value": "262144"},
    ]


def test_a_listening_socket_names_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = [item for item in read({})["listeners"] if item["port"] == port]
    assert len(found) == 1
    assert found[0]["proto"] == "tcp"
    assert found[0]["address"] == "127.0.0.1"
    assert found[0]["pid"] == os.getpid()


def test_addresses_of_both_families_are_readable() -> None:
    if sys.byteorder == "little":
        assert snapshot.address_text("0100007F") == "127.0.0.1"
        assert snapshot.address_text("00000000000000000000000001000000") == "::1"


def test_a_certificate_is_read_without_openssl(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "9", "-keyout", key, "-out", certificate, "-subj", "/CN=Our CA",
         "-addext", "subjectAltName=DNS:llm.example.com,IP:10.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    found = read({"certificate": str(certificate)})["gateway"]["certificate"]
    assert found["sans"] == ["llm.example.com", "10.0.0.1"]
    assert found["issuer"] == "Our CA"
    assert len(found["fingerprint"]) == 64


POLICY = """
cat <<END
nvidia-driver:
  Installed: (none)
  Candidate: 535.261.03-1~deb12u1
  Version table:
     535.261.03-1~deb12u1 500
        500 http://deb.example.org/debian bookworm/non-free amd64 Packages
nvidia-smi:
  Installed: 535.247.01-1~deb12u1
  Candidate: 535.261.03-1~deb12u1
  Version table:
nvidia-kernel-dkms:
  Installed: (none)
  Candidate: (none)
  Version table:
END
"""


def test_packages_of_a_driver_that_is_to_be_installed(
    program: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["nvidia-driver", "nvidia-smi", "nvidia-kernel-dkms", "unknown"]
    program("apt-cache", POLICY)
    monkeypatch.setattr(snapshot, "secure_boot", lambda: True)
    monkeypatch.setattr(snapshot, "MODULE_KEYS", (str(tmp_path / "mok.pub"),))
    found = read({"driver": names})["driver"]
    assert found == {
        "packages": {
            "nvidia-driver": {"installed": None, "candidate": "535.261.03-1~deb12u1"},
            "nvidia-smi": {
                "installed": "535.247.01-1~deb12u1",
                "candidate": "535.261.03-1~deb12u1",
            },
            "nvidia-kernel-dkms": {"installed": None, "candidate": None},
            "unknown": None,
        },
        "secure_boot": True,
        "module_key": None,
    }
    (tmp_path / "mok.pub").touch()
    for words, enrolled in (("is already enrolled", True), ("is not enrolled", False)):
        program("mokutil", f'echo "$2 {words}"; exit 1')
        assert read({"driver": names})["driver"]["module_key"] is enrolled
    program("apt-cache", "echo E: broken; exit 100")
    assert "broken" in read({"driver": names})["driver"]["error"]


@pytest.mark.parametrize(
    ("content", "on"),
    [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\0", False), (None, False)],
)
def test_secure_boot_is_the_variable_s_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, on: bool
) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _path: True)
    monkeypatch.setattr(snapshot, "SECURE_BOOT", str(tmp_path / "SecureBoot"))
    if content is not None:
        (tmp_path / "SecureBoot").write_bytes(content)
    assert snapshot.secure_boot() is on


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            '{"by": "ada", "reason": "slot 3", "since": 1800000000}\n',
            {"by": "ada", "reason": "slot 3", "since": 1800000000},
        ),
        ('{"by": "ada"}', {"by": "ada", "reason": None, "since": 1700000000}),
        ("", {"by": None, "reason": None, "since": 1700000000}),
        ("repair", {"by": None, "reason": None, "since": 1700000000}),
        ("[1]", {"by": None, "reason": None, "since": 1700000000}),
    ],
)
def test_what_a_drain_flag_tells(tmp_path: Path, text: str, found: dict[str, Any]) -> None:
    flag = tmp_path / "main"
    assert snapshot.drain_flag(str(flag)) is None
    flag.write_text(text)
    os.utime(flag, (1700000000, 1700000000))
    assert snapshot.drain_flag(str(flag)) == found
