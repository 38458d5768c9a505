"""Proof before live, with stand-ins for torch and vllm in real processes: what is found, in which
words, and that nothing is switched when it is bad."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import binding, golive, release
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.fakes.proof_host import GOOD, UUIDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.proof_host import ProofHost

CPU: dict[str, Any] = {"cuda": None}


@pytest.fixture
def memory(proof_host: ProofHost, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> ProofHost:
    """The host's GPUs with their memory free."""
    monkeypatch.setenv("FLEET_NVML_LIBRARY", str(nvml_library))
    monkeypatch.setenv("FAKE_NVML", str(proof_host.root))
    (proof_host.root / "cards").write_text("-1 0 0\n-1 0 0\n")
    free(proof_host, 40000, 40000)
    return proof_host


def free(host: ProofHost, *mib: int) -> None:
    for index, (uuid, left) in enumerate(zip(UUIDS, mib, strict=True)):
        (host.root / f"memory-{index}").write_text(f"{uuid} {left}\n")


def stage(host: ProofHost, identity: str, proof: dict[str, Any], **engine: Any) -> None:
    release.stage(host.proving_request(identity, proof, **engine))


def go(host: ProofHost, identity: str, device: str = "cuda", **more: Any) -> dict[str, Any]:
    spec = host.golive_spec(identity, proof=host.proof_spec(device, **more))
    return golive.run(spec, Progress(None))


def refused(host: ProofHost, identity: str, device: str = "cuda", **more: Any) -> HostError:
    with pytest.raises(HostError) as caught:
        go(host, identity, device, **more)
    return caught.value


def events_of(host: ProofHost) -> list[str]:
    lines = (host.llm_root / "state/events.jsonl").read_text().splitlines()
    return [json.loads(line)["what"] for line in lines]


def test_a_good_release_is_proven_and_goes_live(proof_host: ProofHost) -> None:
    stage(proof_host, "r1", GOOD)
    assert go(proof_host, "r1")["changed"] is True
    record = proof_host.record("r1")
    assert record is not None
    assert record["state"] == "passed"
    assert record["depends_on"]["driver"] == "610.43.02"
    assert record["seen"]["gpus"] == [uuid.removeprefix("GPU-") for uuid in UUIDS]
    assert record["seen"]["architectures"] == ["Qwen3ForCausalLM"]
    assert (record["seen"]["torch_cuda"], record["seen"]["driver_cuda"]) == ("13.0", "13.0")
    assert events_of(proof_host)[-2:] == ["proof passed", "went live"]
    assert not (proof_host.home / "candidate").exists()


def test_a_cpu_host_is_proven_without_gpus(proof_host: ProofHost) -> None:
    stage(proof_host, "r1", CPU)
    go(proof_host, "r1", "cpu")
    record = proof_host.record("r1")
    assert record is not None
    assert record["depends_on"]["driver"] is None
    assert "matrix product" in record["seconds"]


def stop_engine(host: ProofHost) -> None:
    subprocess.run(["systemctl", "stop", "llm-engine@main"], env=host.environment(), check=True)


def test_it_is_repeated_when_what_it_depends_on_changes_and_only_then(memory: ProofHost) -> None:
    stage(memory, "r1", GOOD)
    go(memory, "r1")
    stop_engine(memory)  # it has to be started again
    go(memory, "r1")
    assert memory.proofs() == 1
    binding.bind(memory.bind("r1", "A=1\n"))
    go(memory, "r1")
    assert memory.proofs() == 2
    memory.driver("620.1")
    binding.bind(memory.bind("r1", "A=1\nB=2\n"))
    binding.bind(memory.bind("r1", "A=1\n"))
    (memory.home / "golive.json").unlink()
    stop_engine(memory)
    go(memory, "r1")
    assert memory.proofs() == 3


