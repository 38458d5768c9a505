"""The acceptance files of conda's terms, read as conda reads them, and the fact's command."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fleet_host import conda_terms
from pyinfra.api import FactProcessError

from pyinfra_deploy.facts.conda_terms import CondaTerms, parse

MAIN = "https://repo.anaconda.com/pkgs/main"


def put(root: Path, version: str, channel: str = MAIN, **changes: Any) -> Path:
    terms = {"version": version, "text": "t", "support": "s", "base_url": channel,
             "tos_accepted": True, "acceptance_timestamp": version, **changes}  # fmt: skip
    path = root / conda_terms.hash_of(channel) / f"{conda_terms.epoch(version)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(terms))
    return path


def test_the_directory_of_a_channel() -> None:
    # As conda 26.7.1 names it.
    assert conda_terms.hash_of(MAIN).startswith("3c9d068a")
    assert conda_terms.hash_of(MAIN + "/") == conda_terms.hash_of(MAIN)
    assert conda_terms.hash_of("file:///srv/c/main") == conda_terms.hash_of("file:///srv/c/main/")


def test_the_roots_in_condas_order() -> None:
    environment = {"XDG_CONFIG_HOME": "/xdg", "CONDA_PREFIX": "/env", "CONDATOS": "/more"}
    found = conda_terms.roots(
        Path("/var/u"), Path("/opt/conda"), environment, Path("/etc"), Path("/var/lib")
    )
    assert [str(path) for path in found] == [
        "/etc/conda/tos",
        "/var/lib/conda/tos",
        "/opt/conda/conda-meta/tos",
        "/xdg/conda/tos",
        "/var/u/.config/conda/tos",
        "/var/u/.conda/tos",
        "/env/conda-meta/tos",
        "/more",
    ]


def test_the_newest_version_wins(tmp_path: Path) -> None:
    put(tmp_path / "a", "2025-07-15T00:00:00Z")
    newest = put(tmp_path / "b", "2026-01-01T00:00:00Z", tos_accepted=False)
    found = conda_terms.read([tmp_path / "a", tmp_path / "b"], [MAIN])[MAIN]
    assert found == {"accepted": False, "version": "2026-01-01T00:00:00Z", "path": str(newest)}


def test_of_equal_versions_the_earlier_root_wins(tmp_path: Path) -> None:
    first = put(tmp_path / "a", "2025-07-15T00:00:00Z", tos_accepted=False)
    put(tmp_path / "b", "2025-07-15T00:00:00+00:00")
    found = conda_terms.read([tmp_path / "a", tmp_path / "b"], [MAIN])[MAIN]
    assert (found["accepted"], found["path"]) == (False, str(first))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": "2025-07-15"}', '{"version": "soon", "tos_accepted": true}',
     '{"version": "2025-07-15", "tos_accepted": "yes"}'],
)  # fmt: skip
def test_a_file_that_is_none_does_not_count(tmp_path: Path, text: str) -> None:
    put(tmp_path, "2025-07-15T00:00:00Z").write_text(text)
    assert conda_terms.read([tmp_path], [MAIN])[MAIN]["accepted"] is None


def test_another_channels_acceptance_does_not_count(tmp_path: Path) -> None:
    put(tmp_path, "2025-07-15T00:00:00Z", channel="https://repo.anaconda.com/pkgs/r")
    assert conda_terms.read([tmp_path], [MAIN])[MAIN]["accepted"] is None


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A directory in its place: root, too, cannot read that."""
    file = put(tmp_path, "2025-07-15T00:00:00Z")
    file.unlink()
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        conda_terms.read([tmp_path], [MAIN])


@pytest.mark.parametrize(
    ("version", "seconds"),
    [("2025-07-15T00:00:00Z", 1752537600.0), ("2025-07-15", 1752537600.0),
     ("2025-07-15T02:00:00+02:00", 1752537600.0), (1752537600, 1752537600.0), (True, None),
     ("soon", None), (None, None)],
)  # fmt: skip
def test_versions(version: object, seconds: float | None) -> None:
    assert conda_terms.epoch(version) == seconds


def fact(request: dict[str, Any], **environment: str) -> dict[str, Any]:
    text = str(CondaTerms().command(json.dumps(request)).get_raw_value())
    done = subprocess.run(
        ["sh", "-c", text], capture_output=True, text=True, check=True, timeout=30,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.stderr == ""
    return CondaTerms().process(["a greeting", *done.stdout.splitlines()])


def request(home: Path, *files: Path) -> dict[str, Any]:
    return {"user": "nobody", "home": str(home), "conda_root": str(home / "conda"),
            "channels": [MAIN], "files": [str(path) for path in files]}  # fmt: skip


def test_the_fact_reads_with_a_bare_interpreter(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)  # the fact reads as nobody, where the tests are root's
    path = put(tmp_path / ".conda/tos", "2025-07-15T00:00:00Z")
    (tmp_path / "json.py").write_text("raise SystemExit('imported the wrong json')")
    found = fact(request(tmp_path, path, tmp_path / "none"), PYTHONPATH=str(tmp_path))
    assert found["terms"][MAIN]["accepted"] is True
    assert str(tmp_path / ".conda/tos") in found["roots"]
    assert found["files"] == {str(path): True, str(tmp_path / "none"): False}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_only_root_may_read_is_no_acceptance(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    path = put(tmp_path / ".conda/tos", "2025-07-15T00:00:00Z")
    path.chmod(0o600)
    found = fact(request(tmp_path, path))
    assert "Permission denied" in found["error"]
    assert found["files"] == {str(path): False}


def test_a_host_without_python_is_read_later(tmp_path: Path) -> None:
    for name in ("sh", "echo"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    assert fact(request(tmp_path), PATH=str(tmp_path)) == {}


def test_an_answer_that_is_none_costs_this_host() -> None:
    with pytest.raises(FactProcessError, match="no answer"):
        parse(["sh: 1: Syntax error"])
    with pytest.raises(FactProcessError, match="not JSON"):
        parse(["{cut"])
