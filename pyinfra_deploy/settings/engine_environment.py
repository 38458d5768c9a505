"""`engine.env`: which environment variables of an engine are not for the operator to set."""

from __future__ import annotations

import re

from pyinfra_deploy.settings.kinds import refuse, refuse_each

_ONLY_THE_LOCK = (
    "it brings Python code into the engine that is not in its lock file, by no hash, and that its "
    "proof does not know on the next host"
)

# Environment variables that would undo what the product does -> (why, what to do instead).
OWNED_ENVIRONMENT: dict[str, tuple[str, str]] = {
    "VLLM_API_KEY": (
        "the engine would refuse the gateway's requests; keys are checked by the gateway",
        "use fleet keys create",
    ),
    "CUDA_VISIBLE_DEVICES": (
        "the deploy gives the engine its GPUs, in an order by their links",
        "set engine.gpus",
    ),
    "CUDA_DEVICE_ORDER": (
        "the deploy gives the engine its GPUs, in an order by their links",
        "set engine.gpus",
    ),
    "VLLM_HOST_IP": ("the engine's processes talk inside their own network namespace", "remove it"),
    "VLLM_PORT": ("the engine's processes talk inside their own network namespace", "remove it"),
    "HF_TOKEN": ("the engine downloads nothing", "set model.token"),
    "VLLM_SERVER_DEV_MODE": (
        "it opens paths that reset, pause and reconfigure the engine to every client",
        "remove it",
    ),
    "VLLM_ALLOW_INSECURE_SERIALIZATION": (
        "it lets a message to the engine run code",
        "remove it",
    ),
    # What templates/units/engine-sandbox.inc sets so that nothing is fetched and nothing reported.
    **dict.fromkeys(
        ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"),
        ("the engine downloads nothing", "remove it"),
    ),
    **dict.fromkeys(
        (
            "VLLM_NO_USAGE_STATS",
            "VLLM_DO_NOT_TRACK",
            "DO_NOT_TRACK",
            "HF_HUB_DISABLE_TELEMETRY",
            "RAY_USAGE_STATS_ENABLED",
        ),
        ("the engine reports nothing", "remove it"),
    ),
    **dict.fromkeys(
        ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE"),
        (_ONLY_THE_LOCK, "remove it, and add the package to the lock file (runtime.lock)"),
    ),
    "LD_AUDIT": ("it loads code into the engine that is in no lock file", "remove it"),
}

# engine.env is part of a release: a file that every user of the host may read, kept for rollbacks.
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|APIKEY|KEY|KEY_ID)$", re.IGNORECASE
)
# Beginnings by which hubs and services mark their tokens, and a password in a URL.
_SECRET_VALUE = re.compile(
    r"^(?:hf_|sk-|ms-|ghp_|glpat-|AKIA)[A-Za-z0-9_-]{16,}|^[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]+@"
)
_WHY_REFUSED = (
    "would be readable by every user of the host: engine.env is written into the release as it is"
)

# execve(2): one string, NAME=value and its NUL, is at most MAX_ARG_STRLEN (32 pages, 128 KiB).
_MOST_BYTES = 131_071
# Arguments and environment together get a quarter of the stack, 2 MiB of the usual 8 MiB.
_MOST_BYTES_OF_ALL = 1_048_576

# Lists of files or directories, with what separates them. A relative one is looked for in the
# engine's working directory; a shell's $PATH is not replaced by anybody.
_PATHS = {"PATH": ":", "LD_LIBRARY_PATH": ":", "LD_PRELOAD": "[: ]"}


def check_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment as it is. Raises one pydantic error for all wrong names."""
    found = {name: _wrong(name, str(value)) for name, value in environment.items()}
    if wrong := {name: reason for name, reason in found.items() if reason is not None}:
        raise refuse_each(wrong)
    size = sum(_size_bytes(name, value) + 1 for name, value in environment.items())
    if size > _MOST_BYTES_OF_ALL:
        raise refuse(
            f"is {size} bytes in all, and at most {_MOST_BYTES_OF_ALL} are safe: Linux starts no "
            "program with more than its stack allows.",
            "put long values into a file that the engine reads.",
        )
    return environment


def doubtful_environment(environment: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Variable -> (what may go wrong, what to do about it), of those that are allowed."""
    doubts = {}
    if "LD_PRELOAD" in environment:
        doubts["LD_PRELOAD"] = (
            "loads a library into every process of the engine that is in no lock file: another "
            "host, or this one after apt upgrade, may have another one.",
            "fine for the allocators that vLLM advises for CPUs; else remove it.",
        )
    path = environment.get("LD_LIBRARY_PATH")
    # NVIDIA's packages for newer CUDA on older drivers are found by this way alone.
    if path is not None and "compat" not in path:
        doubts["LD_LIBRARY_PATH"] = (
            "goes before the libraries of the locked runtime: the engine may load another CUDA or "
            "NCCL than the lock file names.",
            "remove it, unless the directory has no library that the runtime has too.",
        )
    path = environment.get("PATH")
    if path is not None and "/usr/bin" not in path.split(":"):
        doubts["PATH"] = (
            "takes the place of the whole PATH, and has no /usr/bin: the compilers that build "
            "kernels at the engine's start are not found.",
            f"append it: {path}:/usr/bin:/bin",
        )
    return doubts


def _wrong(name: str, value: str) -> tuple[str, str] | None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return (
            "is not the name of an environment variable.",
            "letters, digits and underscores, not beginning with a digit.",
        )
    if name in OWNED_ENVIRONMENT:
        why, instead = OWNED_ENVIRONMENT[name]
        return f"is not set here: {why}.", f"{instead}."
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
        return (
            f"looks like a secret, and {_WHY_REFUSED}.",
            "remove it: the engine downloads nothing and calls nobody; a hub's token is "
            "model.token, clients' keys are made by fleet keys create.",
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        return "has half a character (a surrogate), which no file can hold.", "write it whole."
    if (size := _size_bytes(name, value)) > _MOST_BYTES:
        return (
            f"is {size} bytes with its name, and Linux starts no program with more than "
            f"{_MOST_BYTES} in one variable.",
            "put it into a file that the engine reads.",
        )
    return _wrong_paths(name, value)


def _wrong_paths(name: str, value: str) -> tuple[str, str] | None:
    if name not in _PATHS:
        return None
    for path in re.split(_PATHS[name], value):
        if not path.startswith("/"):
            return (
                f'has "{path}", which is no absolute path: it would be looked for where the engine '
                "happens to be started, and variables such as $PATH are not replaced here.",
                "write each path whole, from / on, and none empty.",
            )
    return None


def _size_bytes(name: str, value: str) -> int:
    return len(f"{name}={value}".encode("utf-8", "surrogatepass"))