BAD: list[tuple[dict[str, Any], str, str, str]] = [
    ({"uuids": [UUIDS[0], "GPU-cccc"]}, "not the 2 planned", "and not planned: GPU-cccc", "-L"),
    ({"uuids": UUIDS[:1]}, "sees 1 GPU(s)", f"not there: {UUIDS[1]}", "Xid"),
    ({"uuids": UUIDS[::-1]}, "not the 2 planned", "their order is", "CUDA_DEVICE_ORDER"),
    ({"uuids": [*UUIDS, "GPU-cc"]}, "sees 3 GPU(s)", "not planned: GPU-cc", "VISIBLE_DEVICES"),
    ({"driver": 12080}, "driver is too old", "the driver supports CUDA 12.8 at most", "CUDA 12"),
    ({"driver": 0}, "no NVIDIA driver", "libcuda.so.1", "user-space libraries"),
    ({"cuda": None}, "cannot use NVIDIA GPUs", "for CPUs only", "runtime.lock"),
    ({"init": "Error 802: system not yet initialized"}, "CUDA does not start", "802", "fabric"),
    ({"wrong": ["cuda:1"]}, f"GPU {UUIDS[1]} computes wrongly", "1 of 4096 numbers", "ECC"),
    ({"full": ["cuda:0"]}, "has no memory", "another process holds it", "nvidia-smi"),
    ({"no_code": ["cuda:0"]}, "has no code for", "built for sm_80, sm_90", "Pin a vLLM"),
    ({"import": {"torch": "missing"}}, "cannot import torch", "No module named", "runtime.lock"),
    ({"import": {"vllm": "broken"}}, "cannot import vllm", "cannot open shared", "library"),
    ({"import": {"vllm": 11}}, "no verdict", "by SIGSEGV during 'import vllm'", "one resolution"),
    ({"import": {"torch": 4}}, "no verdict", "by signal 4 during 'import torch'", "instruction"),
    ({"architectures": ["Qwen3MoeForCausalLM", "Qwen2ForCausalLM"]}, "does not know the model's "
     "architecture Qwen3ForCausalLM", "near it: Qwen2ForCausalLM", "newer vLLM"),
    ({"config": "model type q9 is not known"}, "cannot read the model's configuration",
     "model type q9", "newer vLLM"),
    ({"config": "set trust_remote_code=True"}, "cannot read", "trust_remote_code", "if you trust"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "what", "why", "fix"), BAD)
def test_what_is_wrong_is_said_and_nothing_starts(
    proof_host: ProofHost, change: dict[str, Any], what: str, why: str, fix: str
) -> None:
    stage(proof_host, "r1", {**GOOD, **change})
    error = refused(proof_host, "r1")
    assert "release r1 cannot run on this host, so nothing was started" in error.what
    assert what in error.what
    assert why in error.why
    assert fix in error.fix
    assert proof_host.linked("current") is None
    assert not any(call.startswith("restart llm-engine") for call in proof_host.calls())
    record = proof_host.record("r1")
    assert record is not None
    assert record["state"] == "failed"
    assert events_of(proof_host)[-1] == "proof failed"


@pytest.mark.parametrize("planned", [UUIDS, []])
def test_no_gpu_at_all_is_never_good(proof_host: ProofHost, planned: list[str]) -> None:
    """Also where nobody has planned any: an empty list is no proof of nothing."""
    stage(proof_host, "r1", {**GOOD, "uuids": []})
    assert "torch sees no GPU" in refused(proof_host, "r1", gpus=planned).what


def test_where_no_gpus_were_planned_those_that_are_seen_are_tried(proof_host: ProofHost) -> None:
    stage(proof_host, "r1", {**GOOD, "wrong": ["cuda:1"]})
    assert "GPU 1 of the engine computes wrongly" in refused(proof_host, "r1", gpus=[]).what


