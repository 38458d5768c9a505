"""The environment job with the real interpreter and an installer that does as a test says."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from fleet_host import environment, environment_spec
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.fakes.killed_build import build_killed_at
from tests.fakes.traced import only, order, traced_job

LOCK = "# a lock\nvllm==0.33.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"
# Stands for uv: installs one distribution into the environment of --python, then does as told.
UV = r"""#!/bin/sh
echo "$@" >"$FAKE_UV/argv"; env >"$FAKE_UV/env"
while [ "$1" != --python ]; do shift; done
root=$(dirname "$(dirname "$2")")
site=$(echo "$root"/lib/python3.*/site-packages)
info=$site/vllm-0.33.0.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vLLM\nVersion: 0.33.0\n' >"$info/METADATA"
printf '#!/bin/sh\n' >"$root/bin/vllm"; chmod 0770 "$root/bin/vllm"
printf x >"$site/loose.py"; chmod 0666 "$site/loose.py"
for file in "$@"; do case $file in *.txt) cat "$file" >>"$FAKE_UV/requirements";; esac; done
stat -c %a "$TMPDIR" >"$FAKE_UV/mode"
if [ -e "$FAKE_UV/says" ]; then cat "$FAKE_UV/says" >&2; exit 1; fi
echo 'Installed 1 package in 4ms'
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("llm/runtimes", "llm/tools", "cache", "uv", "programs"):
        (tmp_path / name).mkdir(parents=True)
    # A sync of the whole file system waits for everybody else's writes on this machine.
    (tmp_path / "programs/sync").write_text('#!/bin/sh\necho "$@" >"$FAKE_UV/synced"\n')
    (tmp_path / "programs/sync").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:{os.environ['PATH']}")
    uv = tmp_path / "uv" / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setenv("FLEET_LLM_ROOT", str(tmp_path / "llm"))
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_UV", str(tmp_path / "uv"))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    return tmp_path


def spec(root: Path, **changes: Any) -> dict[str, Any]:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    system = Path(f"/usr/bin/python{version}")
    return {
        "path": str(root / "llm" / "runtimes" / "vllm-1"),
        "python": version if system.exists() else "/usr/bin/python3",
        "requirements": LOCK,
        "installer": "uv",
        "uv": str(root / "uv" / "uv"),
        "expect": {"vllm": "0.33.0"},
        "commands": ["vllm", "python"],
        **changes,
    }


def build(root: Path, **changes: Any) -> dict[str, Any]:
    return environment.run(spec(root, **changes), Progress(None))


def refused(root: Path, **changes: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        build(root, **changes)
    assert not (root / "llm/runtimes/vllm-1" / environment_spec.COMPLETE).exists()
    return caught.value


def test_an_environment_is_built_recorded_and_readable_by_all(root: Path) -> None:
    answer = build(root, files={"app/gateway/__init__.py": "x = 1\n"})
    path = root / "llm/runtimes/vllm-1"
    record = json.loads((path / environment_spec.COMPLETE).read_text())
    assert answer["state"] == "built"
    assert record["versions"]["vllm"] == "0.33.0"
    assert record["size_bytes"] > 0
    assert record["digest"] == answer["digest"]
    assert (path / "app/gateway/__init__.py").read_text() == "x = 1\n"
    for file in [path, *path.rglob("*")]:
        if not file.is_symlink():
            mode = stat.S_IMODE(file.stat().st_mode)
            assert mode & 0o044 == 0o044, file
            assert mode & 0o022 == 0, file
    assert stat.S_IMODE((path / "bin/vllm").stat().st_mode) == 0o755
    assert not list((root / "cache").glob("tmp-*"))


def test_an_environment_is_on_the_disk_before_its_record(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].removeprefix(f"{root}/programs:"))
    # Told to be done, and not done: it would wait for everybody else's writes.
    calls = traced_job(root, "environment", spec(root), ("-e", "inject=syncfs:retval=0"))
    path = "/llm/runtimes/vllm-1"
    synced = only(calls, rf"^syncfs \d+<{path}>\)")
    record = f"{path}/{environment_spec.COMPLETE}"
    published = only(calls, rf'^rename .*"{record}"')
    inside = [at for at, call in enumerate(calls) if call.startswith("write ") and path in call]
    assert [at for at in inside if "/bin/" in calls[at] or "/lib/" in calls[at]]
    late = [calls[at] for at in inside if at > synced]
    assert late, "the record is written after the sync"
    assert all(f"<{path}/TEMPORARY>" in call for call in late), late
    assert synced < published
    order(calls[synced:published], rf"^fsync \d+<{path}/TEMPORARY>")
    order(calls[published:], rf"^fsync \d+<{path}>", r"^fsync \d+</llm/runtimes>")


