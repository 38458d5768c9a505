"""vLLM against model, Python, driver, GPUs and its own arguments: the known right answers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from pyinfra_deploy.facts.hardware import DriverFailure, Gpu, Hardware
from pyinfra_deploy.planning import tables
from pyinfra_deploy.planning.compatibility import ModelFacts, check
from pyinfra_deploy.planning.compatibility_driver import WantedCuda, gpu_generation_findings
from pyinfra_deploy.planning.runtime_facts import LockedRuntime, known_version, locked_runtime
from tests.unit.planning_compat.hosts import ARGS, QWEN3_BF16, QWEN3_FP8, host, ids, settings

ROOT = Path(__file__).parents[3]
CUDA13 = LockedRuntime("0.33.0", "2.14.0", (13, 0), "cuda-toolkit==13.0.3.0")
DENSE_FP8 = ModelFacts("Qwen3ForCausalLM", "qwen3", "fp8", dtype="bfloat16")


def of(vllm: str, model: ModelFacts | None = None, **more: Any) -> Any:
    """Findings with a new driver and Python 3.12, so that only vLLM and model count."""
    return check(host(driver_version="615.1"), settings(vllm, **more), model)


# ---- model architectures -------------------------------------------------------------------------


@pytest.mark.parametrize("model", [QWEN3_FP8, QWEN3_BF16, DENSE_FP8])
def test_the_first_report_could_not_have_served_qwen3(model: ModelFacts) -> None:
    (refusal,) = [f for f in of("0.5.3", model, args={}) if f.severity == "refuse"]
    assert refusal.id == "compat.vllm-too-old-for-model"
    assert "0.8.4" in refusal.message
    assert "0.8.4" in refusal.fix
    assert "vllm#17327" in refusal.source


@pytest.mark.parametrize(
    ("vllm", "model", "refused"),
    [
        ("0.8.3", QWEN3_BF16, True),
        ("0.8.4", QWEN3_BF16, False),
        ("0.8.4", QWEN3_FP8, True),
        ("0.8.4", DENSE_FP8, True),
        ("0.8.5", QWEN3_FP8, False),
        ("0.8.5", DENSE_FP8, False),
        ("0.33.0", QWEN3_FP8, False),
        ("0.5.3", ModelFacts("LlamaForCausalLM", "llama", dtype="bfloat16"), False),
        ("0.5.3", ModelFacts(None, "qwen3_moe"), True),
        ("0.10.0", ModelFacts("GptOssForCausalLM", "gpt_oss", "mxfp4"), True),
        ("0.10.1", ModelFacts("GptOssForCausalLM", "gpt_oss", "mxfp4"), False),
        ("0.6.3", ModelFacts("DeepseekV3ForCausalLM", "deepseek_v3"), True),
    ],
)
def test_vllm_against_architecture(vllm: str, model: ModelFacts, refused: bool) -> None:
    found = ids(of(vllm, model, args={}, python="3.11"), "refuse")
    assert found == (["compat.vllm-too-old-for-model"] if refused else [])


def test_between_two_samples_is_said() -> None:
    (finding,) = [
        f
        for f in of("0.11.0", ModelFacts("Qwen3VLForConditionalGeneration", "qwen3_vl"))
        if f.id.startswith("compat.vllm")
    ]
    assert (finding.id, finding.severity) == ("compat.vllm-unknown-for-model", "warn")
    assert "between vLLM 0.10.2 and 0.11.1" in finding.message


def test_an_architecture_that_is_gone_or_unknown() -> None:
    gone = of("0.33.0", ModelFacts("BaichuanForCausalLM", "baichuan"))
    assert "compat.architecture-gone" in ids(gone, "warn")
    assert ids(gone, "refuse") == []
    new = of("0.33.0", ModelFacts("Qwen9ForCausalLM", "qwen9"))
    assert "compat.architecture-unknown" in ids(new, "warn")
    assert "compat.architecture-unknown" in ids(of("0.33.0", ModelFacts()), "warn")


# ---- Python and unknown versions -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("vllm", "python", "finding"),
    [
        ("0.33.0", "3.12", None),
        ("0.33.0", "3.10", "compat.python"),
        ("0.33.0", "3.15", "compat.python"),
        ("0.10.0", "3.13", "compat.python"),
        ("0.10.2", "3.13", None),
        # 0.10.0 does not take 3.13, 0.10.2 does: between them nobody knows.
        ("0.10.1.1", "3.13", "compat.python-unknown"),
        ("0.10.1.1", "3.12", None),
        ("0.30.0", "3.10", "compat.python-unknown"),
        ("0.30.0", "3.9", "compat.python"),
        # Newer than the table: a refusal would be a guess.
        ("0.40.0", "3.15", "compat.python-unknown"),
    ],
)
def test_python(vllm: str, python: str, finding: str | None) -> None:
    found = [i for i in ids(of(vllm, python=python)) if i.startswith("compat.python")]
    assert found == ([finding] if finding else [])


def test_a_version_beyond_the_table_is_said() -> None:
    assert "compat.vllm-newer" in ids(of("0.99.0"), "note")
    assert "compat.vllm-newer" not in ids(of("0.33.0"))
    assert known_version(Version("0.21.0")).in_words() == (
        "vLLM 0.21.0 is between 0.20.2 and 0.24.0, the nearest that are known"
    )
    assert "older than 0.5.3" in known_version(Version("0.4.2")).in_words()


# ---- driver --------------------------------------------------------------------------------------


def driver(version: str | None, compat: str | None = None, **more: Any) -> Hardware:
    return host(driver_version=version, cuda_compat_version=compat, **more)


@pytest.mark.parametrize("runtime", [None, CUDA13])
@pytest.mark.parametrize(
    ("version", "compat", "refused"),
    [
        ("580.65.06", None, False),
        ("595.71.05", None, False),
        ("575.57.08", None, True),
        ("535.161.08", None, True),
        ("535.161.08", "13.0", False),
        ("535.161.08", "13.1", False),
        ("535.161.08", "580.82.07-1", False),
        # cuda-compat of another CUDA, and a driver that the package does not work over.
        ("535.161.08", "12.8", True),
        ("535.161.08", "570.148.08-1ubuntu1", True),
        ("470.256.02", "13.0", True),
    ],
)
def test_cuda_13_needs_driver_580_or_cuda_compat(
    version: str, compat: str | None, refused: bool, runtime: LockedRuntime | None
) -> None:
    found = check(driver(version, compat), settings("0.33.0"), runtime=runtime)
    assert ids(found, "refuse") == (["compat.driver-too-old"] if refused else [])
    forward = compat is not None and not refused
    assert ("compat.forward-compatibility" in ids(found, "warn")) == forward


@pytest.mark.parametrize(
    ("version", "compat", "refused"),
    [
        ("470.82.01", None, True),
        ("470.82.01", "12.4", False),
        ("470.82.01", "11.8", True),
        ("450.80.02", "12.4", True),
        ("525.60.13", None, False),
    ],
)
def test_cuda_12_with_driver_470(version: str, compat: str | None, refused: bool) -> None:
    found = check(driver(version, compat), settings("0.8.5"))
    assert ids(found, "refuse") == (["compat.driver-too-old"] if refused else [])


def test_the_refusal_tells_what_to_do() -> None:
    (finding,) = check(driver("535.161.08"), settings(), runtime=CUDA13)
    assert "580.65.06" in finding.fix
    assert "0.19.1 or older" in finding.fix
    assert "apt-get install cuda-compat-13-0" in finding.fix
    assert "cuda-toolkit==13.0.3.0" in finding.evidence
    assert "535.161.08" in finding.evidence


def test_a_geforce_has_no_forward_compatibility() -> None:
    cards = tuple(Gpu(i, "NVIDIA GeForce RTX 4090", compute_capability=(8, 9)) for i in range(8))
    hardware = driver("535.161.08", "13.0", gpus=cards)
    (finding,) = check(hardware, settings(), runtime=CUDA13)
    assert finding.id == "compat.driver-too-old"
    assert "GPUs 0-7 (NVIDIA GeForce RTX 4090) is not known to support it" in finding.message
    # A card that is not in the table is not taken for one that does.
    unknown = driver("535.161.08", "13.0", gpus=(Gpu(0, "NVIDIA X1", compute_capability=(9, 0)),))
    assert ids(check(unknown, settings(), runtime=CUDA13), "refuse") == ["compat.driver-too-old"]


def test_forward_compatibility_needs_the_library_path() -> None:
    env = {"LD_LIBRARY_PATH": "/usr/local/cuda-13.0/compat"}
    hardware = driver("535.161.08", "13.0")
    assert ids(check(hardware, settings(env=env), runtime=CUDA13)) == [
        "compat.forward-compatibility"
    ]
    assert ids(check(hardware, settings(env=env), runtime=CUDA13), "note") != []
    (finding,) = check(hardware, settings(), runtime=CUDA13)
    assert finding.severity == "warn"
    assert "/usr/local/cuda-13.0/compat" in finding.fix


def test_minor_version_compatibility_has_limits() -> None:
    found = check(driver("535.161.08"), settings("0.10.2"))
    assert ids(found, "warn") == ["compat.driver-limited"]
    assert "570.26" in found[0].message
    assert ids(check(driver("570.133.20"), settings("0.10.2"))) == []


def test_between_two_cudas_the_lock_decides() -> None:
    # 0.19.1 has CUDA 12.8, 0.20.2 has 13.0; 0.20.0 lies between.
    between = check(driver("570.133.20"), settings("0.20.0"))
    assert ids(between, "warn", "refuse") == ["compat.cuda-unknown"]
    assert "0.19.1 and 0.20.2" in between[0].message
    twelve = LockedRuntime("0.20.0", "2.10.0", (12, 8), "nvidia-cuda-runtime-cu12==12.8.90")
    assert ids(check(driver("570.133.20"), settings("0.20.0"), runtime=twelve)) == []
    assert ids(check(driver("580.65.06"), settings("0.20.0"))) == []
    assert ids(check(driver("470.82.01"), settings("0.20.0")), "refuse") == [
        "compat.driver-too-old"
    ]


def test_a_driver_that_does_not_answer_is_judged_elsewhere() -> None:
    broken = driver("535.1", gpus=(), failure=DriverFailure("mismatch", "version mismatch"))
    assert check(broken, settings(), runtime=CUDA13) == ()


def test_an_unknown_driver_is_no_refusal() -> None:
    hardware = driver(None, loaded_module_version=None)
    assert ids(check(hardware, settings(), runtime=CUDA13)) == ["compat.driver-unknown"]


def test_a_cpu_runtime_needs_no_driver() -> None:
    assert check(driver("470.82.01"), settings(device="cpu", args={})) == ()


# ---- the lock ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("torch==2.14.0\ncuda-toolkit==13.0.3.0\ncuda-python==12.6.2\n", (13, 0)),
        ("torch==2.9.0 \\\n  --hash=x\nnvidia-cuda-runtime-cu12==12.8.90 \\\n", (12, 8)),
        ("torch==2.8.0+cu128\nnvidia-cuda-runtime-cu12==12.6.77\n", (12, 8)),
        ("torch==2.13.0+cpu\nvllm-cpu==0.32.0\n", None),
        ("torch==2.14.0\n", None),
        ("", None),
    ],
)
def test_cuda_of_a_lock(text: str, cuda: tuple[int, int] | None) -> None:
    assert locked_runtime(text).cuda == cuda


@pytest.mark.parametrize(
    "path", sorted((ROOT / "locks/runtime").glob("*.txt")), ids=lambda p: p.name
)
def test_our_own_locks_agree_with_the_table(path: Path) -> None:
    found = locked_runtime(path.read_text(encoding="utf-8"))
    assert found.vllm is not None
    known = known_version(Version(Version(found.vllm).public))
    assert found.torch is not None
    assert Version(found.torch).public == str(known.rows[0].torch)
    assert found.on_cpu == ("cpu" in path.name)
    if not found.on_cpu:
        assert found.cuda == known.rows[0].cuda


def test_a_cpu_lock_for_gpus_is_refused() -> None:
    cpu = locked_runtime("torch==2.13.0+cpu\n")
    assert ids(check(host(), settings(), runtime=cpu)) == ["compat.cpu-torch"]


# ---- compute capability --------------------------------------------------------------------------


def cards(name: str, capability: tuple[int, int] | None) -> Hardware:
    gpus = tuple(Gpu(i, name, compute_capability=capability) for i in range(8))
    return Hardware(host="gpu01", gpus=gpus, driver_version="615.1")


@pytest.mark.parametrize(
    ("vllm", "capability", "method", "expected"),
    [
        ("0.33.0", (8, 9), "fp8-blocks", None),
        ("0.33.0", (9, 0), "fp8-blocks", None),
        ("0.33.0", (8, 0), "fp8-blocks", "compat.quantization-slow"),
        ("0.8.5", (8, 0), "fp8-blocks", "compat.quantization-unsupported"),
        ("0.9.2", (8, 0), "fp8-blocks", "compat.quantization-slow"),
        ("0.8.5", (8, 0), "fp8", "compat.quantization-slow"),
        ("0.8.5", (7, 5), "fp8", "compat.quantization-unsupported"),
        ("0.14.1", (7, 5), "fp8", "compat.quantization-slow"),
        ("0.33.0", (7, 5), "awq", None),
        ("0.8.5", (7, 0), "awq", "compat.quantization-unsupported"),
        ("0.8.5", (7, 0), "gptq", None),
        ("0.8.5", (7, 5), "gptq_marlin", "compat.quantization-unsupported"),
        ("0.33.0", (8, 9), "mxfp4", "compat.quantization-slow"),
        ("0.33.0", (10, 0), "mxfp4", None),
        ("0.33.0", (8, 9), "bitsandbytes", "compat.quantization-not-built-in"),
        ("0.28.0", (8, 9), "gguf", "compat.quantization-not-built-in"),
        ("0.33.0", (8, 9), "magic", "compat.quantization-unknown"),
    ],
)
def test_quantisation_against_gpu(
    vllm: str, capability: tuple[int, int], method: str, expected: str | None
) -> None:
    model = ModelFacts(
        "LlamaForCausalLM",
        "llama",
        method.removesuffix("-blocks"),
        weight_block=(128, 128) if method.endswith("-blocks") else None,
        dtype="float16",
    )
    found = check(cards("GPU", capability), settings(vllm, args={}), model)
    assert [i for i in ids(found) if i.startswith("compat.quantization")] == (
        [expected] if expected else []
    )


def test_what_would_help_is_said() -> None:
    model = replace(QWEN3_FP8)
    found = check(cards("NVIDIA A100-SXM4-80GB", (8, 0)), settings("0.8.5", args={}), model)
    (refusal,) = [f for f in found if f.severity == "refuse"]
    assert "(enough from vLLM 0.9.0)" in refusal.message
    assert "compute capability 8.9" in refusal.message


@pytest.mark.parametrize(
    ("bits", "is_float", "refused"), [(8, True, True), (8, False, False), (4, False, True)]
)
def test_compressed_tensors_by_scheme(bits: int, is_float: bool, refused: bool) -> None:
    model = ModelFacts("LlamaForCausalLM", "llama", "compressed-tensors", bits, is_float)
    found = check(cards("NVIDIA T4", (7, 5)), settings("0.11.0", args={}), model)
    assert ("compat.quantization-unsupported" in ids(found)) == refused


def test_bfloat16_on_old_gpus() -> None:
    old = cards("Tesla T4", (7, 5))
    assert "compat.dtype-unsupported" in ids(
        check(old, settings("0.8.5", args={}), QWEN3_BF16), "refuse"
    )
    half = settings("0.8.5", args={"dtype": "float16"})
    assert "compat.dtype-unsupported" not in ids(check(old, half, QWEN3_BF16))


def test_the_capability_comes_from_the_table_where_it_was_not_read() -> None:
    assert "compat.capability-unknown" not in ids(check(cards("Tesla T4", None), settings()))
    found = check(cards("Tesla V100-SXM2-32GB", None), settings(), runtime=CUDA13)
    assert ids(found, "refuse") == ["compat.gpu-too-old"]
    assert "7.5" in found[0].message
    assert ids(check(cards("GPU of the year", None), settings()), "warn") == [
        "compat.capability-unknown"
    ]


def test_gpus_newer_than_the_cuda() -> None:
    found = check(cards("NVIDIA B200", (10, 0)), settings("0.8.5"))
    assert ids(found, "refuse") == ["compat.gpu-too-new"]
    assert "0.10.2 is the first known" in found[0].fix
    assert ids(check(cards("NVIDIA B200", (10, 0)), settings("0.33.0"))) == []


@pytest.mark.parametrize(
    ("capability", "cuda", "refused"),
    [
        ((10, 3), (12, 8), "needs CUDA 12.9,"),
        ((10, 3), (12, 9), None),
        ((12, 1), (12, 8), "needs CUDA 12.9,"),
        ((12, 0), (12, 8), None),
        # Not in the table: at least what the nearest below needs.
        ((11, 0), (12, 8), "needs CUDA 12.9 at least,"),
        ((13, 0), (12, 8), "needs CUDA 12.9 at least,"),
        ((13, 0), (13, 0), None),
    ],
)
def test_generations_by_the_cuda_that_first_compiles_for_them(
    capability: tuple[int, int], cuda: tuple[int, int], refused: str | None
) -> None:
    wanted = WantedCuda((cuda,), "the lock says so", "the lock")
    found = gpu_generation_findings(cards("GPU of the year", capability), wanted)
    said = [one.message for one in found if one.id == "compat.gpu-too-new"]
    assert [refused in one for one in said if refused] == [True] * bool(refused)
    assert bool(said) == bool(refused)


# ---- all of it -----------------------------------------------------------------------------------


def test_production_on_eight_l20_has_nothing_against_it() -> None:
    args = ARGS | {"enable-expert-parallel": True, "max-model-len": 16384, "dtype": "auto"}
    found = check(host(), settings(args=args, said={"variant": "fp8"}), QWEN3_FP8, CUDA13)
    assert ids(found) == []


def test_no_version_and_no_card_makes_it_stumble() -> None:
    versions = [str(row.vllm) for row in tables.vllm_versions().versions]
    names = [row.name for row in tables.gpu_models().models]
    odd = ["0.1", "0.8.4.post1", "0.20.0rc1", "1.0", "99.0"]
    for vllm, name in itertools.product([*versions, *odd], [*names[::4], "?", ""]):
        for model in (None, ModelFacts(), QWEN3_FP8):
            for finding in check(cards(name, None), settings(vllm), model):
                assert finding.message
                assert finding.fix
                assert finding.source