def test_a_hang_ends_with_the_step_that_hangs(proof_host: ProofHost) -> None:
    stage(proof_host, "r1", {**GOOD, "import": {"vllm": "hang"}})
    error = refused(proof_host, "r1", timeout_seconds=6)
    assert "hangs in 'import vllm'" in error.what
    assert "6 s" in error.why
    assert "proof: import vllm" in error.detail
    pid = int((proof_host.unit / "proof-pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)


def test_systemd_s_own_failures_are_named(proof_host: ProofHost) -> None:
    (proof_host.unit / "no-runtime").touch()
    stage(proof_host, "r1", GOOD)
    error = refused(proof_host, "r1")
    assert "203/EXEC" in error.why
    assert "before its first step" not in error.fix
    (proof_host.unit / "no-runtime").write_text("Failed to execute x: Argument list too long\n")
    error = refused(proof_host, "r1")
    assert "E2BIG" in error.why
    assert "engine.env" in error.fix
    (proof_host.unit / "no-runtime").unlink()
    (proof_host.unit / "oom").touch()
    stage(proof_host, "r2", {**GOOD, "import": {"vllm": 9}})
    assert "memory ran out (oom-kill)" in refused(proof_host, "r2").why


def test_a_bad_release_leaves_the_running_one_alone(memory: ProofHost) -> None:
    stage(memory, "r1", GOOD)
    stage(memory, "r2", {**GOOD, "wrong": ["cuda:0"]})
    go(memory, "r1")
    pid = (memory.unit / "pid").read_text()
    error = refused(memory, "r2")
    assert "so release r1 stays live" in error.what
    assert (memory.unit / "pid").read_text() == pid
    assert memory.linked("current") == "r1"
    assert memory.golive_record()["phase"] == "done"
    assert not memory.flag.exists()


def test_a_failed_proof_is_tried_again(proof_host: ProofHost) -> None:
    stage(proof_host, "r1", {**GOOD, "driver": 0})
    refused(proof_host, "r1")
    refused(proof_host, "r1")
    assert proof_host.proofs() == 2


@pytest.mark.parametrize("sign", ["little free", "taken meanwhile", "unknown"])
def test_without_room_beside_the_engine_it_is_proven_after_its_stop(
    memory: ProofHost, sign: str
) -> None:
    """Also when the memory is gone between the look and the use, or cannot be looked up."""
    stage(memory, "r1", GOOD)
    stage(memory, "r2", {**GOOD, **({"full": ["cuda:1"]} if sign == "taken meanwhile" else {})})
    go(memory, "r1")
    if sign == "little free":
        free(memory, 40000, 900)
    elif sign == "unknown":
        (memory.root / "memory-1").unlink()
    if sign == "taken meanwhile":
        # Nobody gives it back here: alone, it is a failure, and the old release comes back.
        error = refused(memory, "r2")
        assert "release r1 serves again" in error.what
        assert "its proof failed" in error.why
        assert memory.golive_record()["phase"] == "reverted"
        assert memory.linked("current") == "r1"
        return
    go(memory, "r2")
    assert memory.linked("current") == "r2"
    order = [call for call in memory.calls() if call.startswith(("stop", "restart"))]
    assert order[-6:] == [
        "restart --no-block llm-proof@main.service",
        "stop llm-proof@main.service",
        "stop llm-engine@main.service",
        "restart --no-block llm-proof@main.service",
        "stop llm-proof@main.service",
        "restart llm-engine@main.service",
    ]
    record = memory.record("r2")
    assert record is not None
    assert record["beside_a_running_engine"] is False


def test_the_records_of_pruned_releases_go(proof_host: ProofHost) -> None:
    stage(proof_host, "r1", GOOD)
    (proof_host.home / "proofs").mkdir()
    (proof_host.home / "proofs/gone.json").write_text("{}")
    go(proof_host, "r1")
    assert proof_host.record("gone") is None


def test_an_interrupted_switch_is_undone_when_the_next_release_cannot_run(
    memory: ProofHost,
) -> None:
    stage(memory, "r1", GOOD)
    stage(memory, "bad", GOOD, behave="hang")
    stage(memory, "r3", {**GOOD, "wrong": ["cuda:0"]})
    go(memory, "r1")
    document = {**memory.golive_record(), "phase": "starting", "from": "r1", "to": "bad"}
    (memory.home / "golive.json").write_text(json.dumps(document))
    (memory.home / "current").unlink()
    (memory.home / "current").symlink_to("releases/bad")
    error = refused(memory, "r3")
    assert "release r1 serves again" in error.what
    assert memory.linked("current") == "r1"


def test_without_the_setting_nothing_is_proven(proof_host: ProofHost) -> None:
    stage(proof_host, "r1", {**GOOD, "import": {"torch": "missing"}})
    golive.run(proof_host.golive_spec("r1", proof=None), Progress(None))
    assert proof_host.proofs() == 0
    assert proof_host.linked("current") == "r1"


RUN_GOLIVE = (
    "import json, sys; from fleet_host import golive; from fleet_host.status import Progress; "
    "golive.run(json.load(sys.stdin), Progress(None))"
)


def test_a_go_live_that_is_killed_while_it_proves_is_mended_by_the_next(
    proof_host: ProofHost,
) -> None:
    stage(proof_host, "r1", {**GOOD, "import": {"vllm": "hang"}})
    stage(proof_host, "r2", GOOD)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_GOLIVE], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    spec = proof_host.golive_spec("r1", proof=proof_host.proof_spec())
    process.stdin.write(json.dumps(spec).encode())
    process.stdin.close()
    verdict = proof_host.root / "run/llm-proof/main/verdict.json"
    deadline = time.monotonic() + 30
    while not verdict.exists() or json.loads(verdict.read_text())["step"] != "import vllm":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert (proof_host.home / "candidate").is_symlink()
    left = int((proof_host.unit / "proof-pid").read_text())
    go(proof_host, "r2")
    assert proof_host.linked("current") == "r2"
    assert not (proof_host.home / "candidate").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(left, 0)
