"""`proof run` ENGINE, by the Python of the release that is to be proven, in the engine's sandbox.

Reads engines/ENGINE/proof-request.json and leaves /run/llm-proof/ENGINE/verdict.json: {id, state,
step, seen, ...}. It is written anew at every step, so that a crash or a hang can be named too.
Who asks, and what follows, is proof.py.
"""

from __future__ import annotations

import functools
import importlib
import json
import random
import re
import time
from typing import TYPE_CHECKING, Any

from . import durable, engine, fitness_script, layout, nvml, proof_model
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

# A CUDA context takes 300 to 500 MiB of a GPU, cuBLAS some tens more. The rest is left to the
# engine that is running there: taking its last memory would be an outage made by a test.
FREE_BYTES_BESIDE = 1536 * 2**20
# A request's `check`: the model's tokenizer alone (fitness.py).
FITNESS = "fitness"
# Entries are -1, 0 and 1, so that sums of 64 products are exact in every type here (bfloat16 holds
# integers up to 256). On GPUs float16, since those before Ampere have no bfloat16.
SIZE = 64
DTYPES = {"cuda": ("float32", "float16"), "cpu": ("float32", "bfloat16")}
# What CUDA and cuBLAS say when a GPU's memory is in use, or the GPU is another process's alone.
IN_USE = re.compile(
    r"out of memory|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|busy or unavailable",
    re.IGNORECASE,
)
INITIALISATION_HINTS = (
    ("802", "On machines with NVSwitch: is nvidia-fabricmanager running, of the driver's version?"),
    ("803", "The loaded kernel module and the driver's libraries differ in version: reboot."),
    ("804", "The driver's libraries are older or newer than the kernel module: reboot."),
    ("no NVIDIA driver", "Is the driver loaded (lsmod), and /dev/nvidia* there?"),
    ("insufficient", "The driver is older than the CUDA of this torch: install a newer driver."),
)


class Unproven(HostError):
    """It could not be found out beside a running engine, which says nothing against the release."""


class Verdict:
    """The verdict's file, and how far the proof is."""

    def __init__(self, path: Path, request: dict[str, Any]) -> None:
        self._path = path
        self._document: dict[str, Any] = {"id": request["id"], "state": "running", "step": ""}
        self.seen: dict[str, Any] = {}
        self._seconds: dict[str, float] = {}
        self._began = time.monotonic()

    def step(self, name: str) -> None:
        self._end_step()
        self._document["step"] = name
        self._write()
        print(f"proof: {name}", flush=True)

    def end(self, state: str, error: HostError | None = None) -> None:
        self._end_step()
        self._document["state"] = state
        if error is not None:
            self._document["error"] = error.as_dict()
        self._write()

    def _end_step(self) -> None:
        now = time.monotonic()
        if self._document["step"]:
            self._seconds[self._document["step"]] = round(now - self._began, 2)
        self._began = now

    def _write(self) -> None:
        document = {**self._document, "seen": self.seen, "seconds": self._seconds}
        temporary = self._path.with_name(f".{self._path.name}")
        # No fsync: /run is memory. What must last, go-live writes.
        temporary.write_text(json.dumps(document) + "\n")
        temporary.replace(self._path)


def verdict_path(name: str) -> Path:
    return layout.run_root() / "llm-proof" / name / "verdict.json"


def request_path(name: str) -> Path:
    return engine.home(name) / "proof-request.json"


def run(request: dict[str, Any]) -> dict[str, Any]:
    """The whole proof: {id, state: passed|unproven}; HostError when the release cannot run."""
    name = engine.name_of(request)
    asked = durable.read_json(request_path(name))
    if not isinstance(asked, dict):
        raise HostError(
            f"nothing is to be proven for engine {name}",
            f"{request_path(name)} does not exist.",
            "A go-live writes it; this is not to be started by hand.",
        )
    verdict = Verdict(verdict_path(name), asked)
    try:
        if asked.get("check") == FITNESS:
            fitness_script.examine(asked, verdict.step, verdict.seen)
        else:
            _prove(asked, verdict)
    except Unproven as error:
        verdict.end("unproven", error)
        return {"id": asked["id"], "state": "unproven", "error": error.as_dict()}
    except HostError as error:
        verdict.end("failed", error)
        raise
    verdict.end("passed")
    return {"id": asked["id"], "state": "passed", "seen": verdict.seen}


def _prove(asked: dict[str, Any], verdict: Verdict) -> None:
    cuda = asked["device"] == "cuda"
    verdict.step("import torch")
    torch = _imported("torch", asked)
    verdict.seen["torch"] = str(torch.__version__)
    if cuda:
        verdict.step("driver")
        check_driver(torch, verdict.seen)
        verdict.step("gpus")
        check_gpus(torch, list(asked["gpus"]), verdict.seen)
        if asked["beside"]:
            verdict.step("free memory")
            check_free_memory(list(asked["gpus"]))
    verdict.step("matrix product")
    count = torch.cuda.device_count() if cuda else 0
    for device in [f"cuda:{index}" for index in range(count)] if cuda else ["cpu"]:
        check_product(torch, device, asked)
    verdict.step("import vllm")
    vllm = _imported("vllm", asked)
    verdict.seen["vllm"] = str(vllm.__version__)
    verdict.step("model")
    proof_model.check(asked, verdict.seen)


