"""A fake host (engine_host.py) whose systemd also runs proofs, by a runtime of stand-ins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.engine_host import FILES, SYSTEMCTL, FakeHost, in_use, put_program
from tests.standin import proving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The unit llm-proof@main.service as systemd runs it: the release's files are its environment.
PROOF_SYSTEMCTL = r"""
while :; do case $1 in --no-*) shift ;; *) break ;; esac; done
case "$*" in *llm-proof@*) ;; *) exec "$(dirname "$0")/systemctl.engine" "$@" ;; esac
cd "$FAKE_UNIT" || exit 1
echo "$*" >> calls
case $1 in
restart)
    if [ -e proof-pid ] && [ ! -e proof-status ]; then
        kill -9 "-$(cat proof-pid)"
        while [ ! -e proof-status ]; do sleep 0.01; done
    fi
    rm -f proof-status proof-pid
    cat /proc/sys/kernel/random/uuid > proof-invocation
    [ -e no-runtime ] && { cat no-runtime > proof-log; echo 203 > proof-status; exit 0; }
    mkdir -p "$FLEET_RUN_ROOT/llm-proof/main"
    (
        set -a
        . "$FAKE_HOME/candidate/env"
        for file in "$FAKE_HOME/binding.env" "$FAKE_HOME/candidate/binding.env"; do
            [ -e "$file" ] && . "$file"
        done
        set +a
        setsid "$FAKE_HOME/candidate/runtime/bin/python" -m fleet_host proof run main \
            < /dev/null > proof-log 2>&1 &
        echo $! > proof-pid
        wait $!
        echo $? > .proof-status
        mv .proof-status proof-status
    ) > /dev/null 2>&1 &
    ;;
stop)
    [ -e proof-status ] || kill -9 "-$(cat proof-pid)"
    ;;
show)
    read -r invocation < proof-invocation
    active=activating result=success code=0 status=0
    if [ -e proof-status ]; then
        read -r status < proof-status
        active=inactive code=1
        if [ "$status" -ne 0 ]; then active=failed result=exit-code; fi
        if [ "$status" -gt 128 ] && [ "$status" -ne 203 ]; then
            code=2 result=signal status=$((status - 128))
        fi
        [ -e oom ] && result=oom-kill
    fi
    printf '%s\n' ActiveState=$active Job=0 Result=$result InvocationID=$invocation \
        ExecMainCode=$code ExecMainStatus=$status
    ;;
esac
"""
JOURNALCTL = r"""
cd "$FAKE_UNIT" || exit 1
touch log proof-log proof-invocation
read -r invocation < proof-invocation
case "$*" in *"_SYSTEMD_INVOCATION_ID=$invocation"*) cat proof-log; exit ;; esac
for word; do case $word in --lines=*) tail -n "${word#--lines=}" log ;; esac; done
case "$*" in *--show-cursor*) wc -l log ;; esac
"""
UUIDS = ["GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-1111-1111-1111-111111111111"]
GOOD: dict[str, Any] = {"cuda": "13.0", "driver": 13000, "uuids": UUIDS}


@dataclass
class ProofHost(FakeHost):
    def prepare(self) -> None:
        super().prepare()
        put_program(self.root / "bin", "systemctl.engine", SYSTEMCTL)
        put_program(self.root / "bin", "systemctl", PROOF_SYSTEMCTL)
        put_program(self.root / "bin", "journalctl", JOURNALCTL)
        runtime = self.llm_root / "runtimes/vllm"
        proving.install(runtime / "site")
        put_program(
            runtime / "bin",
            "python",
            f'PYTHONPATH="{runtime}/site:{FILES}" exec "$PYTHON" -S "$@"\n',
        )
        self.architectures("Qwen3ForCausalLM")
        self.driver("610.43.02")

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "FLEET_SYSTEM_ROOT": str(self.root)}

    def architectures(self, *names: str) -> None:
        model = self.llm_root / "models/o--m/master"
        (model / "config.json").write_text(json.dumps({"architectures": list(names)}))

    def driver(self, version: str) -> None:
        path = self.root / "sys/module/nvidia/version"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(version + "\n")

    def proving_request(self, identity: str, proof: dict[str, Any], **engine: Any) -> Any:
        """A release whose stand-ins for torch and vllm behave like that."""
        text = json.dumps(proof).replace("\\", "\\\\").replace('"', '\\"')
        request = self.release_request(identity, **engine)
        return {**request, "env": f'STANDIN_PROOF="{text}"\n'}

    def proof_spec(self, device: str = "cuda", **more: Any) -> dict[str, Any]:
        gpus = UUIDS if device == "cuda" else []
        return {"device": device, "gpus": gpus, "timeout_seconds": 20, **more}

    def record(self, identity: str) -> dict[str, Any] | None:
        path = self.home / "proofs" / f"{identity}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def proofs(self) -> int:
        return sum("restart --no-block llm-proof@main" in call for call in self.calls())


@pytest.fixture
def proof_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProofHost]:
    yield from in_use(ProofHost(tmp_path), monkeypatch)
