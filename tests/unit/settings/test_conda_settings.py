"""`runtime.conda` and the Python of a runtime: what contradicts itself or its locks."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy.settings import SettingsError, load_fleet
from pyinfra_deploy.settings.conda_contradictions import python_of_conda_lock
from pyinfra_deploy.settings.conda_section import channel_urls, has_terms
from pyinfra_deploy.settings.lock_header import python_of_lock

if TYPE_CHECKING:
    from pyinfra_deploy.settings import Problem
    from tests.fakes.repository import Repository

FORGE = "https://conda.anaconda.org/conda-forge"
HASH = "0" * 64
LOCK = f"""\
# platform: linux-64
@EXPLICIT
{FORGE}/noarch/ca-certificates-2026.11.1-hbcca054_0.conda#{HASH}
{FORGE}/linux-64/python-3.12.7-hc5c86c4_0_cpython.conda#sha256:{HASH}
"""
CONDA = """\
runtime:
  vllm: "0.33.0"
  lock: locks/one.txt
  kind: conda
  conda:
    prefix: /opt/conda
    lock: locks/conda.txt
"""
TERMS = """\
    channels: [defaults]
    terms: {accepted_by: Ada Lovelace, accepted_on: 2026-11-30, channels: [defaults]}
"""


@pytest.fixture
def with_conda(repository: Repository) -> Repository:
    repository.write("locks/conda.txt", LOCK)
    write(repository)
    return repository


def write(repository: Repository, more: str = "", old: str = "", new: str = "") -> None:
    """group_vars of the runtime with conda, `old` in it replaced."""
    text = (repository.root / "group_vars/prod.yml").read_text()
    rest = text[text.index("model:") :]
    runtime = CONDA + more
    assert old in runtime
    repository.write("group_vars/prod.yml", runtime.replace(old, new) + rest)


def problems(repository: Repository) -> list[Problem]:
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    return list(caught.value.problems)


def test_a_conda_with_its_lock_is_read(with_conda: Repository) -> None:
    runtime = load_fleet("prod", with_conda.root).hosts["gpu01"].settings.runtime
    assert runtime is not None
    assert runtime.conda is not None
    assert runtime.conda.channels == ("conda-forge",)
    # Accepting is never the default.
    assert runtime.conda.terms is None


def test_a_recorded_consent_is_read(with_conda: Repository) -> None:
    main = LOCK.replace(FORGE, "https://repo.anaconda.com/pkgs/main")
    with_conda.write("locks/conda.txt", main)
    write(with_conda, TERMS)
    runtime = load_fleet("prod", with_conda.root).hosts["gpu01"].settings.runtime
    assert runtime is not None
    assert runtime.conda is not None
    assert runtime.conda.terms is not None
    assert runtime.conda.terms.accepted_on == datetime.date(2026, 11, 30)


# What is changed in the settings: (old, new, key, words of the message, words of the fix)
WRONG = [
    ("  conda:\n    prefix: /opt/conda\n    lock: locks/conda.txt\n", "", "runtime.conda",
     "is missing", "prefix"),
    ("  kind: conda\n", "", "runtime.conda", "would ignore it", "kind: conda"),
    ("    prefix: /opt/conda\n", "", "runtime.conda", "neither prefix nor miniforge", "prefix"),
    ("    prefix: /opt/conda\n", f'    prefix: /opt/conda\n    miniforge: {{path: /a, '
     f'sha256: "{HASH}"}}\n', "runtime.conda", "prefix and miniforge", ""),
    ("    prefix: /opt/conda\n", f'    miniforge: {{sha256: "{HASH}"}}\n',
     "runtime.conda.miniforge", "neither path nor url", ""),
    ("    prefix: /opt/conda\n", f'    miniforge: {{path: /a, url: "https://x/y", '
     f'sha256: "{HASH}"}}\n', "runtime.conda.miniforge", "path and url", ""),
    ("    prefix: /opt/conda\n", "    miniforge: {path: /a, sha256: abc}\n",
     "runtime.conda.miniforge.sha256", "64 hexadecimal", ""),
    ("    prefix: /opt/conda\n", "    miniforge: {path: /a}\n",
     "runtime.conda.miniforge.sha256", "is missing", ""),
    ("/opt/conda", "/home/me/conda", "runtime.conda.prefix", "/home", ""),
    ("locks/conda.txt", "locks/none.txt", "runtime.conda.lock", "cannot be read", ""),
    ("    prefix:", "    channels: [other]\n    prefix:", "runtime.conda.lock",
     f"of the channel {FORGE}", "reading its terms"),
    ("    prefix:", "    channels: ['https://me:pw@x/y']\n    prefix:",
     "runtime.conda.channels.0", "a channel", ""),
    ("    prefix:", "    channels: []\n    prefix:", "runtime.conda.channels", "", ""),
    ("    prefix:", "    terms: {accepted_by: Ada, accepted_on: 2026-11-30, "
     "channels: [defaults]}\n    prefix:", "runtime.conda.terms.channels", "pkgs/main", "remove"),
    ("    prefix:", "    terms: {accepted_by: Ada, channels: [conda-forge]}\n    prefix:",
     "runtime.conda.terms.accepted_on", "is missing", ""),
    ("    prefix:", "    terms: true\n    prefix:", "runtime.conda.terms", "a mapping", ""),
    ("  kind: conda", '  python: "3.11"\n  kind: conda', "runtime.python", "has Python 3.12",
     'python: "3.12"'),
    ("  kind: conda", "  installer: pip\n  kind: conda", "runtime.installer", "has no pip", "uv"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "what", "fix"), WRONG)
def test_wrong_settings(
    with_conda: Repository, old: str, new: str, key: str, what: str, fix: str
) -> None:
    write(with_conda, old=old, new=new)
    found = [problem for problem in problems(with_conda) if problem.key_path == key]
    assert len(found) == 1
    assert what in found[0].message
    assert fix in found[0].fix


# A lock of conda's: (old, new, words of the message)
LOCKS = [
    ("@EXPLICIT\n", "", "no line @EXPLICIT"),
    (f"#{HASH}", "", "has no SHA-256"),
    (f"#{HASH}", "#" + "0" * 32, "has no SHA-256"),
    (f"{FORGE}/noarch/ca-certificates-2026.11.1-hbcca054_0.conda#{HASH}", "ca-certificates",
     "line 3 of locks/conda.txt is not the URL of a package"),
    ("noarch", "osx-64", "line 3"),
    ("python-3.12.7", "pypy-3.12.7", "not exactly one python"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "what"), LOCKS)
def test_wrong_locks(with_conda: Repository, old: str, new: str, what: str) -> None:
    assert old in LOCK
    with_conda.write("locks/conda.txt", LOCK.replace(old, new, 1))
    found = problems(with_conda)
    assert [problem.key_path for problem in found] == ["runtime.conda.lock"]
    assert what in found[0].message


def test_both_locks_have_to_be_for_one_python(with_conda: Repository) -> None:
    lock = (with_conda.root / "locks/one.txt").read_text()
    with_conda.write("locks/one.txt", "# made with --python-version 3.11\n" + lock)
    found = problems(with_conda)
    assert "was made for Python 3.11" in found[0].message
    with_conda.write("locks/one.txt", "# made with --python-version 3.12\n" + lock)
    load_fleet("prod", with_conda.root)


def test_the_lock_of_vllm_names_its_python(repository: Repository) -> None:
    lock = (repository.root / "locks/one.txt").read_text()
    repository.write("locks/one.txt", "# Resolved with --python-version 3.11\n" + lock)
    load_fleet("prod", repository.root)
    text = (repository.root / "group_vars/prod.yml").read_text()
    repository.write("group_vars/prod.yml", text.replace("  lock:", '  python: "3.12"\n  lock:'))
    found = problems(repository)
    assert found[0].key_path == "runtime.python"
    assert "was made for Python 3.11" in found[0].message


@pytest.mark.parametrize(
    ("header", "python"),
    [
        ("# Resolved from vllm==0.33.0 with --python-version 3.12 --python-platform x", "3.12"),
        ("#    uv pip compile --python-version=3.13 in.txt", "3.13"),
        ("#    uv pip compile --python 3.10 in.txt", "3.10"),
        ("# Resolved with --python-version 3.11 --universal", None),
        ("# a --python-version 3.11\n# and a --python-version 3.12", None),
        ("vllm==1 --python-version 3.12", None),
        ("", None),
    ],
)
def test_the_python_of_a_lock(header: str, python: str | None) -> None:
    assert python_of_lock(header + "\n") == python


def test_the_python_of_condas_lock() -> None:
    assert python_of_conda_lock(LOCK) == "3.12"
    # python_abi and python-dateutil are other packages.
    assert python_of_conda_lock(LOCK.replace("/python-3.12.7", "/python-dateutil-3.12.7")) is None


def test_channels_stand_for_urls() -> None:
    main, r = "https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r"
    assert channel_urls(("defaults",)) == (main, r)
    assert channel_urls(("pkgs/main", "defaults")) == (main, r)
    assert channel_urls(("conda-forge", "https://x.example/c/")) == (FORGE, "https://x.example/c")
    assert [has_terms(url) for url in (main, r, FORGE)] == [True, True, False]
