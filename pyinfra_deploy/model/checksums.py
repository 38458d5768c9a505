"""SHA256SUMS, as `sha256sum` writes it: HASH, a space, a space or *, PATH."""

from __future__ import annotations

import re

from pyinfra_deploy.model.refused import Refused

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


def read_checksums(text: str, where: str) -> dict[str, str]:
    """{path: SHA-256}; the file itself is not counted. Raises Refused."""
    found: dict[str, str] = {}
    wrong = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            wrong.append(f"line {number}: {line[:120]!r}")
            continue
        path = match[2].removeprefix("./")
        if found.setdefault(path, match[1].lower()) != match[1].lower():
            wrong.append(f"line {number}: {path} has another hash before")
    if wrong:
        raise Refused(
            f"{where} cannot be read",
            f"{len(wrong)} of its lines are no `SHA-256  path`, {wrong[0]} first.",
            "write it with: find . -type f ! -name SHA256SUMS -printf '%P\\n' | xargs -d '\\n' "
            "sha256sum > SHA256SUMS",
            wrong[:20],
        )
    found.pop(NAME, None)
    if not found:
        raise Refused(f"{where} names no file", "it is empty.", "write it anew with sha256sum.")
    return found
