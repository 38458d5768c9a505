# ruff: noqa: TC001 -- pydantic evaluates the annotations
"""The settings of the Python environment that vLLM runs in, and of where its wheels come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pyinfra_deploy.settings.conda_section import Conda
from pyinfra_deploy.settings.kinds import (
    DataPath,
    PipArgument,
    Port,
    PythonVersion,
    RepositoryPath,
    Url,
    VllmVersion,
)
from pyinfra_deploy.settings.section import LENIENT, Section, required, setting


class Wheelhouse(Section):
    """A place with the wheels of the locks, for hosts without internet or to download them once.
    Exactly one of path, url and serve_from."""

    path: DataPath | None = setting(
        None,
        "Directory on each host, as `fleet runtime wheelhouse` writes it, readable by the user "
        "llm-build.",
        "/srv/wheels",
    )
    url: Url | None = setting(
        None,
        "Address of such a directory on a server of yours.",
        "http://files.example.com/wheels/",
    )
    serve_from: Literal["first"] | None = setting(
        None,
        "first: the inventory's first gpu host downloads the wheels and serves them to the others, "
        "at its address in the inventory and only while hosts install. The hosts of the inventory "
        "have to reach each other at these addresses.",
        "first",
    )
    port: Port = setting(8471, "With serve_from, the port while it serves.", 8471)


class Runtime(Section):
    """The Python environment that vLLM runs in, built on the host from a lock file."""

    vllm: VllmVersion = required(
        "Version of vLLM. At least 0.10.1.1, since the engine serves on a Unix socket. The lock "
        "has to contain exactly this version.",
        "0.33.0",
    )
    kind: Literal["venv", "conda"] = setting(
        "venv",
        "How the environment is made. venv: from a Python of the host. conda: with a Python that "
        "conda brings (docs/runtimes.md). vLLM and what it needs come from `lock` in both.",
        "venv",
    )
    lock: RepositoryPath = required(
        "Lock file of the environment: every package with its version and SHA-256, as `uv pip "
        "compile --generate-hashes` writes it. locks/README.md tells how to make one.",
        "locks/runtime/vllm-0.33.0-cu130-py312-linux_x86_64.txt",
    )
    python: PythonVersion | None = setting(
        None,
        "Python of the environment. null: the one that the lock was made for, as its header says; "
        "of a lock that does not say, one that this vLLM supports and the host has. With kind: "
        "venv it is /usr/bin/python3.N, from the distribution's packages or put there by you.",
        "3.12",
    )
    device: Literal["cuda", "cpu"] = setting(
        "cuda", "What the engine computes on. cpu is for trials.", "cuda"
    )
    installer: Literal["uv", "pip"] = setting(
        "uv",
        "Which program installs locks. Both check every hash. uv is put on the host from "
        "locks/tools/uv.txt; with pip a host needs none.",
        "uv",
    )
    index_url: Url | None = setting(
        None,
        "Package index to install from. null: whatever the host's pip configuration says.",
        "https://pypi.example.com/simple",
    )
    extra_index_urls: Annotated[tuple[Url, ...], LENIENT] = setting(
        (), "Further package indexes.", ["https://download.pytorch.org/whl/cu130"]
    )
    find_links: Annotated[tuple[Url, ...], LENIENT] = setting(
        (),
        "Pages or directories, as URLs, that list wheels.",
        ["http://mirror.example.com/wheels/"],
    )
    pip_args: Annotated[tuple[PipArgument, ...], LENIENT] = setting(
        (), "Further arguments of the installer, one per item.", ["--no-cache"]
    )
    wheelhouse: Wheelhouse | None = setting(
        None,
        "Where hosts find the wheels of the locks instead of on an index; they then ask no other "
        "place. null: index_url, extra_index_urls and find_links.",
        {"path": "/srv/wheels"},
    )
    conda: Conda | None = setting(None, "Required with kind: conda.", {})
    keep: int = setting(
        3,
        "Runtimes kept on a host. One that a release uses is kept in any case; of the others the "
        "oldest are removed, at the end of a deploy that changed something.",
        3,
        ge=1,
        le=100,
    )
