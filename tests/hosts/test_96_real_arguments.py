"""engine.args on a real vLLM: our reader against its parser, and a mistake that stops nothing."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from tests import vllm_parser
from tests.hosts import host_state, pyinfra_run
from tests.hosts.installed_vllm import parser_of, source_of
from tests.hosts.lab_session import REAL, shell
from tests.hosts.pyinfra_run import BIN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.hosts.real_deploy import RealDeploy

PROGRAM = "/srv/llm/bin/fleet-host"
RELEASE = "/srv/llm/engines/main/current"
UNIT = "llm-arguments@main.service"


@pytest.fixture(scope="module", autouse=True)
def served(real_deploy: RealDeploy) -> None:
    """The real vLLM is live, also when no test before has waited for it."""
    real_deploy.end().done()


@pytest.fixture(scope="module")
def runtime() -> str:
    return shell(REAL, f"readlink {RELEASE}/runtime").strip()


def run_program(command: str, request: dict[str, Any]) -> dict[str, Any]:
    """The host program's answer, its refusal too."""
    output = shell(REAL, f"{PROGRAM} {command}", check=False, input_text=json.dumps(request))
    answer: dict[str, Any] = json.loads(output)
    return answer


def ended(kind: str, identifier: str) -> dict[str, Any]:
    while True:
        status = run_program("job status", {"kind": kind, "id": identifier})
        if status["state"] != "running":
            return status
        time.sleep(1)


def test_tables_and_source_say_what_the_parser_says(
    runtime: str, say: Callable[[str], None]
) -> None:
    parser, entry = parser_of(REAL, runtime), source_of(REAL, runtime)
    say(f"{len(parser)} names in the parser of vLLM {entry['version']}")
    assert vllm_parser.with_reader(entry["flags"], parser) == []
    assert vllm_parser.with_tables(Version(entry["version"]).base_version, parser) == []


def test_the_release_keeps_the_verdict_and_the_whole_help() -> None:
    verdict = json.loads(shell(REAL, f"cat {RELEASE}/arguments.json"))
    assert (verdict["checked"], verdict["accepted"]) == (True, True)
    assert verdict["parsed"]["max-model-len"] == "1024"
    text = shell(REAL, f"cat {RELEASE}/help.txt")
    # The groups alone, without their options, are a few dozen lines.
    assert text.count("\n") > 1500
    assert "--max-model-len" in text
    assert shell(REAL, f"stat -c '%U %a' {RELEASE}/help.txt").split() == ["root", "644"]
    assert shell(REAL, f"systemctl is-active {UNIT} || true").strip() == "inactive"


def test_help_and_arguments_are_fetched_to_the_control_machine(
    runtime: str, tmp_path: Path
) -> None:
    name = runtime.rsplit("/", 1)[1]
    done = pyinfra_run.run(
        [str(BIN / "fleet"), "runtime", "flags", "lab", "--limit", REAL, "--into", str(tmp_path)]
    )
    assert done.returncode == 0, done.stderr
    assert f"{name}: vLLM 0.32.0" in done.stdout
    assert len(json.loads((tmp_path / f"{name}.flags.json").read_text())) == 316
    text = (tmp_path / f"{name}.help.txt").read_text()
    assert text == shell(REAL, f"cat {RELEASE}/help.txt")


def test_a_name_that_this_vllm_does_not_know_is_refused_by_its_source(runtime: str) -> None:
    before = host_state.tree(REAL)
    answer = run_program(
        "release review",
        {"engine": "main", "id": "0123456789abcdef", "runtime": runtime,
         "arguments": {"max-model-len": 1024, "swap-space": 4, "max-model-lens": 8},
         "advice": {"swap-space": "V1 does not swap: remove the line."}},
    )  # fmt: skip
    assert "vLLM 0.32.0+cpu does not take engine.args" in answer["error"]["what"]
    assert "V1 does not swap" in answer["error"]["fix"]
    assert "Nearest: max-model-len" in answer["error"]["detail"][1]
    assert host_state.differences(before, host_state.tree(REAL)) == []


def test_what_only_the_parser_sees_stops_nothing_either(runtime: str) -> None:
    """A release that came past plan and source: the engine that serves is not touched."""
    identity = "fedcba9876543210"
    release = json.loads(shell(REAL, f"cat {RELEASE}/release.json"))
    program = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"
    script = f"{runtime}/bin/python -c '{program}' {RELEASE}/config.yaml"
    config = json.loads(shell(REAL, script))
    config["enable-auto-tool-choice"] = True  # without its tool-call-parser
    staged = run_program(
        "release stage",
        {"engine": "main", "id": identity, "release": release,
         "config_yaml": json.dumps(config), "env": shell(REAL, f"cat {RELEASE}/env")},
    )  # fmt: skip
    assert staged["changed"] is True
    before = host_state.invocations(REAL)
    try:
        for run in ("asks the parser", "knows its verdict"):
            spec = {
                "llm_root": "/srv/llm", "engine": "main", "release": identity, "run": run,
                "unit": "llm-engine@main.service", "probe": {"model": "m"},
                "start_timeout_seconds": 600, "stall_timeout_seconds": 180,
                "drain_seconds": 5, "enable": True, "ask_parser": True,
            }  # fmt: skip
            run_program("job start", {"kind": "golive", "id": "main", "spec": spec})
            status = ended("golive", "main")
            assert status["state"] == "failed"
            assert "stays live" in status["error"]["what"]
            assert "tool-call-parser" in status["error"]["why"]
            assert host_state.invocations(REAL) == before
        verdict = json.loads(shell(REAL, f"cat /srv/llm/engines/main/releases/{identity}/"
                                         "arguments.json"))  # fmt: skip
        assert verdict["accepted"] is False
    finally:
        shell(REAL, f"rm -r /srv/llm/engines/main/releases/{identity}")
