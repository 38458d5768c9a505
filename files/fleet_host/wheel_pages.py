"""A directory of wheels for installers: index.html (find-links), simple/ (PEP 503), SHA256SUMS.

All links are relative and end in #sha256=, so that the directory may lie anywhere on any server.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from . import durable
from .installer import normalised

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64}) [ *](\S+\.whl)")


def read_sums(directory: Path) -> dict[str, str]:
    """{wheel: sha256} of SHA256SUMS; empty without one."""
    try:
        text = (directory / SUMS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    matches = (LINE.fullmatch(line) for line in text.splitlines())
    return {match[2]: match[1] for match in matches if match}


def pages(wheels: Mapping[str, str]) -> dict[str, str]:
    """{relative path: content} for {wheel: sha256}. Pure: the same wheels give the same pages."""
    projects: dict[str, list[str]] = {}
    for file in sorted(wheels):
        projects.setdefault(normalised(file.split("-")[0]), []).append(file)
    found = {
        SUMS: "".join(f"{wheels[file]}  {file}\n" for file in sorted(wheels)),
        "index.html": _page("Wheels", [_link(file, wheels[file], "") for file in sorted(wheels)]),
        "simple/index.html": _page(
            "Simple index", [f'<a href="{name}/">{name}</a>' for name in sorted(projects)]
        ),
    }
    for name, files in projects.items():
        links = [_link(file, wheels[file], "../../") for file in files]
        found[f"simple/{name}/index.html"] = _page(f"Links for {name}", links)
    return found


def _link(file: str, sha256: str, base: str) -> str:
    return f'<a href="{base}{quote(file)}#sha256={sha256}">{html.escape(file)}</a>'


def _page(title: str, links: list[str]) -> str:
    head = '<meta charset="utf-8"><meta name="pypi:repository-version" content="1.0">'
    body = "".join(f"{link}<br>\n" for link in links)
    return (
        f"<!DOCTYPE html>\n<html><head>{head}<title>{title}</title></head><body>\n"
        f"{body}</body></html>\n"
    )


def write_pages(directory: Path, wheels: Mapping[str, str]) -> bool:
    """Write what differs, durably, the pages before SHA256SUMS; whether anything did."""
    wanted = pages(wheels)
    changed = False
    for relative, text in sorted(wanted.items(), key=lambda item: item[0] == SUMS):
        path = directory / relative
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        durable.make_directories(path.parent)
        durable.write_file(path, text)
        changed = True
    for path in (directory / "simple").glob("*/index.html"):
        if path.relative_to(directory).as_posix() not in wanted:
            durable.remove_tree(path.parent)
            changed = True
    return changed
