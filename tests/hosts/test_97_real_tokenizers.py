"""Fitness on the real engine's host: what its first deploy kept, and damaged tokenizers that stop
nothing. Each costs 5 s of CPU time: transformers is imported, no model is loaded."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts import host_state
from tests.hosts.lab_session import REAL, shell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("real_deploy")

PROGRAM = "/srv/llm/bin/fleet-host"
ENGINE = "/srv/llm/engines/main"
# A copy of the model without its weights, in a place of its own.
DAMAGED = "/srv/llm/models/lab--damaged/one"
IDENTITY = "aaaabbbbccccdddd"
# What is done to the copy, by Python: `edit(file, change)`.
EDIT = """
import json, pathlib
place = pathlib.Path("{place}")
def edit(name, change):
    path = place / name
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
{change}
"""
DAMAGE = {
    "another model's": (
        'edit("config.json", lambda d: d.update(vocab_size=1000))',
        "tokens more than the model has rows",
    ),
    "end outside": (
        'edit("config.json", lambda d: d.update(eos_token_id=10**6))',
        "eos_token_id 1000000 of config.json is outside the vocabulary",
    ),
    "merges gone": (
        'edit("tokenizer.json", lambda d: d["model"].update(merges=[]))',
        "its tokenizer's merges are missing",
    ),
    "decoder gone": (
        'edit("tokenizer.json", lambda d: d.update(decoder=None))',
        "does not give plain English back",
    ),
    "template broken": (
        '(place / "chat_template.jinja").write_text("{% for x in")\n'
        'edit("tokenizer_config.json", lambda d: d.pop("chat_template", None))',
        "its chat template does not render a plain question",
    ),
}


def run_program(command: str, request: dict[str, Any]) -> dict[str, Any]:
    output = shell(REAL, f"{PROGRAM} {command}", check=False, input_text=json.dumps(request))
    answer: dict[str, Any] = json.loads(output)
    return answer


def test_the_first_deploy_examined_the_tokenizer(say: Callable[[str], None]) -> None:
    (name,) = shell(REAL, "ls /srv/llm/state/fitness").split()
    record = json.loads(shell(REAL, f"cat /srv/llm/state/fitness/{name}"))
    assert record["state"] == "passed"
    assert record["seen"]["warnings"] == []
    assert record["seen"]["tokens"] == 49152
    release = json.loads(shell(REAL, f"cat {ENGINE}/current/release.json"))
    assert record["depends_on"]["model_digest"] == release["model_digest"]
    assert record["depends_on"]["runtime_digest"] == release["runtime_digest"]
    say(f"examined by transformers {record['seen']['transformers']}")


@pytest.fixture
def damaged() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Stage a release of the present runtime with a damaged copy of the model's small files, and
    have it go live: how that ended."""

    def stage_and_go(change: str) -> dict[str, Any]:
        shell(
            REAL,
            f"mkdir -p {DAMAGED} && cd {ENGINE}/current/model/ && "
            f"cp *.json *.jinja {DAMAGED}/ && rm -f {DAMAGED}/*.index.json && "
            f"chmod -R u+w,a+rX {DAMAGED}",
        )
        shell(REAL, "python3 -", input_text=EDIT.format(place=DAMAGED, change=change))
        # A record as a pull leaves it: what is there counts as verified.
        record = (
            "import hashlib, json, pathlib\n"
            f"place = pathlib.Path('{DAMAGED}')\n"
            "rows = [{'path': p.name, 'size': p.stat().st_size, 'mtime_ns': p.stat().st_mtime_ns,"
            " 'ctime_ns': p.stat().st_ctime_ns, 'inode': p.stat().st_ino,"
            " 'sha256': hashlib.sha256(p.read_bytes()).hexdigest()} for p in place.iterdir()]\n"
            "record = {'schema': 1, 'model_digest': 'damaged', 'files': rows}\n"
            "pathlib.Path(f'{place}.json').write_text(json.dumps(record))\n"
        )
        shell(REAL, "python3 -", input_text=record)
        release = json.loads(shell(REAL, f"cat {ENGINE}/current/release.json"))
        staged = run_program(
            "release stage",
            {"engine": "main", "id": IDENTITY,
             "release": {**release, "model": DAMAGED, "model_digest": "damaged"},
             "config_yaml": shell(REAL, f"cat {ENGINE}/current/config.yaml"),
             "env": shell(REAL, f"cat {ENGINE}/current/env")},
        )  # fmt: skip
        assert staged.get("changed") is True, staged
        spec = {
            "llm_root": "/srv/llm", "engine": "main", "release": IDENTITY, "run": "test_97",
            "unit": "llm-engine@main.service", "probe": {"model": "m"},
            "start_timeout_seconds": 600, "stall_timeout_seconds": 180, "drain_seconds": 5,
            "enable": True, "fitness": {"timeout_seconds": 300},
        }  # fmt: skip
        run_program("job start", {"kind": "golive", "id": "main", "spec": spec})
        while True:
            status = run_program("job status", {"kind": "golive", "id": "main"})
            if status["state"] != "running":
                return status
            time.sleep(0.5)

    yield stage_and_go
    shell(
        REAL,
        f"rm -rf {ENGINE}/releases/{IDENTITY} {DAMAGED} {DAMAGED}.json "
        "/srv/llm/state/fitness/lab--damaged--*; rmdir /srv/llm/models/lab--damaged",
    )


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_tokenizer_is_refused_and_the_engine_serves_on(
    damaged: Callable[[str], dict[str, Any]], kind: str
) -> None:
    change, said = DAMAGE[kind]
    before = host_state.invocations(REAL)
    status = damaged(change)
    assert status["state"] == "failed", status
    assert "stays live: the model is not fit to be served" in status["error"]["what"]
    assert said in json.dumps(status["error"], ensure_ascii=False)
    assert host_state.invocations(REAL) == before
