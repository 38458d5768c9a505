"""A ModelScope hub. Paths and fields as its client 1.40.2 uses them; what it may leave out is
optional here, and what is verified against is not."""

from __future__ import annotations

import urllib.parse
from typing import Any

from pyinfra_deploy.model.refused import Refused
from pyinfra_deploy.model.source import Answered, Asked
from pyinfra_deploy.model.web import Server, get, json_of
from pyinfra_deploy.planning.model_files import Listed

ENDPOINT = "https://www.modelscope.cn"
# The hub cuts a listing here without a word (modelscope_hub, REPO_FILES_TRUNCATION_LIMIT).
CUT_AT = 3000
# Display names for which the hub itself knows an identifier (modelscope_hub, api.py).
_LICENSES = {"Apache License 2.0": "apache-2.0", "MIT License": "mit"}


def ask(server: Server, asked: Asked) -> Answered:
    """Everything about a model at a revision. Raises Refused."""
    known = _revisions(server, asked.model)
    is_commit = _is_commit(asked.revision)
    if asked.revision not in known and not is_commit:
        raise Refused(
            f"{asked.model} has no revision {asked.revision!r} at {server.endpoint}",
            f"it has {', '.join(known[:20]) or 'none'}.",
            "name one of them, or a commit.",
        )
    data, entries = _listing(server, asked.model, asked.revision)
    commit: str | None = asked.revision
    notes: tuple[str, ...] = ()
    if not is_commit:
        commit = _commit(server, asked.model, data, entries)
        if commit is None:
            notes = (
                f"{server.endpoint} does not tell the commit of {asked.revision}: it is locked by "
                "its files alone, and the pull asks for the branch",
            )
    revision = commit or asked.revision
    license_id = _license(server, asked.model)

    def read(path: str) -> bytes:
        query = urllib.parse.urlencode({"Revision": revision, "FilePath": path})
        return get(server, f"{_base(asked.model)}/repo?{query}", f"{path} of {asked.model}").body

    return Answered(
        "modelscope",
        server.endpoint,
        commit,
        license_id,
        "the hub" if license_id else None,
        tuple(listed for listed in entries if not asked.left_out(str(listed.path))),
        read,
        notes,
    )


def _base(model: str) -> str:
    return "/api/v1/models/" + urllib.parse.quote(model)


def _is_commit(revision: str) -> bool:
    return len(revision) == 40 and all(character in "0123456789abcdef" for character in revision)


def _data(server: Server, path: str, about: str) -> Any:
    document = json_of(get(server, path, about), server, about)
    if not isinstance(document, dict) or document.get("Code", 200) != 200:
        said = document.get("Message") if isinstance(document, dict) else document
        raise Refused(
            f"{server.endpoint} does not give {about}",
            f"it says {said!r}.",
            "check the model's name, its revision and the token.",
        )
    return document.get("Data")


def _revisions(server: Server, model: str) -> list[str]:
    about = f"revisions of {model}"
    data = _data(server, f"{_base(model)}/revisions", about)
    found = data.get("RevisionMap") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise Refused(
            f"{server.endpoint} gives no usable {about}",
            "its answer has no Data.RevisionMap.",
            "check the endpoint: is this a ModelScope hub?",
        )
    entries = [*(found.get("Branches") or []), *(found.get("Tags") or [])]
    return [
        entry["Revision"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("Revision"), str)
    ]


def _listing(server: Server, model: str, revision: str) -> tuple[dict[str, Any], list[Listed]]:
    about = f"listing of {model} at {revision}"
    query = urllib.parse.urlencode({"Revision": revision, "Recursive": "True"})
    data = _data(server, f"{_base(model)}/repo/files?{query}", about)
    files = data.get("Files") if isinstance(data, dict) else None
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise Refused(
            f"{server.endpoint} gives no usable {about}",
            "its answer has no list Data.Files.",
            "check the endpoint: is this a ModelScope hub?",
        )
    if len(files) >= CUT_AT:
        raise Refused(
            f"the {about} is not complete",
            f"the hub cuts listings at {CUT_AT} entries without saying so, and this one has "
            f"{len(files)}: files may be missing.",
            "lock it from another hub or from a directory that has the whole model.",
        )
    return data, [_listed(file) for file in files if file.get("Type") != "tree"]


def _listed(file: dict[str, Any]) -> Listed:
    sha256 = file.get("Sha256")
    return Listed(
        file.get("Path") or file.get("Name"),
        file.get("Size"),
        sha256.lower() if isinstance(sha256, str) else None,
    )


def _commit(server: Server, model: str, data: dict[str, Any], entries: list[Listed]) -> str | None:
    """The commit that the branch stands for: one at which the hub lists the very same files.

    The hub names the last commit of the branch, or only each file's own last commit; at the newest
    of these every file is as it is now. Whatever is named is asked for, and compared.
    """
    committer = data.get("LatestCommitter")
    named = [committer.get("Id")] if isinstance(committer, dict) else []
    files = [file for file in data["Files"] if file.get("Type") != "tree"]
    dated = sorted(
        (file for file in files if isinstance(file.get("CommittedDate"), int)),
        key=lambda file: int(file["CommittedDate"]),
    )
    named += [file.get("Revision") for file in dated[-1:]]
    for commit in named:
        if not isinstance(commit, str) or not _is_commit(commit):
            continue
        try:
            _, found = _listing(server, model, commit)
        except Refused:
            continue
        if set(found) == set(entries):
            return commit
    return None


def _license(server: Server, model: str) -> str | None:
    """What the model's page says; mirrors and older hubs say nothing."""
    try:
        data = _data(server, _base(model), f"page of {model}")
    except Refused:
        return None
    name = data.get("License") if isinstance(data, dict) else None
    return _LICENSES.get(name, name) if isinstance(name, str) and name else None
