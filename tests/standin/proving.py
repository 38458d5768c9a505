"""Stand-ins for torch, for the parts of vllm that a proof looks at, and for `vllm serve`.

How they behave is in the environment variable STANDIN_PROOF, a JSON mapping:
  cuda      CUDA version torch was built for (null: a CPU build)
  driver    what the driver supports, as CUDA counts: 13000
  uuids     of the GPUs that torch sees
  init      what torch.cuda.init() says
  wrong     devices that miscompute
  full      devices whose memory is in use
  no_code   devices that torch has no code for
  import    {module: "missing" | "broken" | "hang" | a signal's number}
  architectures   in vLLM's registry
  config    what reading the model's configuration says
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BEHAVIOUR = r"""
import json, os, signal, time

behaviour = json.loads(os.environ.get("STANDIN_PROOF") or "{}")

def arrive(module):
    how = behaviour.get("import", {}).get(module)
    if how == "missing":
        raise ModuleNotFoundError("No module named '%s'" % module)
    if how == "broken":
        raise ImportError("libcudart.so.13: cannot open shared object file: No such file")
    while how == "hang":
        time.sleep(0.02)
    if isinstance(how, int):
        os.kill(os.getpid(), how)
        time.sleep(60)
"""

TORCH = (
    _BEHAVIOUR
    + r"""
arrive("torch")
__version__ = "2.13.0+standin"
float32, float16, bfloat16 = "float32", "float16", "bfloat16"

class OutOfMemoryError(RuntimeError):
    pass

class version:
    cuda = behaviour.get("cuda")
    hip = None

class _C:
    @staticmethod
    def _cuda_getDriverVersion():
        return behaviour.get("driver", 0)

class _Properties:
    def __init__(self, uuid):
        self.uuid = uuid

class cuda:
    @staticmethod
    def init():
        if behaviour.get("init"):
            raise RuntimeError(behaviour["init"])

    @staticmethod
    def device_count():
        return len(behaviour.get("uuids", []))

    @staticmethod
    def get_device_properties(index):
        return _Properties(behaviour["uuids"][index].removeprefix("GPU-"))

    @staticmethod
    def get_arch_list():
        return ["sm_80", "sm_90"]

class Tensor:
    def __init__(self, rows, device):
        self.rows, self.device = rows, device

    def tolist(self):
        return self.rows

def tensor(rows, dtype, device):
    if device in behaviour.get("full", []):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
    if device in behaviour.get("no_code", []):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
    return Tensor([[float(value) for value in row] for row in rows], device)

def matmul(one, other):
    columns = list(zip(*other.rows))
    rows = [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in one.rows]
    if one.device in behaviour.get("wrong", []):
        rows[3][5] += 1.0
    return Tensor(rows, one.device)
"""
)

VLLM = (
    _BEHAVIOUR
    + r"""
arrive("vllm")

class ModelRegistry:
    @staticmethod
    def get_supported_archs():
        known = ["LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"]
        return {name: None for name in behaviour.get("architectures", known)}
"""
)

CONFIG = (
    _BEHAVIOUR
    + r"""
def get_config(model, trust_remote_code, **more):
    if behaviour.get("config"):
        raise ValueError(behaviour["config"])
    with open(os.path.join(model, "config.json")) as file:
        document = json.load(file)
    class Config:
        architectures = document.get("architectures")
    return Config
"""
)


# engine.py with a worker process beside it, a count of its tokens, and a way to hang: while
# $HOME/stuck exists completions are taken and never answered, as when a GPU hangs; /health and
# /metrics go on. The worker ignores the end of its server, as one that waits for a GPU does.
SERVING = r"""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from vllm import engine as base

STUCK = Path(os.environ.get("HOME", "/nonexistent")) / "stuck"
# A worker that ignores the end of its server, as one that waits for a GPU does.
WORKER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(10**6)"


class Handler(base.Handler):
    made = 0

    def do_GET(self):
        if self.path != "/metrics":
            super().do_GET()
            return
        label = f'{{engine="0",model_name="{self.engine.name}"}}'
        text = (
            f"vllm:num_requests_running{label} {float(self.engine.running)}\n"
            f"vllm:num_requests_waiting{label} 0.0\n"
            f"vllm:generation_tokens_total{label} {float(Handler.made)}\n"
        )
        self.answer(200, text.encode(), "text/plain; version=0.0.4")

    def generate(self, body):
        while STUCK.exists():
            time.sleep(0.1)
        super().generate(body)
        Handler.made += int(body.get("max_tokens") or 16)


def main():
    base.Handler = Handler
    worker = subprocess.Popen([sys.executable, "-c", WORKER])
    print(f"INFO worker {worker.pid}", flush=True)
    try:
        base.main()
    finally:
        worker.kill()
        worker.wait()


if __name__ == "__main__":
    main()
"""


def modules(version: str) -> dict[str, str]:
    """Path -> text, below site-packages."""
    return {
        "torch/__init__.py": TORCH,
        "vllm/__init__.py": f'__version__ = "{version}"\n{VLLM}',
        "vllm/transformers_utils/__init__.py": "",
        "vllm/transformers_utils/config.py": CONFIG,
    }


def install(directory: Path, version: str = "0.32.0") -> None:
    """Into a directory for PYTHONPATH."""
    for name, text in modules(version).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
