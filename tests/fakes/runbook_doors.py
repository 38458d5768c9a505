"""Hosts and commands for runbooks: hosts that are states, and what was asked of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


class Answers(dict[str, dict[str, Any]]):
    def __init__(self) -> None:
        super().__init__()
        self.problems: dict[str, str] = {}

    @property
    def missing(self) -> list[str]:
        return sorted(self.problems)

    def problem(self, host: str) -> str:
        return self.problems.get(host, "")


@dataclass
class HostState:
    """running: requests that outlive the drain. dies: the engine does not come back."""

    drained_by: str = ""
    active: str = "active"
    running: int = 0
    dies: bool = False
    release: str | None = "r1"
    locked_by: str = ""
    lease: dict[str, Any] | None = None
    taken_meanwhile: bool = False
    unreachable: bool = False
    holders: list[dict[str, Any]] = field(default_factory=list)
    gpus: int = 8
    lost_in_reset: int = 0


@dataclass
class FakeDoors:
    hosts: dict[str, HostState]
    codes: dict[str, list[int]] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    deploy_code: int = 0
    agrees: bool = True
    said: list[str] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    leased: set[str] = field(default_factory=set)

    def ask(
        self, command: str, requests: Mapping[str, Mapping[str, Any]], timeout_seconds: int
    ) -> Answers:
        assert timeout_seconds > 0
        answers = Answers()
        for name, request in requests.items():
            host = self.hosts[name]
            if host.unreachable:
                answers.problems[name] = "the host was not reached"
                continue
            found = KINDS[command](self, name, host, request)
            if isinstance(found, str):
                answers.problems[name] = found
            else:
                answers[name] = found
        return answers

    def fleet(self, words: Sequence[str]) -> tuple[int, str]:
        line = " ".join(words)
        if words[0] not in ("status", "plan") and list(words[:2]) != ["keys", "list"]:
            self.did.append(f"fleet {line}")
        waiting = self.codes.get(words[0], [0])
        code = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if words[0] == "status":
            names = [name for name in self.hosts if name in line]
            return code, json.dumps({"hosts": {name: {} for name in names}})
        return code, self.printed.get(" ".join(words[:2]), "")

    def deploy(self, hosts: Sequence[str], deploy: str) -> tuple[int, list[str]]:
        self.did.append(f"deploy {deploy} {','.join(hosts)}")
        return self.deploy_code, ["the last words"]

    def facts(self, hosts: Sequence[str], directory: Path) -> list[str]:
        for name in hosts:
            (directory / name).mkdir(parents=True)
            (directory / name / "nvidia-smi").write_text("L20")
        return []

    def confirmed(self, question: str) -> bool:
        self.questions.append(question)
        return self.agrees

    def say(self, text: str) -> None:
        self.said.append(text)

    def mask(self, text: str) -> str:
        return text.replace("hunter22", "[masked]")

    @property
    def text(self) -> str:
        return "\n".join(self.said)


Answer = dict[str, Any] | str


def _status(_doors: FakeDoors, _name: str, host: HostState, _request: Mapping[str, Any]) -> Answer:
    lease = {"owner": host.locked_by} if host.locked_by else host.lease
    return {"live": bool(lease), "lease": lease, "engine": {"current": host.release}}


def _drain(doors: FakeDoors, name: str, host: HostState, request: Mapping[str, Any]) -> Answer:
    changed = not host.drained_by
    doors.did.append(f"drain {name}")
    host.drained_by = host.drained_by or str(request["by"])
    return {"changed": changed, "drain": {"by": host.drained_by}, "running": host.running}


def _undrain(doors: FakeDoors, name: str, host: HostState, _request: Mapping[str, Any]) -> Answer:
    doors.did.append(f"undrain {name}")
    host.drained_by = ""
    return {"changed": True, "drain": None}


def _stop(doors: FakeDoors, name: str, host: HostState, request: Mapping[str, Any]) -> Answer:
    doors.did.append(f"stop {name}{' now' if request['now'] else ''}")
    host.drained_by, host.active = host.drained_by or str(request["by"]), "inactive"
    return {"changed": True, "drain": {"by": host.drained_by}}


def _start(doors: FakeDoors, name: str, host: HostState, _request: Mapping[str, Any]) -> Answer:
    doors.did.append(f"start {name}")
    host.active = "failed" if host.dies else "active"
    return {"changed": True}


def _answers(_doors: FakeDoors, _name: str, host: HostState, _request: Mapping[str, Any]) -> Answer:
    good = host.active == "active"
    return {
        "answers": good, "active": host.active, "why": "" if good else "nothing listens",
        "drain": {"by": host.drained_by} if host.drained_by else None,
    }  # fmt: skip


def _holders(_doors: FakeDoors, _name: str, host: HostState, _request: Mapping[str, Any]) -> Answer:
    return {"holders": host.holders, "gpus": [f"GPU {one}" for one in range(host.gpus)]}


def _reset(doors: FakeDoors, name: str, host: HostState, request: Mapping[str, Any]) -> Answer:
    """As files/fleet_host/gpu_reset.py refuses."""
    if not host.drained_by or host.active == "active":
        return "this host is in service"
    if host.holders:
        return f"the GPUs are still open\n  why: process {host.holders[0]['pid']}"
    assert name in doors.leased
    doors.did.append(f"reset {name} {request['gpus']}")
    host.gpus -= host.lost_in_reset
    return {"reset": request["gpus"], "gpus": [f"GPU {one}" for one in range(host.gpus)]}


def _logs(_doors: FakeDoors, _name: str, _host: HostState, request: Mapping[str, Any]) -> Answer:
    return {"lines": [f"{request['of']}: password is hunter22"]}


def _acquire(doors: FakeDoors, name: str, host: HostState, request: Mapping[str, Any]) -> Answer:
    held = host.lease is not None and request.get("steal_run") != host.lease["run"]
    if host.taken_meanwhile or held:
        return "another run is at work on this host"
    assert request["generation_seen"] is None
    assert request["ttl_seconds"] > 0
    doors.leased.add(name)
    return {"lease": {}}


def _release(doors: FakeDoors, name: str, _host: HostState, request: Mapping[str, Any]) -> Answer:
    assert request["run"] == "run-1"
    doors.leased.discard(name)
    return {"released": True}


def _verify(_doors: FakeDoors, _name: str, host: HostState, request: Mapping[str, Any]) -> Answer:
    assert request["server_name"] == "llm.example.com"
    return "a client was refused\n  why: 401" if host.dies else {"checks": []}


KINDS: dict[str, Callable[[FakeDoors, str, HostState, Mapping[str, Any]], Answer]] = {
    "rollout status": _status, "service drain": _drain, "service undrain": _undrain,
    "service stop": _stop, "service start": _start, "service answers": _answers,
    "lease acquire": _acquire, "lease release": _release, "verify": _verify,
    "gpu holders": _holders, "gpu reset": _reset, "service logs": _logs,
    "events tail": lambda *_: {"events": []}, "service releases": lambda *_: {"releases": {}},
}  # fmt: skip