def test_only_what_the_lock_names_can_get_in_and_no_index_shows_in_argv(root: Path) -> None:
    build(
        root,
        index_url="https://user:secret@index.example/simple",
        extra_index_urls=["https://more.example"],
        find_links=["/srv/wheels"],
        pip_args=["--no-cache"],
    )
    argv = (root / "uv/argv").read_text()
    for option in ("--require-hashes", "--no-deps", "--only-binary :all:", "--no-cache"):
        assert option in argv
    assert "secret" not in argv
    assert (root / "uv/requirements").read_text() == (
        "--index-url https://user:secret@index.example/simple\n"
        "--extra-index-url https://more.example\n--find-links /srv/wheels\n" + LOCK
    )
    assert (root / "uv/mode").read_text().strip() == "700"
    given = (root / "uv/env").read_text()
    assert f"TMPDIR={root}/cache/tmp-runtimes-vllm-1" in given
    assert f"HOME={root}/cache/home" in given
    assert f"UV_CACHE_DIR={root}/llm/runtimes/.uv-cache" in given
    assert "PYTHONPATH" not in given


def test_a_complete_one_returns_at_once_also_from_another_index(root: Path) -> None:
    build(root)
    (root / "uv/argv").unlink()
    assert build(root, index_url="https://mirror.example")["state"] == "present"
    assert not (root / "uv/argv").exists()


def test_a_complete_one_is_never_changed(root: Path) -> None:
    build(root)
    with pytest.raises(HostError, match="holds another environment"):
        build(root, files={"new": "x"})
    assert (root / "llm/runtimes/vllm-1" / environment_spec.COMPLETE).exists()


def test_a_directory_without_record_is_built_anew(root: Path) -> None:
    left = root / "llm/runtimes/vllm-1/lib/python3.11/site-packages/half"
    left.mkdir(parents=True)
    left.chmod(0o555)
    assert build(root)["state"] == "built"
    assert not left.exists()


def test_a_complete_one_is_checked_for_what_this_request_expects(root: Path) -> None:
    build(root, commands=[], expect={})
    assert build(root)["state"] == "present"
    (root / "llm/runtimes/vllm-1/bin/vllm").unlink()
    with pytest.raises(HostError) as caught:
        build(root)
    assert caught.value.detail == ["bin/vllm is missing"]


PHASES = ("check", "venv", "install", "finish", "sync")


@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_any_phase_leaves_nothing_that_counts(root: Path, phase: str) -> None:
    build_killed_at(phase, spec(root))
    assert not (root / "llm/runtimes/vllm-1" / environment_spec.COMPLETE).exists()
    assert build(root)["state"] == "built"


def test_the_record_is_written_after_the_sync(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def sync(path: Path) -> None:
        synced.append((path / environment_spec.COMPLETE).exists())

    monkeypatch.setattr(environment, "sync_file_system", sync)
    build(root)
    assert synced == [False]


def test_the_sync_is_of_the_environments_file_system(root: Path) -> None:
    build(root)
    assert (root / "uv/synced").read_text() == f"-f {root}/llm/runtimes/vllm-1\n"


def test_a_failing_sync_is_a_failure(root: Path) -> None:
    failing = "#!/bin/sh\necho 'sync: Input/output error' >&2; exit 1\n"
    (root / "programs/sync").write_text(failing)
    assert "Input/output error" in refused(root).why


def test_versions_and_commands_are_checked(root: Path) -> None:
    error = refused(root, expect={"VLLM": "0.34.0"}, commands=["nope"])
    assert error.detail == ["VLLM: expected 0.34.0, found 0.33.0", "bin/nope is missing"]


def test_a_full_disk_is_refused_with_numbers(root: Path) -> None:
    assert "1000000.00 GB are needed" in refused(root, bytes_needed=10**15).why


def test_a_missing_interpreter_names_its_package(root: Path) -> None:
    assert "apt-get install python3.77 python3.77-venv" in refused(root, python="3.77").fix


def test_a_split_standard_library_names_its_package(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a Debian host without python3-venv: the module is simply not there.
    monkeypatch.setattr(environment, "refuse_private", lambda _: None)
    found = {"version": "3.11.2", "missing": [["ensurepip", "No module named 'ensurepip'"]]}
    python = root / "uv" / "python3.11"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(found)}\nEND\n")
    python.chmod(0o755)
    error = refused(root, installer="pip", python=str(python))
    assert "lacks ensurepip" in error.what
    assert "python3.11-venv" in error.fix


def test_an_interpreter_in_a_private_directory_is_refused(root: Path) -> None:
    private = root / "home"
    private.mkdir(mode=0o700)
    (private / "real").write_text("#!/bin/sh\n")
    (private / "real").chmod(0o755)
    assert "may not enter" in refused(root, python=str(private / "real")).why


def test_a_missing_uv_is_named(root: Path) -> None:
    assert "runtime.installer" in refused(root, uv="/nonexistent/uv").fix


def test_passwords_of_indexes_are_masked(root: Path) -> None:
    (root / "uv/says").write_text("error: Failed to fetch: https://user:secret@index.example/x\n")
    error = refused(root)
    assert error.detail == ["error: Failed to fetch: https://********@index.example/x"]
