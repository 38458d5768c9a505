"""What a host should have, from settings alone: packages, files, environments, the model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.conda_plan import conda_job, conda_root, miniforge_name
from pyinfra_deploy.planning.interpreter import SUPPORTED, packaged_pythons
from pyinfra_deploy.planning.locked_wheels import (
    download_bytes,
    room_bytes,
    sizes_of_projects,
    wheels_of_lock,
)
from pyinfra_deploy.planning.preflight import GIB, RUNTIME_FREE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.planning.model_lock import ModelLock
    from pyinfra_deploy.planning.model_supply import LockedModel
    from pyinfra_deploy.settings.runtime_section import Runtime
    from pyinfra_deploy.settings.schema import Settings

ENGINE_USER = "llm"
BUILD_USER = "llm-build"
GATEWAY_USER = "llm-gateway"
SOCKET_GROUP = "llm-http"
# Beside a host's groups: other hosts' gateways come to its engine. No group can have this name.
DOOR = "engine door"
# Debian's and Ubuntu's nginx package runs its workers as this user.
NGINX_USER = "www-data"

# Triton compiles a small C launcher when an engine starts ("Failed to find C compiler" otherwise),
# and on CPUs torch compiles vLLM's sampler for the first request that is not greedy
# ("InvalidCxxCompiler", of which vLLM 0.28 dies). Both need Python's headers too.
COMPILER_PACKAGES = ("gcc", "g++", "libc6-dev")
# Generous guesses, as conda's locks name no sizes: Python and its libraries with the packages they
# are linked from, and Miniforge with what its installer unpacks.
CONDA_FREE_BYTES = GIB
MINIFORGE_FREE_BYTES = 2 * GIB
TOKEN_CREDENTIAL = "hub-token"  # noqa: S105 - a file's name


@dataclass(frozen=True)
class ManagedFile:
    """A file that we own on a host. `mode` is octal text, like "0644"."""

    path: str
    content: str
    mode: str = "0644"
    owner: str = "root"
    group: str = "root"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()

    def is_as(self, seen: Mapping[str, Any]) -> bool:
        """Whether the host has it so; seen: the snapshot's entry of the path."""
        found = tuple(seen.get(key) for key in ("sha256", "mode", "owner", "group"))
        return found == (self.sha256, self.mode, self.owner, self.group)


@dataclass(frozen=True)
class Environment:
    """A Python environment on a host: `job` is the spec of the host's environment job."""

    label: str
    name: str
    path: str
    digest: str
    job: Mapping[str, Any]
    # What the fleet's first host is to serve, where the settings ask for that; empty otherwise.
    wheels: tuple[Mapping[str, Any], ...] = ()
    serve_port: int = 0


