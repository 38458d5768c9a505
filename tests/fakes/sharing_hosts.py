"""Hosts of a fan-out on one machine: each with directories of its own, and its server and pulls as
processes of their own, on addresses of the loopback network."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import peers, sharing

from tests.fakes.model_hub import OWNER_NAME, FakeHub, entry_of, safetensors, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILES = Path(__file__).parents[2] / "files"
DIRECTORY = "master-123456789abc"
MODEL = f"Qwen--Tiny/{DIRECTORY}"
NO_HUB = "http://127.0.0.1:9"
TOKEN = "0123456789abcdef" * 4
RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import importlib
from fleet_host import hub, gather, peers, peer_watch, share_state, swarm
from fleet_host.errors import HostError
from fleet_host.status import Progress
gather.PAUSE_SECONDS = 0.0
peers.SILENCE_SECONDS = 1.5
peers.ANSWER_SECONDS = peers.BUFFER_SECONDS = 4.0
swarm.STALL_SPARE_SECONDS = 0.0
share_state.FRESH_SECONDS = peer_watch.GONE_SECONDS = 4.0
peer_watch.AGAIN_SECONDS = 1.0
peer_watch.LEAST_SECONDS = peer_watch.SAY_SECONDS = 0.2
swarm.AGAIN_SECONDS = 0.1
hub.RETRY_DELAYS_SECONDS = ()
module = importlib.import_module("fleet_host." + sys.argv[2])
try:
    print(json.dumps({"result": module.run(json.loads(sys.stdin.read()), Progress(None))}))
except HostError as error:
    print(json.dumps({"error": error.as_dict()}))
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


def free_port() -> int:
    """Of all loopback addresses."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))  # noqa: S104 - for a moment, to find a port
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Job:
    """A process of a host; ended() gives {result} or {error}, with what it printed as log."""

    process: subprocess.Popen[str]

    def ended(self, seconds: float = 180) -> dict[str, Any]:
        out, log = self.process.communicate(timeout=seconds)
        lines = out.splitlines()
        assert len(lines) == 2, log
        answer: dict[str, Any] = {**json.loads(lines[0]), "log": log, "peak_kib": int(lines[1])}
        return answer

    def result(self) -> dict[str, Any]:
        answer = self.ended()
        assert "result" in answer, answer
        return {**answer["result"], "log": answer["log"], "peak_kib": answer["peak_kib"]}

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class SharingHost:
    name: str
    rank: int
    address: str
    root: Path
    fleet: SharingHosts
    jobs: list[Job] = field(default_factory=list)
    server: Job | None = None

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def final(self) -> Path:
        return self.models / MODEL

    @property
    def staged(self) -> Path:
        return self.models / ".incoming" / MODEL / "model"

    @property
    def telling(self) -> Path:
        """What its pull tells of itself, in its unit's directory."""
        return self.root / "run/llm-pull" / MODEL.replace("/", "--") / "fan-out.json"

    @property
    def peer(self) -> sharing.Peer:
        return sharing.Peer(self.name, self.rank, self.address, self.fleet.port)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FLEET_LLM_ROOT": str(self.root),
            "FLEET_RUN_ROOT": str(self.root / "run"),
            "FLEET_STATE_ROOT": str(self.root / "state"),
            "FAKE_CLIENT": str(self.root / "plan.json"),
        }

    def configure(self, *, pulling: bool = True, **changes: Any) -> None:
        """What `fan-out open` writes."""
        found = sharing.Sharing(
            model=MODEL,
            name=self.name,
            rank=self.rank,
            opened_at=time.monotonic(),
            pulling=pulling,
            tokens=(TOKEN,),
            peers=tuple(host.peer for host in self.fleet.hosts),
            allowed=("127.0.0.1",),
            rate_bytes_per_second=None,
        )
        document = {**found.as_dict(), **changes}
        path = self.root / "run/llm/fan-out" / f"{MODEL.replace('/', '--')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))

    def start(self, module: str, spec: dict[str, Any]) -> Job:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", RUN, str(FILES), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(spec))
        process.stdin.close()
        process.stdin = None  # else communicate() would flush it
        job = Job(process)
        self.jobs.append(job)
        return job

    def open(self, *, idle_seconds: float = 30.0, **changes: Any) -> None:
        self.configure(**changes)
        spec = {"address": self.address, "port": self.fleet.port, "idle_seconds": idle_seconds}
        self.server = self.start("share_server", spec)
        wait_for(lambda: listens(self.address, self.fleet.port))

    def pull(self, **changes: Any) -> Job:
        return self.start("pull", self.fleet.spec(self, **changes))

    def client_does(self, mode: str, **details: Any) -> None:
        (self.root / "plan.json").write_text(json.dumps({"mode": mode, **details}))

    def copy_in(self, *paths: str) -> None:
        """As an operator without internet brings files."""
        for path in paths or tuple(self.fleet.hub.files):
            (self.staged / path).parent.mkdir(parents=True, exist_ok=True)
            (self.staged / path).write_bytes(self.fleet.hub.files[path])

    def staged_bytes(self) -> int:
        """Of all files, partial ones too, that its pull has gathered so far."""
        sizes = []
        for path in self.staged.rglob("*") if self.staged.exists() else ():
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return sum(sizes)

    def publish(self) -> None:
        """Have the model, without having asked anybody."""
        self.copy_in()
        done = self.pull(endpoint=NO_HUB, fan_out=False).result()
        assert done["state"] == "pulled"

    def has_all(self) -> bool:
        found = {
            path.relative_to(self.final).as_posix(): path.read_bytes()
            for path in self.final.rglob("*")
            if path.is_file()
        }
        return found == self.fleet.hub.files


