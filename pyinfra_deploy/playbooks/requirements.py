"""Roles and collections of a requirements file, installed once for each of its contents.

    .fleet/ansible/DIGEST/{roles,collections}      complete when it has this name

With a directory, ansible-galaxy gets archives of it by their paths and asks no server:

    DIRECTORY/collections/NAMESPACE-NAME-VERSION.tar.gz   as `ansible-galaxy collection download`
                                                          writes them, dependencies too
    DIRECTORY/roles/NAME.tar.gz                           NAME as the requirement's `name` or `src`
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from pyinfra_deploy.rollout.masking import mask

KEPT = Path(".fleet") / "ansible"
TIMEOUT_SECONDS = 1800


class RefusedError(Exception):
    """With {what, why, fix, detail}."""

    def __init__(self, what: str, why: str, fix: str, detail: list[str] | None = None) -> None:
        super().__init__(what)
        self.as_dict = {"what": what, "why": why, "fix": fix, "detail": detail or []}


def installed(root: Path, file: str, directory: str | None) -> Path:
    """Where they are, installed when they were not. Raises RefusedError."""
    wanted = _read(root / file)
    archives = _archives(wanted, root / directory) if directory is not None else []
    place = root / KEPT / _digest(root / file, archives)
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = Path(tempfile.mkdtemp(prefix=".installing-", dir=place.parent))
    try:
        if directory is not None:
            wanted = _from_archives(wanted, root / directory)
        (scratch / "requirements.yml").write_text(yaml.safe_dump(wanted))
        for kind in ("role", "collection"):
            if wanted.get(f"{kind}s"):
                _galaxy(kind, scratch, root, offline=directory is not None)
        try:
            scratch.rename(place)
        except OSError:
            if not place.is_dir():  # else another run was first, with the same
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return place


def _read(path: Path) -> dict[str, list[Any]]:
    """{roles, collections}; a bare list is one of roles, as in Ansible before collections."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RefusedError(
            f"{path} cannot be read", f"{error}.", "mend ansible.requirements"
        ) from error
    if isinstance(found, list):
        found = {"roles": found}
    kinds = {"roles", "collections"}
    if (
        not isinstance(found, dict)
        or set(found) - kinds
        or not all(isinstance(one or [], list) for one in found.values())
    ):
        raise RefusedError(
            f"{path} is no file of requirements", "it has other keys than roles and collections.",
            "write it as `ansible-galaxy install -r` takes it",
        )  # fmt: skip
    return {kind: list(found.get(kind) or []) for kind in sorted(kinds)}


def _archives(wanted: dict[str, list[Any]], directory: Path) -> list[Path]:
    """What is installed from the directory. Raises RefusedError, naming what it lacks."""
    collections = sorted((directory / "collections").glob("*.tar.gz"))
    missing = [
        name
        for name in map(_name, wanted["collections"])
        if not any(path.name.startswith(f"{name.replace('.', '-')}-") for path in collections)
    ]
    roles = [(name, _role(directory, name)) for name in map(_name, wanted["roles"])]
    missing += [name for name, path in roles if not path.is_file()]
    if missing:
        raise RefusedError(
            f"{directory} lacks {', '.join(missing)}",
            "roles and collections are installed from there, and from nowhere else.",
            "on a machine with a network: ansible-galaxy collection download -r FILE -p "
            "DIRECTORY/collections; an archive of a role as DIRECTORY/roles/NAME.tar.gz",
        )
    return [*collections, *(path for _, path in roles)]


def _role(directory: Path, name: str) -> Path:
    return directory / "roles" / f"{name}.tar.gz"


def _name(requirement: Any) -> str:
    if isinstance(requirement, dict):
        return str(requirement.get("name") or requirement.get("src"))
    return str(requirement).partition(":")[0].partition(",")[0]


def _from_archives(wanted: dict[str, list[Any]], directory: Path) -> dict[str, list[Any]]:
    return {
        "collections": [
            {"name": str(path), "type": "file"}
            for path in (sorted((directory / "collections").glob("*.tar.gz")))
            if wanted["collections"]
        ],
        "roles": [
            {"name": name, "src": str(_role(directory, name))}
            for name in map(_name, wanted["roles"])
        ],
    }


def _digest(file: Path, archives: list[Path]) -> str:
    found = hashlib.sha256(file.read_bytes())
    for path in archives:
        found.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:20]


def _galaxy(kind: str, scratch: Path, root: Path, *, offline: bool) -> None:
    line = [
        sys.executable, "-m", "ansible.cli.galaxy", kind, "install",
        "-r", str(scratch / "requirements.yml"), "-p", str(scratch / f"{kind}s"),
        *(["--offline"] if offline and kind == "collection" else []),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            line, cwd=root, env=os.environ | {"ANSIBLE_NOCOLOR": "1"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RefusedError(
            f"the {kind}s of ansible.requirements were not installed",
            f"ansible-galaxy had not ended after {TIMEOUT_SECONDS} s.",
            "without a way to its servers: ansible.requirements_directory (docs/ansible.md)",
        ) from error
    if done.returncode != 0:
        raise RefusedError(
            f"the {kind}s of ansible.requirements were not installed",
            f"ansible-galaxy ended with {done.returncode}.",
            "mend what it says; without a way to its servers: ansible.requirements_directory "
            "(docs/ansible.md)",
            [mask(text) for text in done.stdout.splitlines()[-15:]],
        )