@cache
def requirements(lock: str) -> str:
    """A lock's requirements without comments, which are for people: changing one must neither
    rebuild nor restart anything."""
    lines = (line.rstrip() for line in lock.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#")) + "\n"


def packages(groups: frozenset[str], settings: Settings, snapshot: Mapping[str, Any]) -> list[str]:
    """The distribution packages a host needs, sorted."""
    wanted = {"python3", "python3-venv", "ca-certificates"}
    if "gpu" in groups and settings.runtime is not None:
        cuda = settings.runtime.device == "cuda"
        for version in _pythons(settings.runtime):
            present = f"/usr/bin/python{version}" in (snapshot["os"].get("pythons") or [])
            # An interpreter that somebody has put there has no packages to ask apt for.
            if not present or version in packaged_pythons(snapshot["os"]):
                wanted |= {f"python{version}{part}" for part in ("", "-venv", "-dev")}
        # vLLM's CPU kernels are linked to it, and on CUDA hosts it binds workers to NUMA nodes.
        wanted |= {"libnuma1", *COMPILER_PACKAGES}
        if cuda and settings.engine.args.get("numa-bind") is True:
            # vLLM starts its workers through this program, and does not start without it.
            wanted.add("numactl")
    if "gpu" in groups and settings.gpu_cooling == "bmc":
        wanted.add("ipmitool")
    if {"gateway", DOOR} & groups:
        wanted |= {"nginx", "openssl"}
    if "gateway" in groups and settings.gateway and settings.gateway.tls.source == "acme":
        wanted.add("certbot")
    return sorted(wanted)


def _pythons(runtime: Runtime) -> tuple[str, ...]:
    """Versions whose packages are needed; of all distributions, before the host is known."""
    if runtime.kind == "conda":
        return ()  # conda's brings its headers too
    if runtime.python is not None:
        return (runtime.python,)
    return tuple(version for versions in SUPPORTED.values() for version in versions)


def sysusers(groups: frozenset[str]) -> str:
    """sysusers.d(5): the service users, without a shell or a password."""
    lines = [
        f"g {SOCKET_GROUP} - -",
        f'u {ENGINE_USER} - "LLM engine" /nonexistent',
        f'u {BUILD_USER} - "LLM runtimes and models" /nonexistent',
        f"m {ENGINE_USER} {SOCKET_GROUP}",
    ]
    if "gateway" in groups:
        lines += [
            f'u {GATEWAY_USER} - "LLM gateway" /nonexistent',
            f"m {GATEWAY_USER} {SOCKET_GROUP}",
        ]
    if {"gateway", DOOR} & groups:
        lines.append(f"m {NGINX_USER} {SOCKET_GROUP}")
    if "gpu" in groups:
        # /dev/nvidia* belong to these groups on some distributions.
        lines += [f"m {ENGINE_USER} video", f"m {ENGINE_USER} render"]
    return "\n".join(lines) + "\n"


def service_users(groups: frozenset[str]) -> tuple[str, ...]:
    """Users whose existence and groups are checked."""
    users = [ENGINE_USER, BUILD_USER]
    if "gateway" in groups:
        users.append(GATEWAY_USER)
    if {"gateway", DOOR} & groups:
        users.append(NGINX_USER)
    return tuple(users)


def directories(root: str) -> dict[str, tuple[str, str, str]]:
    """Path -> (mode, owner, group) of every directory that must exist."""
    build = ("0755", BUILD_USER, BUILD_USER)
    ours = ("0755", "root", "root")
    return {
        root: ours,
        f"{root}/bin": ours,
        f"{root}/runtimes": build,
        f"{root}/tools": build,
        f"{root}/gateway": ours,
        f"{root}/wheels": build,
        f"{root}/models": build,
        f"{root}/models/.incoming": build,
        f"{root}/engines": ours,
        f"{root}/jobs": ("0755", "root", BUILD_USER),  # the jobs' user reads its specs
        f"{root}/state": ("0750", "root", "root"),
        "/etc/llm": ours,
        "/etc/llm/tls": ("0750", "root", "root"),
        "/etc/llm/credentials": ("0700", "root", "root"),
    }


def tmpfiles(root: str, groups: frozenset[str] = frozenset()) -> str:
    """tmpfiles.d(5): the directories above, and the drain flags' at every boot."""
    lines = [
        f"d {path} {mode} {owner} {group} -"
        for path, (mode, owner, group) in directories(root).items()
    ]
    lines += ["d /run/llm 0755 root root -", "d /run/llm/drain 0755 root root -"]
    if "gateway" in groups:
        # Before any service runs: the socket of llm-gateway.socket lies in it.
        lines.append(f"d /run/llm-gateway 0750 {GATEWAY_USER} {SOCKET_GROUP} -")
    return "\n".join(lines) + "\n"


def installer_of(settings: Settings) -> str:
    """What installs the host's environments; where it is pip, the host needs no uv."""
    return settings.runtime.installer if settings.runtime else "uv"


def uv_environment(settings: Settings, lock: str, python: str) -> Environment:
    """The installer itself: uv, put there by pip."""
    return _environment(settings, "uv", "tools", "uv", lock, python, installer="pip", uv=None)


def modelscope_environment(settings: Settings, lock: str, python: str, uv: str) -> Environment:
    """The hub's own client, which pulls models."""
    return _environment(
        settings, "the modelscope client", "tools", "modelscope", lock, python,
        installer_of(settings), uv, commands=["modelscope"],
    )  # fmt: skip


def gateway_environment(
    settings: Settings, lock: str, sources: Mapping[str, str], python: str, uv: str
) -> Environment:
    """The gateway service: its libraries and its code, one immutable directory."""
    return _environment(
        settings, "the gateway service", "tools", "gateway", lock, python,
        installer_of(settings), uv, files=sources, commands=["uvicorn"],
    )  # fmt: skip


def runtime_environment(
    settings: Settings, lock: str, uv: str | None, conda_lock: str = ""
) -> Environment:
    """The vLLM runtime that the settings pin."""
    assert settings.runtime is not None
    runtime = settings.runtime
    conda = runtime.conda if runtime.kind == "conda" else None
    python = f"/usr/bin/python{runtime.python}"
    return _environment(
        settings, f"vLLM {runtime.vllm}", "runtimes", f"vllm-{runtime.vllm}", lock,
        python if conda is None else str(runtime.python), runtime.installer, uv,
        commands=["vllm"],
        bytes_needed=room_bytes(lock, RUNTIME_FREE_BYTES[runtime.device] - GIB)
        + (CONDA_FREE_BYTES if conda else 0),
        conda=conda_job(settings, conda, requirements(conda_lock)) if conda else None,
    )  # fmt: skip


def miniforge_environment(settings: Settings) -> Environment | None:
    """The conda that the deploy installs; None where the settings name none to install."""
    conda = settings.runtime.conda if settings.runtime else None
    if conda is None or conda.miniforge is None:
        return None
    installer = conda.miniforge
    path = conda_root(settings, conda)
    job = {
        "path": path,
        "miniforge": {"path": installer.path, "url": installer.url, "sha256": installer.sha256},
        "bytes_needed": MINIFORGE_FREE_BYTES,
    }
    name = miniforge_name(installer)
    return Environment("Miniforge", name, path, digest=installer.sha256, job=job)


def _environment(
    settings: Settings,
    label: str,
    directory: str,
    stem: str,
    lock: str,
    python: str,
    installer: str,
    uv: str | None,
    *,
    files: Mapping[str, str] | None = None,
    commands: list[str] | None = None,
    bytes_needed: int = 0,
    conda: Mapping[str, Any] | None = None,
) -> Environment:
    pinned = requirements(lock)
    content = "".join(f"{path}\0{text}\0" for path, text in sorted((files or {}).items()))
    identity = f"{pinned}\n{python}\n{content}" + (f"\n{conda['lock']}" if conda else "")
    digest = hashlib.sha256(identity.encode()).hexdigest()
    name = f"{stem}-{digest[:12]}"
    path = f"{settings.llm_root}/{directory}/{name}"
    source = settings.runtime
    job: dict[str, Any] = {
        "path": path,
        "python": python,
        "requirements": pinned,
        "installer": installer,
        "uv": uv,
        "index_url": source.index_url if source else None,
        "extra_index_urls": list(source.extra_index_urls) if source else [],
        "find_links": list(source.find_links) if source else [],
        "pip_args": list(source.pip_args) if source else [],
        "files": dict(files or {}),
        "commands": commands or [],
        "bytes_needed": bytes_needed,
    }
    sizes = sizes_of_projects(lock)
    if sizes:
        job["wheel_bytes"] = sizes
    if installer == "pip":
        # pip keeps what it downloads, and unpacks it in a temporary directory.
        job["cache_bytes_needed"] = 2 * (download_bytes(lock) or 0)
    if conda:
        job["conda"] = dict(conda)
    wheelhouse = source.wheelhouse if source else None
    if wheelhouse is None:
        return Environment(label=label, name=name, path=path, digest=digest, job=job)
    if wheelhouse.serve_from is None:
        job |= {"wheelhouse": wheelhouse.path or wheelhouse.url}
        return Environment(label=label, name=name, path=path, digest=digest, job=job)
    wheels = tuple(wheel.as_spec() for wheel in wheels_of_lock(lock))
    return Environment(label, name, path, digest, job, wheels, wheelhouse.port)


def model_directory(settings: Settings, lock: ModelLock | None = None) -> str:
    """Where the published model is on a host."""
    name = model_revision(settings, lock)
    return f"{settings.llm_root}/models/{model_slug(settings)}/{name}"


def model_revision(settings: Settings, lock: ModelLock | None = None) -> str:
    """The directory of a model's revision on hosts; of a locked one each content has its own."""
    assert settings.model is not None
    return lock.directory if lock is not None else settings.model.revision


def model_slug(settings: Settings) -> str:
    """OWNER--NAME: a hub's id as one path component."""
    assert settings.model is not None
    return settings.model.id.replace("/", "--")


def pull_job(
    settings: Settings, client: str, lock: ModelLock | None = None, *, fan_out: bool = False
) -> dict[str, Any]:
    """The spec of the host's pull job. lock: what the files must be; without it, what the hub
    lists at that moment. fan_out: other hosts are asked before the hub."""
    assert settings.model is not None
    model = settings.model
    locked: dict[str, Any] = {}
    if lock is not None:
        locked = {
            "directory": lock.directory,
            "files": [file.as_spec() for file in lock.files],
            # A commit means nothing to another hub than the one that named it.
            "commit": lock.commit if lock.hub == model.hub else None,
        }
        if fan_out:
            locked["fan_out"] = True
    return locked | {
        "model_id": model.id,
        "revision": model.revision,
        "endpoint": model.endpoint,
        "hub": model.hub,
        "target": f"{settings.llm_root}/models",
        "client": f"{client}/bin/modelscope",
        "files_at_once": model.files_at_once,
        "file_timeout_seconds": model.file_timeout_seconds,
        "stall_timeout_seconds": model.stall_timeout_seconds,
        "accept": sorted(model.accept),
        "proxy": model.proxy,
        "no_proxy": list(model.no_proxy),
        "token_file": TOKEN_CREDENTIAL if model.token is not None else None,
    }


def provenance(settings: Settings, model: LockedModel) -> dict[str, Any]:
    """For the hosts' event logs: from which lock a model comes, its licence, what was accepted."""
    assert settings.model is not None
    if model.lock is None:
        return {"accepted": sorted(settings.model.accept)}
    return {
        "lock": settings.model.lock,
        "lock_sha256": model.sha256,
        "license": model.lock.license,
        "accepted": sorted(model.lock.accepts),
    }


def pull_job_id(job: Mapping[str, Any]) -> str:
    """The name of a pull job on the host: one for each directory that it fills."""
    return f"{str(job['model_id']).replace('/', '--')}--{job.get('directory') or job['revision']}"


def missing(environment: Environment, present: Mapping[str, Any]) -> bool:
    # The name holds the digest of what is wanted, and a record is written only when all is there.
    return "error" in (present.get(environment.path) or {"error": "absent"})


def tools_python(snapshot: Mapping[str, Any]) -> str:
    """The distribution's own python3, by version, as an absolute path."""
    system = snapshot["os"]
    packaged = SUPPORTED[(str(system["id"]), str(system["version_id"]))]
    return f"/usr/bin/python{packaged[0]}"
