"""A job on a host, without a deploy around it: as the deploy starts it, in a second."""

from __future__ import annotations

import contextlib
import json
import shlex
from typing import TYPE_CHECKING, Any

from tests.hosts.lab_session import shell, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = "/srv/llm/bin/fleet-host"
MODELS = "/srv/llm/models"


def ask(host: str, command: str, request: dict[str, Any]) -> dict[str, Any]:
    """The program's answer; a refusal is an answer too."""
    said = shell(host, f"{PROGRAM} {command}; true", input_text=json.dumps(request))
    document: dict[str, Any] = json.loads(said)
    return document


def start_pull(host: str, job_id: str, spec: dict[str, Any]) -> None:
    request = {"kind": "pull", "id": job_id, "spec": spec, "who": "tests"}
    assert ask(host, "job start", request).get("state") == "started"


def status_of(host: str, job_id: str) -> dict[str, Any]:
    return ask(host, "job status", {"kind": "pull", "id": job_id})


def finished(host: str, job_id: str, seconds: float = 120) -> dict[str, Any]:
    """The status of a pull when it has ended."""
    seen: list[dict[str, Any]] = []

    def ended() -> bool:
        seen.append(status_of(host, job_id))
        return bool(seen[-1]["state"] != "running")

    wait_for(ended, seconds)
    return seen[-1]


def pull(host: str, job_id: str, spec: dict[str, Any]) -> dict[str, Any]:
    start_pull(host, job_id, spec)
    return finished(host, job_id)


def client_of(host: str) -> str:
    """The real modelscope client that the deploy has installed."""
    found = shell(host, "ls -d /srv/llm/tools/modelscope-*/bin/modelscope").split()
    return found[-1]


def forget(host: str, model_id: str) -> None:
    """Everything of a model that no release refers to, and of its pulls."""
    name = shlex.quote(model_id.replace("/", "--"))
    shell(host, f"rm -rf {MODELS}/{name} {MODELS}/.incoming/{name} /srv/llm/jobs/pull/faults-*")


def files_in(host: str, directory: str) -> dict[str, str]:
    """Path -> SHA-256 of every file in a directory; empty when it is not there."""
    script = f"cd {directory} 2>/dev/null && find . -type f -exec sha256sum {{}} +; true"
    lines = shell(host, script).splitlines()
    return {line.split("  ./", 1)[1]: line.split(" ", 1)[0] for line in lines}


@contextlib.contextmanager
def small_disk(host: str, size_mib: int) -> Iterator[None]:
    """A small file system where the models lie."""
    user = "uid=llm-build,gid=llm-build,mode=0755"
    shell(host, f"mount -t tmpfs -o size={size_mib}m,{user} tmpfs {MODELS}")
    try:
        yield
    finally:
        shell(host, f"umount -l {MODELS}")
