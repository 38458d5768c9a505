"""The environment job's spec, checked."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import conda_spec, fields, installer, layout
from .errors import SpecError
from .installer import Sources
from .listing import name_problem

COMPLETE = ".fleet-complete.json"
PARENTS = ("runtimes", "tools")
KEYS = {"path", "python", "requirements", "installer", "uv", "index_url", "extra_index_urls"}
KEYS |= {"find_links", "pip_args", "files", "expect", "commands", "bytes_needed", "conda"}
KEYS |= {"cache_bytes_needed", "wheelhouse", "wheel_bytes"}
NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Wanted:
    """The spec of an environment, checked."""

    path: Path
    python: Path
    requirements: str
    packages: dict[str, str]
    installer: str
    uv: Path | None
    sources: Sources
    files: dict[str, str]
    expect: dict[str, str]
    commands: list[str]
    bytes_needed: int
    cache_bytes_needed: int = 0
    wheel_bytes: dict[str, int] = field(default_factory=dict)
    conda: conda_spec.Conda | None = None

    def digest(self) -> str:
        """What makes an environment another one. Where its packages come from does not, since
        their hashes are in the lock, nor does what is checked of it."""
        content: list[Any] = [str(self.python), self.requirements, self.files]
        if self.conda is not None:
            content.append(self.conda.lock)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def masked(self, line: str) -> str:
        """A line of output without passwords of index URLs."""
        return re.sub(r"(\w+://)[^/@\s]+@", r"\1********@", line)


def read_spec(spec: dict[str, Any]) -> Wanted:
    fields.refuse_unknown(spec, KEYS, "environment")
    path = Path(fields.text(spec, "path"))
    root = layout.llm_root()
    if (
        path.parent.parent != root
        or path.parent.name not in PARENTS
        or not NAME.fullmatch(path.name)
    ):
        raise SpecError(
            f"no environment may be built at {path}",
            "whatever is there without a completion record would be removed.",
            f"Use {root}/{{{','.join(PARENTS)}}}/NAME.",
        )
    tool = fields.text(spec, "installer", "uv")
    uv = fields.optional_text(spec, "uv")
    if tool not in ("uv", "pip") or (tool == "uv" and uv is None):
        raise SpecError(
            f"installer {tool!r} cannot be used",
            "it must be pip, or uv with the path of its binary in 'uv'.",
            "Correct runtime.installer.",
        )
    python = fields.text(spec, "python")
    requirements = fields.text(spec, "requirements")
    arguments = fields.texts(spec, "pip_args")
    installer.check_arguments(arguments)
    files = fields.text_map(spec, "files")
    for relative in files:
        problem = name_problem(relative)
        if problem or relative == COMPLETE:
            raise SpecError(f"file {relative!r} cannot be placed", f"it {problem}.", "Rename it.")
    sizes = spec.get("wheel_bytes") or {}
    of_conda = spec.get("conda")
    directory = path / "bin" if of_conda is not None else Path("/usr/bin")
    return Wanted(
        path=path,
        python=Path(python if python.startswith("/") else directory / f"python{python}"),
        requirements=requirements,
        packages=installer.locked_packages(requirements),
        installer=tool,
        uv=Path(uv) if uv is not None else None,
        sources=Sources(
            index_url=fields.optional_text(spec, "index_url"),
            extra_index_urls=fields.texts(spec, "extra_index_urls"),
            find_links=fields.texts(spec, "find_links"),
            arguments=arguments,
            wheelhouse=fields.optional_text(spec, "wheelhouse"),
        ),
        files=files,
        expect=fields.text_map(spec, "expect"),
        commands=fields.texts(spec, "commands"),
        bytes_needed=fields.whole(spec, "bytes_needed", 0),
        cache_bytes_needed=fields.whole(spec, "cache_bytes_needed", 0),
        wheel_bytes={name: fields.whole(sizes, name) for name in sizes},
        conda=conda_spec.read(of_conda) if of_conda is not None else None,
    )
