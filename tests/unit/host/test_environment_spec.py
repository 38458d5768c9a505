"""What an environment's spec may hold, and the installers' causes in words: nothing is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fleet_host import environment_spec, installer
from fleet_host.child import Ended
from fleet_host.errors import SpecError

LOCK = "# a lock\nvllm==0.33.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"
ROOT = "/srv/llm"


@pytest.fixture(autouse=True)
def _llm_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_LLM_ROOT", ROOT)


def read(**changes: Any) -> environment_spec.Wanted:
    good = {
        "path": f"{ROOT}/runtimes/vllm-1",
        "python": "/usr/bin/python3.12",
        "requirements": LOCK,
        "installer": "uv",
        "uv": f"{ROOT}/tools/uv-1/bin/uv",
        "expect": {"vllm": "0.33.0"},
        "commands": ["vllm"],
    }
    return environment_spec.read_spec({**good, **changes})


def test_a_good_spec_is_read() -> None:
    wanted = read(index_url="https://user:secret@index.example/simple", pip_args=["--no-cache"])
    assert wanted.path == Path(f"{ROOT}/runtimes/vllm-1")
    assert wanted.packages == {"vllm": "0.33.0"}
    # Where packages come from does not make another environment; what is in it does.
    assert wanted.digest() == read().digest()
    assert wanted.digest() != read(files={"app/x.py": ""}).digest()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # uv 0.13.9
        ("cause: Hash mismatch for `h11==0.16.0`", "does not have the hash"),
        ("cause: tcp connect error\ncause: Connection refused (os error 111)", "cannot be reached"),
        (
            "cause: Because there is no version of uvicorn==99 and you require it",
            "no source offers",
        ),
        ("error: failed to write: No space left on device (os error 28)", "no space is left"),
        ("cause: invalid peer certificate: UnknownIssuer", "certificate is not trusted"),
        ("error: HTTP status client error (401 Unauthorized) for url", "refuses access"),
        # pip 23.0.1: unreachable, and only then "No matching distribution".
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError: [Errno 111]'\n"
            "ERROR: No matching distribution found for click==8.5.1",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for uvicorn==99.54.0", "no source offers"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE FILE.", "does not have the hash"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "no space is left"),
        ("something nobody has seen", "exit code 1"),
    ],
)
def test_the_installers_causes_are_put_into_words(said: str, expected: str) -> None:
    error = installer.failure(Ended(1, said.splitlines(), False, 1.0), "w", str, "uv")
    assert expected in error.why
    assert error.detail == said.splitlines()


def test_an_installer_that_was_killed_is_told() -> None:
    error = installer.failure(Ended(-9, [], False, 1.0), "w", str, "uv")
    assert "killed by SIGKILL" in error.why
    assert "memory" in error.fix


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm==0.33.0\n", "has no --hash"),
        ("vllm>=0.33 --hash=sha256:00\n", "is not pinned"),
        ("--index-url https://x\n", "option --index-url"),
        ("-r other.txt\n", "option -r"),
        ("vllm==1 \\\n", "ends in a backslash"),
        ("# nothing\n", "names no package"),
    ],
)
def test_a_lock_that_is_none_is_refused_with_its_line(line: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(requirements=line)
    assert expected in caught.value.why


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/etc/passwd"},
        {"path": f"{ROOT}/runtimes/../tools/x"},
        {"path": f"{ROOT}/runtimes/.hidden"},
        {"installer": "conda"},
        {"uv": None},
        {"pip_args": ["--target=/x"]},
        {"pip_args": ["-r"]},
        {"pip_args": ["vllm"]},
        {"pip_args": ["--no-require-hashes"]},
        {"files": {"../x": "y"}},
        {"files": {environment_spec.COMPLETE: "y"}},
        {"expect": ["vllm"]},
        {"typo": 1},
    ],
)
def test_a_bad_spec_is_the_callers_mistake(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        read(**changes)


def test_pip_makes_the_same_promises() -> None:
    argv = installer.command("pip", None, Path("/e/bin/python"), [Path("l")], [])
    assert argv[:4] == ["/e/bin/python", "-m", "pip", "install"]
    assert argv[-4:] == ["--require-hashes", "--no-deps", "--only-binary", ":all:"]


def test_from_a_wheelhouse_nothing_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "PIP_INDEX_URL",
        "PIP_FIND_LINKS",
        "UV_INDEX",
        "UV_DEFAULT_INDEX",
        "UV_FIND_LINKS",
    ):
        monkeypatch.setenv(name, "https://elsewhere.example")
    monkeypatch.setenv("no_proxy", "10.0.0.9")
    sources = read(
        wheelhouse="http://10.0.0.5:8471/", index_url="https://index.example", find_links=["/x"]
    ).sources
    assert installer.index_lines(sources) == "--no-index\n--find-links http://10.0.0.5:8471/\n"
    found = installer.environment(Path("/c"), Path("/t"), Path("/b"), sources)
    assert "elsewhere" not in str(found)
    assert (found["PIP_CONFIG_FILE"], found["UV_NO_CONFIG"]) == ("/dev/null", "1")
    assert found["PIP_TRUSTED_HOST"] == "10.0.0.5:8471"
    assert found["no_proxy"] == "10.0.0.9,10.0.0.5"


@pytest.mark.parametrize("place", ["/srv/wheels", "https://files.example/wheels/"])
def test_only_plain_http_needs_trust(place: str) -> None:
    sources = read(wheelhouse=place).sources
    found = installer.environment(Path("/c"), Path("/t"), Path("/b"), sources)
    assert "PIP_TRUSTED_HOST" not in found


def test_the_hashes_of_a_lock() -> None:
    lock = "Alpha_x==1 \\\n    --hash=sha256:" + "a" * 64 + " \\\n    --hash=sha256:" + "b" * 64
    assert installer.locked_hashes(lock + "\nbeta==2 --hash=sha256:" + "c" * 64 + "\n") == {
        "alpha-x": ("1", ["a" * 64, "b" * 64]),
        "beta": ("2", ["c" * 64]),
    }
