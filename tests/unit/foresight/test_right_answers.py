"""`fleet plan --facts --model-config --json`, end to end, against answers known to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.foresight.places import QWEN3_32B, Place, finding, ids

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 2**30
TP8 = {"tensor-parallel-size": 8, "max-model-len": 16384, "gpu-memory-utilization": 0.90}
TP8_EP = {**TP8, "enable-expert-parallel": True}
TP4_PP2 = {**TP8, "tensor-parallel-size": 4, "pipeline-parallel-size": 2}
TP4 = {**TP8, "tensor-parallel-size": 4}


@pytest.fixture
def older(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """`runtime` of another vLLM. Its lock is as small as can be: torch's CUDA is the table's."""

    def runtime(vllm: str) -> dict[str, Any]:
        lock = f"locks/runtime/vllm-{vllm}.txt"
        (place.root / "locks").unlink()
        (place.root / lock).parent.mkdir(parents=True)
        (place.root / lock).write_text(f"vllm=={vllm} --hash=sha256:{'0' * 64}\n")
        return {"vllm": vllm, "lock": lock}

    return runtime


def test_production_plans_with_no_refusal(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    code, hosts = place.plan(capsys)
    host = hosts["gpu01"]
    assert (code, ids(host, "refuse")) == (0, [])
    assert ids(host, "warn") == ["model.not-locked", "model.quantization-not-accepted"]
    assert host["memory"]["layout"] == "TP8 + EP"
    assert host["memory"]["kv_bytes_per_token"] == 48_128
    low, high = host["memory"]["available_bytes"]["low"], host["memory"]["available_bytes"]["high"]
    assert 0 < low < high < 46_068 * 2**20


@pytest.mark.parametrize(
    ("args", "layout", "per_token"),
    [(TP8_EP, "TP8 + EP", 48_128), (TP4_PP2, "TP4 x PP2", 24_064)],
)
def test_what_is_accepted_on_eight_l20(
    place: Place, capsys: pytest.CaptureFixture[str], args: Any, layout: str, per_token: int
) -> None:
    place.write(engine={"args": args})
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (0, [])
    memory = hosts["gpu01"]["memory"]
    assert (memory["layout"], memory["kv_bytes_per_token"]) == (layout, per_token)


def test_tp4_is_refused_for_memory(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.write(engine={"args": TP4})
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (1, ["memory.weights-do-not-fit"])


def test_tp8_alone_is_refused_up_to_0_26_with_both_ways_out(
    place: Place,
    capsys: pytest.CaptureFixture[str],
    older: Callable[[str], dict[str, Any]],
) -> None:
    place.write(engine={"args": TP8}, runtime=older("0.26.0"))
    code, hosts = place.plan(capsys)
    host = hosts["gpu01"]
    assert (code, ids(host, "refuse")) == (1, ["parallel.fp8-blocks"])
    refusal = finding(host, "parallel.fp8-blocks")
    assert "192" in refusal["message"]
    assert "enable-expert-parallel: true" in refusal["fix"]
    assert "tensor-parallel-size: 4 with pipeline-parallel-size: 2" in refusal["fix"]
    assert "17569" in refusal["source"]


@pytest.mark.parametrize("vllm", ["0.28.0", "0.32.0"])
def test_tp8_alone_is_warned_of_once_where_nobody_knows(
    place: Place,
    capsys: pytest.CaptureFixture[str],
    older: Callable[[str], dict[str, Any]],
    vllm: str,
) -> None:
    place.write(engine={"args": TP8}, runtime=older(vllm))
    code, hosts = place.plan(capsys)
    host = hosts["gpu01"]
    assert (code, ids(host, "refuse")) == (0, [])
    assert [one for one in ids(host) if "fp8-blocks" in one] == ["parallel.fp8-blocks-unknown"]
    assert finding(host, "parallel.fp8-blocks-unknown")["severity"] == "warn"


def test_tp8_alone_is_a_note_where_it_works(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.write(engine={"args": TP8})
    code, hosts = place.plan(capsys)
    assert code == 0
    assert finding(hosts["gpu01"], "parallel.fp8-blocks-refined")["severity"] == "note"


def test_qwen3_32b_takes_256_kib_a_token(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.model = QWEN3_32B
    args = {"tensor-parallel-size": 1, "max-model-len": 32768}
    place.write(engine={"args": args}, model={"id": "Qwen/Qwen3-32B", "variant": "bf16"})
    _, hosts = place.plan(capsys)
    memory = hosts["gpu01"]["memory"]
    assert memory["kv_bytes_per_token"] == 256 * 1024
    assert memory["kv_bytes_per_token"] * 32_768 == 8 * GIB
    # 61 GiB of weights are no load for one card, and four carry them.
    assert "memory.weights-do-not-fit" in ids(hosts["gpu01"], "refuse")
    place.write(
        engine={"args": {**args, "tensor-parallel-size": 4}},
        model={"id": "Qwen/Qwen3-32B", "variant": "bf16"},
    )
    code, hosts = place.plan(capsys)
    assert (code, hosts["gpu01"]["memory"]["kv_bytes_per_token"]) == (0, 64 * 1024)


# ---- drivers ---------------------------------------------------------------------------------


def with_driver(place: Place, version: str) -> None:
    for name in ("nvidia-smi-q-x.xml", "nvidia-smi-query-gpu.csv", "nvidia-smi-version.txt",
                 "nvidia-module-loaded.txt", "nvidia-module-installed.txt",
                 "paths.txt"):  # fmt: skip
        place.rewrite(name, lambda text: text.replace("580.95.05", version))


def with_compat(place: Place, package: str, version: str) -> None:
    place.rewrite("dpkg.txt", lambda text: text + f"{package}\t{version}\tii \n")


def test_driver_535_is_too_old_for_cuda_13(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with_driver(place, "535.274.02")
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (1, ["compat.driver-too-old"])
    refusal = finding(hosts["gpu01"], "compat.driver-too-old")
    assert "580" in refusal["fix"]
    assert "cuda-compat-13-0" in refusal["fix"]


def test_cuda_compat_carries_it_where_the_gpu_supports_that(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with_driver(place, "535.274.02")
    with_compat(place, "cuda-compat-13-0", "580.95.05-0ubuntu1")
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (0, [])
    assert finding(hosts["gpu01"], "compat.forward-compatibility")["severity"] == "warn"


def test_cuda_compat_does_not_help_a_desktop_card(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with_driver(place, "535.274.02")
    with_compat(place, "cuda-compat-13-0", "580.95.05-0ubuntu1")
    for name in ("nvidia-smi-q-x.xml", "nvidia-smi-query-gpu.csv"):
        place.rewrite(name, lambda text: text.replace("NVIDIA L20", "NVIDIA GeForce RTX 4090"))
    place.write(gpu_host={"expected_gpu_model": "NVIDIA GeForce RTX 4090"})
    code, hosts = place.plan(capsys)
    assert code == 1
    assert "compat.driver-too-old" in ids(hosts["gpu01"], "refuse")


def test_driver_470_is_too_old_for_cuda_12(
    place: Place,
    capsys: pytest.CaptureFixture[str],
    older: Callable[[str], dict[str, Any]],
) -> None:
    with_driver(place, "470.256.02")
    place.write(runtime=older("0.10.2"))
    code, hosts = place.plan(capsys)
    assert (code, ids(hosts["gpu01"], "refuse")) == (1, ["compat.driver-too-old"])
    assert "CUDA 12" in finding(hosts["gpu01"], "compat.driver-too-old")["message"]