def _imported(name: str, asked: dict[str, Any]) -> Any:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise HostError(
            f"the runtime cannot import {name}",
            f"{type(error).__name__}: {error}.",
            _import_fix(str(error), name, asked),
            proof_model.last_lines(error),
        ) from error


def _import_fix(text: str, name: str, asked: dict[str, Any]) -> str:
    if "No module named" in text:
        return (
            f"The lock does not hold it, or the runtime is damaged: look whether "
            f"{asked['runtime']} has it, correct runtime.lock, or remove that directory and deploy."
        )
    if "cannot open shared object file" in text or "undefined symbol" in text:
        return (
            "A library is missing or of another version. If it is NVIDIA's (libcuda), the driver's "
            "user-space packages are missing on the host; else the lock mixes builds: make it anew."
        )
    return f"The lines below say where {name} stops. The lock may be for another Python or system."


# --- the driver and the GPUs


def cuda_words(number: int) -> str:
    """ "13.0" of 13000, as cuDriverGetVersion() counts."""
    return f"{number // 1000}.{number % 1000 // 10}"


def check_driver(torch: Any, seen: dict[str, Any]) -> None:
    """torch's CUDA build against what the driver supports. Of one major version every driver will
    do (CUDA's minor version compatibility), an older major version will not."""
    built = torch.version.cuda
    if built is None:
        hip = getattr(torch.version, "hip", None)
        what = f"for ROCm {hip}" if hip else "for CPUs only"
        raise HostError(
            "the runtime's torch cannot use NVIDIA GPUs",
            f"torch {torch.__version__} was built {what}.",
            "Make runtime.lock for CUDA: a lock resolved from an index without CUDA builds, or one "
            "with +cpu in torch's version, gives such a torch.",
        )
    driver = int(torch._C._cuda_getDriverVersion())
    seen.update(torch_cuda=str(built), driver_cuda=cuda_words(driver))
    if driver == 0:
        raise HostError(
            "torch finds no NVIDIA driver on this host",
            "libcuda.so.1 cannot be loaded, or is a stub.",
            "Install the driver's user-space libraries of the loaded kernel module's version.",
        )
    if driver // 1000 < int(str(built).split(".", maxsplit=1)[0]):
        raise HostError(
            "the driver is too old for the runtime's torch",
            f"torch {torch.__version__} is built for CUDA {built}; the driver supports CUDA "
            f"{cuda_words(driver)} at most.",
            "Install a newer driver and reboot, or pin a vLLM whose torch is built for CUDA "
            f"{driver // 1000}.",
        )


def plain_uuid(uuid: object) -> str:
    """nvidia-smi writes GPU-UUID, torch the UUID alone."""
    return str(uuid).strip().lower().removeprefix("gpu-")


def check_gpus(torch: Any, planned: list[str], seen: dict[str, Any]) -> None:
    """torch sees exactly the planned GPUs, in the order of ranks."""
    try:
        torch.cuda.init()
        count = int(torch.cuda.device_count())
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        hints = [hint for sign, hint in INITIALISATION_HINTS if sign in text]
        raise HostError(
            "CUDA does not start in the engine's sandbox",
            f"{text}.",
            " ".join(hints) or "Look at nvidia-smi, and at the kernel: journalctl -k | grep NVRM.",
        ) from error
    found = [_uuid_of(torch, index) for index in range(count)]
    seen["gpus"] = found
    wanted = [plain_uuid(uuid) for uuid in planned]
    if found and (found == wanted or not wanted):
        return
    if not found:
        raise HostError(
            "torch sees no GPU in the engine's sandbox",
            f"{len(wanted)} were planned: {', '.join(planned)}." if wanted else "There is none.",
            "Compare with nvidia-smi -L on the host, and look at CUDA_VISIBLE_DEVICES in "
            "engines/NAME/releases/RELEASE/binding.env.",
        )
    missing = [uuid for uuid in wanted if uuid not in found]
    foreign = [uuid for uuid in found if uuid not in wanted]
    if missing:
        why = f"planned and not there: GPU-{', GPU-'.join(missing)}"
        why += f"; there and not planned: GPU-{', GPU-'.join(foreign)}." if foreign else "."
        fix = (
            "Compare with nvidia-smi -L. A GPU that fell off the bus shows in the kernel's log "
            "(journalctl -k | grep Xid); after a card was replaced, deploy again, which plans anew."
        )
    elif foreign:
        why = f"there and not planned: GPU-{', GPU-'.join(foreign)}."
        fix = "CUDA_VISIBLE_DEVICES did not count: is it set elsewhere (a drop-in of the unit)?"
    else:
        why = f"their order is {', '.join(found)}, planned was {', '.join(wanted)}."
        fix = "Is CUDA_DEVICE_ORDER or CUDA_VISIBLE_DEVICES set elsewhere (a drop-in of the unit)?"
    raise HostError(f"torch sees {count} GPU(s), not the {len(wanted)} planned", why, fix)