@dataclass
class SharingHosts:
    hub: FakeHub
    hosts: list[SharingHost]
    port: int

    def spec(self, host: SharingHost, **changes: Any) -> dict[str, Any]:
        rows = [entry_of(path, body) for path, body in self.hub.files.items()]
        return {
            "model_id": OWNER_NAME,
            "revision": "master",
            "directory": DIRECTORY,
            "files": [
                {"path": row["Path"], "size": row["Size"], "sha256": row["Sha256"]} for row in rows
            ],
            "commit": None,
            "endpoint": self.hub.endpoint,
            "target": str(host.models),
            "client": str(host.root / "modelscope"),
            "files_at_once": 2,
            "stall_timeout_seconds": 30,
            "fan_out": True,
            **changes,
        }

    def downloads(self) -> dict[str, int]:
        """How often the hub was asked for each file."""
        return {path: self.hub.downloads(path) for path in self.hub.files}

    def grow(self, size_bytes: int, shards: int = 2) -> None:
        """A model of so many bytes in so many shards, the same names as ever for two."""
        names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
        for path in [path for path in self.hub.files if path.endswith(".safetensors")]:
            del self.hub.files[path]
        for number, name in enumerate(names):
            body = bytes([number + 1]) * (size_bytes // shards)
            self.hub.files[name] = safetensors(body, f"t{number}")
        weights = {f"t{number}": name for number, name in enumerate(names)}
        index = json.dumps({"weight_map": weights}).encode()
        self.hub.files["model.safetensors.index.json"] = index


def all_pull(hosts: list[SharingHost], **changes: Any) -> list[dict[str, Any]]:
    for host in hosts:
        host.open()
    return [job.result() for job in [host.pull(**changes) for host in hosts]]


def end_group(job: Job) -> None:
    """A power cut of a pull: its client goes with it."""
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children")
    found = [int(pid) for pid in children.read_text().split()]
    job.process.kill()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    job.process.communicate()


def listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
        return True
    return False


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def sharing_hosts(tmp_path: Path) -> Iterator[SharingHosts]:
    """Three hosts, gpu01 to gpu03, none of which has anything yet, and their hub."""
    hub = FakeHub()
    server = serve(hub)
    made = SharingHosts(hub, [], free_port())
    script = Path(__file__).with_name("model_client.py")
    for rank in range(3):
        root = tmp_path / f"gpu0{rank + 1}"
        for name in ("models", "run", "state", "jobs"):
            (root / name).mkdir(parents=True)
        (root / "run/llm-pull" / MODEL.replace("/", "--")).mkdir(parents=True)
        program = root / "modelscope"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {script} "$@"\n')
        program.chmod(0o755)
        host = SharingHost(f"gpu0{rank + 1}", rank, f"127.0.0.{rank + 11}", root, made)
        host.client_does("honest")
        made.hosts.append(host)
    yield made
    for host in made.hosts:
        for job in host.jobs:
            if job.process.poll() is None:
                job.process.send_signal(signal.SIGKILL)
                job.process.communicate()
    server.shutdown()
    server.server_close()


def ask(host: SharingHost, token: str = TOKEN) -> dict[str, Any]:
    return peers.ask(host.peer, MODEL, (token,))
