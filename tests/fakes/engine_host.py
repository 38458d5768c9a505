"""Stand-ins for systemctl, journalctl and vLLM, put on PATH: a unit is a real process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = Path(__file__).resolve().parents[2] / "files"

# Behaves by its release's config.yaml: {"behave": serve | die | hang | sick | greedy | empty}.
# greedy dies of the first request that samples, as vLLM 0.28 did on a CPU without a C++ compiler.
ENGINE = r"""
import json, os, socket, sys, time
home, run = sys.argv[1:3]
behave = json.load(open(home + "/current/config.yaml"))
kind = behave.get("behave", "serve")
print("loading", os.path.basename(os.readlink(home + "/current")), flush=True)
for line in behave.get("says", []):
    print(line, flush=True)
if kind == "die":
    print("vllm: error: unrecognized arguments: --nope", flush=True)
    sys.exit(2)
while kind == "hang":
    time.sleep(0.02)
time.sleep(behave.get("load_seconds", 0))
path = run + "/http.sock"
if os.path.exists(path):
    os.unlink(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(16)
waiting = []
while True:
    peer, _ = server.accept()
    data = peer.recv(65536)
    head = data.split(b"\r\n\r\n", 1)[0]
    if b"Content-Length" in head:
        length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        while len(data.split(b"\r\n\r\n", 1)[1]) < length:
            data += peer.recv(65536)
    status = "200 OK"
    if data.startswith(b"GET /metrics"):
        load = open("load").read().strip() if os.path.exists("load") else "0"
        body = 'vllm:num_requests_running{e="0"} %s\nvllm:num_requests_waiting{e="0"} 0.0\n' % load
        if os.path.exists("tokens"):
            body += 'vllm:generation_tokens_total{e="0"} %s\n' % open("tokens").read().strip()
    elif os.path.exists("stuck"):
        waiting.append(peer)
        continue
    else:
        asked = json.loads(data.split(b"\r\n\r\n", 1)[1])
        if kind == "greedy" and asked["temperature"] > 0:
            print("InvalidCxxCompiler: No working C++ compiler found", flush=True)
            sys.exit(1)
        wanted = asked["model"]
        served = behave.get("serves", "m")
        if wanted != served:
            status, body = "404 Not Found", json.dumps({"message": "no model " + wanted})
        elif kind == "sick":
            status, body = "500 Internal Server Error", "{}"
        else:
            text = "" if kind == "empty" else " four"
            body = json.dumps({"choices": [{"text": text}]})
    head = "HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))
    peer.sendall((head + body).encode())
    peer.close()
"""

# One unit, the engine's. $FAKE_UNIT holds pid, invocation, enabled, calls, log; load, tokens
# and stuck are the engine's. In sh, since
# every poll of a go-live calls it and Python takes 40 ms to start.
SYSTEMCTL = r"""
while :; do case $1 in --no-*) shift ;; *) break ;; esac; done
cd "$FAKE_UNIT" || exit 1
echo "$*" >> calls
[ "$1" = "$FAKE_KILL_PARENT_AT" ] && kill -9 $PPID
# systemd does one thing after the other with a unit, also for a caller that has died meanwhile.
case $1 in restart | stop) exec 9> lock && flock 9 ;; esac
pid=; restarts=0; enabled=disabled; invocation=
for name in pid restarts enabled invocation; do [ -e $name ] && read -r $name < $name; done
up() {
    [ -n "$pid" ] && [ -e "/proc/$pid/stat" ] && read -r stat < "/proc/$pid/stat" || return 1
    stat=${stat##*) }
    [ "${stat%% *}" != Z ]
}
stop() {
    if up; then
        kill -9 "$pid"
        while up; do sleep 0.005; done
    fi
    echo > pid
    rm -rf "$FAKE_RUN"
}
case $1 in
show)
    case "$*" in *llm-golive@*)
        state=inactive
        [ -e golive-state ] && read -r state < golive-state
        echo "ActiveState=$state"
        exit ;;
    esac
    active=inactive sub=dead result=success status=0
    if up; then
        active=active sub=running
    elif [ -n "$pid" ]; then
        active=failed sub=failed result=exit-code status=2
    fi
    cpu=5
    [ -e busy ] && cpu=$(date +%s%N)
    printf '%s\n' LoadState=loaded ActiveState=$active SubState=$sub UnitFileState=$enabled \
        Result=$result MainPID="$pid" NRestarts=$restarts InvocationID="$invocation" \
        ExecMainCode=1 ExecMainStatus=$status CPUUsageNSec=$cpu \
        ActiveEnterTimestampMonotonic=0
    ;;
start | restart)
    stop
    cat /proc/sys/kernel/random/uuid > invocation
    mkdir -p "$FAKE_RUN"
    release=$(readlink "$FAKE_HOME/current") || { echo 'the unit failed' >&2; exit 1; }
    binding=null
    for file in "$FAKE_HOME/binding.env" "$FAKE_HOME/current/binding.env"; do
        [ -e "$file" ] && binding=$(sha256sum < "$file") && binding="\"${binding%% *}\""
    done
    setsid "$PYTHON" -SE engine.py "$FAKE_HOME" "$FAKE_RUN" < /dev/null >> log 2>&1 9>&- &
    echo $! > pid
    mended=$(sed -n 's/.*"mended": {"when": \("[^"]*"\).*/\1/p' \
        "$(readlink "$FAKE_HOME/current/model").json")
    echo "{\"release\": \"${release##*/}\", \"binding\": $binding," \
        "\"model_mended\": ${mended:-null}}" > "$FAKE_RUN/started.json"
    ;;