def _uuid_of(torch: Any, index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        raise HostError(
            "this torch does not tell the GPUs' UUIDs",
            f"torch {torch.__version__} has no such property.",
            "Pin a newer vLLM, or set engine.proof: off with eyes open.",
        )
    return plain_uuid(uuid)


def check_free_memory(planned: list[str]) -> None:
    """Whether there is room for a CUDA context beside the engine that runs."""
    wanted = {plain_uuid(uuid) for uuid in planned}
    try:
        with nvml.opened() as library:
            free = {plain_uuid(uuid): left for uuid, left in library.free_bytes().items()}
    except HostError as error:
        raise Unproven(
            "how much GPU memory is free beside the running engine is not known",
            f"{error.what}: {error.why}",
            "It is proven once that engine has stopped.",
        ) from error
    short = [
        f"GPU-{uuid} has {left // 2**20} MiB free"
        for uuid, left in sorted(free.items())
        if uuid in wanted and left < FREE_BYTES_BESIDE
    ]
    if short:
        raise Unproven(
            "the running engine leaves too little GPU memory to prove the release beside it",
            f"{'; '.join(short)}, and {FREE_BYTES_BESIDE // 2**20} MiB are wanted: a CUDA context "
            "takes 300 to 500 MiB, the rest is left to the engine.",
            "It is proven once that engine has stopped.",
        )


# --- arithmetic


@functools.cache
def matrices() -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Two matrices of -1, 0 and 1, always the same, and their product by Python itself."""
    source = random.Random(20)  # noqa: S311 - not a secret
    rows = range(SIZE)
    left = [[source.randint(-1, 1) for _ in rows] for _ in rows]
    right = [[source.randint(-1, 1) for _ in rows] for _ in rows]
    columns = list(zip(*right))  # noqa: B905 - strict= is not in Python 3.9
    product = [
        [sum(a * b for a, b in zip(row, column)) for column in columns]  # noqa: B905
        for row in left
    ]
    return left, right, product


def check_product(torch: Any, device: str, asked: dict[str, Any]) -> None:
    """A product of known result on one device, exact in every type that is tried."""
    left, right, wanted = matrices()
    where = _device_words(device, asked)
    for name in DTYPES[device.partition(":")[0]]:
        dtype = getattr(torch, name)
        try:
            one = torch.tensor(left, dtype=dtype, device=device)
            other = torch.tensor(right, dtype=dtype, device=device)
            got = torch.matmul(one, other).tolist()
        except Exception as error:
            raise _no_product(torch, where, name, error, asked) from error
        wrong = sum(
            a != b
            for row, expected in zip(got, wanted)  # noqa: B905
            for a, b in zip(row, expected)  # noqa: B905
        )
        if wrong:
            raise HostError(
                f"{where} computes wrongly",
                f"{wrong} of {SIZE * SIZE} numbers of a {SIZE}x{SIZE} product in {name} are wrong.",
                "Do not serve from it: its answers would be wrong without a word. On a GPU, look "
                "for Xid and ECC errors (nvidia-smi -q -d ECC) and run dcgmi diag -r 3; on a CPU, "
                "the build may be for another one.",
            )


def _device_words(device: str, asked: dict[str, Any]) -> str:
    if device == "cpu":
        return "the CPU"
    index = int(device.partition(":")[2])
    planned = asked["gpus"]
    return f"GPU {planned[index]}" if index < len(planned) else f"GPU {index} of the engine"


def _no_product(
    torch: Any, where: str, dtype: str, error: Exception, asked: dict[str, Any]
) -> HostError:
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if IN_USE.search(str(error)) or type(error).__name__ == "OutOfMemoryError":
        if asked["beside"]:
            return Unproven(
                f"{where} could not be tried beside the running engine",
                f"{text}.",
                "It is proven once that engine has stopped.",
            )
        return HostError(
            f"{where} has no memory for a small product",
            f"{text}, and no engine of this name runs: another process holds it.",
            "nvidia-smi lists the processes on each GPU. End the one that should not be there.",
        )
    if "no kernel image" in str(error):
        built = ", ".join(torch.cuda.get_arch_list())
        return HostError(
            f"the runtime's torch has no code for {where}",
            f"{text}; it is built for {built}.",
            "Pin a vLLM whose torch is built for this GPU.",
        )
    return HostError(
        f"{where} does not compute",
        f"a {SIZE}x{SIZE} product in {dtype} ended in {text}.",
        "Look at nvidia-smi and at the kernel's lines (journalctl -k | grep -e NVRM -e Xid).",
        proof_model.last_lines(error),
    )
