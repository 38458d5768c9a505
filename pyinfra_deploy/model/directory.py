"""A directory that has the model: a copy, an NFS path, a snapshot in a client's cache."""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from pyinfra_deploy.model.checksums import NAME, read_checksums
from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.model.source import Answered, Asked
from pyinfra_deploy.planning.model_files import Listed

BUFFER_BYTES = 1 << 20
# What git and the hubs' clients keep beside a model's files for themselves.
BOOKKEEPING = (".git", ".cache", ".msc", ".mv", ".mdl", "._____temp", ".locks")
_SAID_FROM_BYTES = 1 << 30


def ask(directory: Path, asked: Asked) -> Answered:
    """Hash everything in it: 1 GB a second and core, or what the disk gives. A SHA256SUMS in it
    has to agree, so a copy that was damaged on the way is not locked as the model. Raises Refused.
    """
    if not directory.is_dir():
        raise Refused(
            f"{directory} is no directory",
            "nothing of that name is there, or it is a file.",
            "name the directory with the model's config.json; is the file system mounted?",
        )
    paths = [path for path in _paths(directory) if not asked.left_out(path)]
    total = sum((directory / path).stat().st_size for path in paths)
    if total >= _SAID_FROM_BYTES:
        print(f"hashing {len(paths)} files, {total / 1e9:.1f} GB", file=sys.stderr)
    largest_first = sorted(paths, key=lambda path: -(directory / path).stat().st_size)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        files = tuple(pool.map(lambda path: _listed(directory, path), largest_first))
    _compare(directory, files, asked)
    return Answered(
        "directory",
        str(directory.absolute()),
        None,
        None,
        None,
        files,
        lambda path: (directory / path).read_bytes(),
    )


def _paths(directory: Path) -> list[str]:
    """Files, links to files as the clients' caches have them included. Raises Refused."""

    def unreadable(error: OSError) -> None:
        raise Refused(
            f"{error.filename} cannot be read", f"{error.strerror}.", "correct its permissions."
        )

    found, wrong = [], []
    for root, directories, names in os.walk(directory, onerror=unreadable):
        here = Path(root)
        directories[:] = [name for name in directories if name not in BOOKKEEPING]
        wrong += [
            f"{here / name} is a link to a directory"
            for name in directories
            if (here / name).is_symlink()
        ]
        for name in names:
            path = here / name
            if name in (*BOOKKEEPING, NAME):
                continue
            if not path.is_file():
                wrong.append(f"{path} is no file, or a link that leads nowhere")
                continue
            found.append(path.relative_to(directory).as_posix())
    if wrong:
        raise Refused(
            f"{directory} holds what cannot be part of a model",
            f"{wrong[0]}.",
            "remove it, or name it with --without.",
            wrong[:20],
        )
    return sorted(found)


def _listed(directory: Path, path: str) -> Listed:
    file = directory / path
    digest = hashlib.sha256()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    size = 0
    try:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                digest.update(view[:count])
                size += count
    except OSError as error:
        raise Refused(
            f"{file} cannot be read", f"{error.strerror}.", "mend the disk, or copy it again."
        ) from error
    return Listed(path, size, digest.hexdigest())


def _compare(directory: Path, files: tuple[Listed, ...], asked: Asked) -> None:
    sums = directory / NAME
    if not sums.is_file():
        return
    named = {
        path: sha256
        for path, sha256 in read_checksums(sums.read_text(errors="replace"), str(sums)).items()
        if not asked.left_out(path) and PurePosixPath(path).name not in BOOKKEEPING
    }
    found = {str(file.path): file.sha256 for file in files}
    wrong = [
        f"{path} is missing" if path not in found else f"{path} has SHA-256 {found[path]}"
        for path, sha256 in sorted(named.items())
        if found.get(path) != sha256
    ]
    wrong += [f"{path} is not named in it" for path in sorted(set(found) - set(named))]
    if wrong:
        raise Refused(
            f"{directory} is not what its {NAME} says",
            f"{len(wrong)} files differ: {wrong[0]}.",
            "copy these files again; what came with the model beside them can be left out with "
            "--without.",
            wrong[:50],
        )