stop) case "$*" in *llm-golive@*) ;; *) stop ;; esac ;;
kill) [ -e deaf ] || kill -9 "$pid" ;;
enable) echo enabled > enabled ;;
disable) echo disabled > enabled ;;
esac
"""

JOURNALCTL = r"""
cd "$FAKE_UNIT" || exit 1
touch log
for word; do case $word in --lines=*) tail -n "${word#--lines=}" log ;; esac; done
case "$*" in *--show-cursor*) wc -l log ;; esac
"""


def put_program(directory: Path, name: str, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
    path.chmod(0o755)


@dataclass
class FakeHost:
    """A host in a directory, with one engine named main."""

    root: Path

    @property
    def llm_root(self) -> Path:
        return self.root / "srv/llm"

    @property
    def home(self) -> Path:
        return self.llm_root / "engines/main"

    @property
    def run(self) -> Path:
        return self.root / "run/llm-engine-main"

    @property
    def flag(self) -> Path:
        return self.root / "run/llm/drain/main"

    @property
    def unit(self) -> Path:
        return self.root / "unit"

    @property
    def load(self) -> Path:
        """How many requests the engine says that it has."""
        return self.unit / "load"

    def environment(self) -> dict[str, str]:
        return {
            "FLEET_LLM_ROOT": str(self.llm_root),
            "FLEET_RUN_ROOT": str(self.root / "run"),
            "FLEET_STATE_ROOT": str(self.root / "state"),
            "FLEET_ETC_ROOT": str(self.root / "etc"),
            "FAKE_UNIT": str(self.unit),
            "FAKE_HOME": str(self.home),
            "FAKE_RUN": str(self.run),
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(FILES),
            "PYTHON": sys.executable,
        }

    def prepare(self) -> None:
        for directory in ("run", "state", "etc", "unit", "srv/llm/state", "srv/llm/engines/main"):
            (self.root / directory).mkdir(parents=True, exist_ok=True)
        put_program(self.root / "bin", "systemctl", SYSTEMCTL)
        put_program(self.root / "bin", "journalctl", JOURNALCTL)
        (self.unit / "engine.py").write_text(ENGINE, encoding="utf-8")
        runtime = self.llm_root / "runtimes/vllm"
        runtime.mkdir(parents=True)
        (runtime / ".fleet-complete.json").write_text("{}", encoding="utf-8")
        model = self.llm_root / "models/o--m/master"
        model.mkdir(parents=True)
        (model / "weights").write_text("12", encoding="utf-8")
        record = {"files": [{"path": "weights", "size": 2, "sha256": "x"}]}
        (model.parent / "master.json").write_text(json.dumps(record), encoding="utf-8")

    def release_request(self, identity: str, **behaviour: Any) -> dict[str, Any]:
        return {
            "engine": "main",
            "id": identity,
            "release": {
                "runtime": str(self.llm_root / "runtimes/vllm"),
                "model": str(self.llm_root / "models/o--m/master"),
                "served_model_name": behaviour.get("serves", "m"),
            },
            "config_yaml": json.dumps(behaviour),
            "env": "",
        }

    def bind(self, identity: str, binding: str, placement: str = "") -> dict[str, Any]:
        """A request of `release bind`."""
        return {"engine": "main", "id": identity, "binding": binding, "placement": placement}

    def golive_spec(self, identity: str, **more: Any) -> dict[str, Any]:
        return {
            "engine": "main",
            "release": identity,
            "unit": "llm-engine@main.service",
            "probe": {"path": "/v1/completions", "model": "m", "prompt": "1", "max_tokens": 4},
            "start_timeout_seconds": 10,
            "stall_timeout_seconds": 5,
            "drain_seconds": 1,
            "poll_seconds": 0.02,
            "enable": True,
            "run": "r",
            **more,
        }

    def golive_record(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.home / "golive.json").read_text())
        return document

    def calls(self) -> list[str]:
        path = self.unit / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not line.startswith("show")]

    def linked(self, name: str) -> str | None:
        path = self.home / name
        return path.readlink().name if path.is_symlink() else None

    def end_engine(self) -> None:
        path = self.unit / "pid"
        pid = path.read_text().strip() if path.exists() else ""
        if pid:
            with contextlib.suppress(ProcessLookupError):  # it died by itself, as the test wanted
                os.kill(int(pid), signal.SIGKILL)


Fake = TypeVar("Fake", bound=FakeHost)


def in_use(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """For a fixture: the fake host, fresh, whose roots and programs this process uses. No engine of
    it is left."""
    fake.prepare()
    for key, value in fake.environment().items():
        monkeypatch.setenv(key, value)
    yield fake
    fake.end_engine()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHost]:
    yield from in_use(FakeHost(tmp_path), monkeypatch)
