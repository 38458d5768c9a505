"""`engine.args`: arguments of `vllm serve`, and which of them are not for the operator to set.

Whether the pinned vLLM knows a flag is decided from its own source later; here only what is wrong
with every version. The arguments end up in vLLM's YAML configuration file.
"""

from __future__ import annotations

import re
from typing import Any

from pyinfra_deploy.settings.kinds import refuse_each

_KEY = re.compile(r"[a-z0-9][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*(?:\.[A-Za-z0-9_-]+)*")

_SOCKET = "the engine listens on a Unix socket only, and Nginx in front of it has the ports"
_TLS = "TLS ends at Nginx"
_SERVES_HTTP = "the gateway and the checks speak HTTP with the completions of OpenAI's API"
_ONE_HOST = "an engine runs on one host, in a network of its own that has only loopback"
_NO_EGRESS = "nothing of the engine reaches any network but loopback"
# argument -> (why it is not yours, what to set instead)
OWNED: dict[str, tuple[str, str]] = {
    "host": (_SOCKET, "remove it"),
    "port": (_SOCKET, "set gateway.https_port"),
    "uds": (_SOCKET, "remove it"),
    "root-path": (_SOCKET, "remove it"),
    "model": ("the model is pulled and verified before the engine starts", "set model.id"),
    "model-tag": ("the model is pulled and verified before the engine starts", "set model.id"),
    "revision": ("the model is a verified directory on the host", "set model.revision"),
    "code-revision": ("the model is a verified directory on the host", "set model.revision"),
    "tokenizer-revision": ("the model is a verified directory on the host", "set model.revision"),
    "download-dir": ("the engine downloads nothing", "set llm_root to move the models"),
    "hf-token": ("the engine downloads nothing", "set model.token"),
    "served-model-name": (
        "the gateway and the checks have to know the name too",
        "set engine.served_model_name",
    ),
    "api-key": (
        "keys are checked by the gateway, and vLLM's would show in the process list",
        "use fleet keys create",
    ),
    "config": ("this file is what is written from engine.args", "put its lines into engine.args"),
    "allowed-origins": ("CORS is answered by Nginx", "set gateway.cors_origins"),
    "allowed-methods": ("CORS is answered by Nginx", "set gateway.cors_origins"),
    "allowed-headers": ("CORS is answered by Nginx", "set gateway.cors_origins"),
    "allow-credentials": ("CORS is answered by Nginx", "set gateway.cors_origins"),
    "device-ids": ("the deploy gives the engine its GPUs, in order", "set engine.gpus"),
    "shutdown-timeout": (
        "it has to fit the unit's own time limit",
        "set engine.drain_seconds",
    ),
    "grpc": (_SERVES_HTTP, "remove it"),
    "grpc-port": (_SERVES_HTTP, "remove it"),
    "headless": (_SERVES_HTTP, "remove it"),
    "tokens-only": (_SERVES_HTTP, "remove it"),
    **dict.fromkeys(
        (
            "nnodes",
            "node-rank",
            "master-addr",
            "master-port",
            "data-parallel-address",
            "data-parallel-rpc-port",
            "data-parallel-rank",
            "data-parallel-start-rank",
            "data-parallel-external-lb",
            "data-parallel-hybrid-lb",
            "data-parallel-multi-port-external-lb",
            "data-parallel-supervisor-port",
        ),
        (_ONE_HOST, "remove it; tensor-parallel-size and data-parallel-size stay within the host"),
    ),
    "otlp-traces-endpoint": (_NO_EGRESS, "remove it; /metrics is read from the host"),
    "tool-server": (
        f"{_NO_EGRESS}, and its demo runs code that the model writes",
        "remove it; let the client call tools",
    ),
}

# Environment variables that would undo what the product does.
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
    "HF_HUB_OFFLINE": ("the engine downloads nothing", "remove it"),
    "VLLM_NO_USAGE_STATS": ("the engine reports nothing", "remove it"),
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

_COUNT = "a whole number, at least 1"
_COUNTS = (
    "max-num-seqs",
    "max-num-batched-tokens",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "block-size",
    "max-logprobs",
)
_SIZES = ("swap-space", "cpu-offload-gb")
_DTYPES = ("auto", "bfloat16", "float16", "float32", "half", "float")


def check_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without those set to null. Raises one pydantic error for all wrong keys."""
    found = {key: wrong_argument(key, value) for key, value in arguments.items()}
    if wrong := {key: reason for key, reason in found.items() if reason is not None}:
        raise refuse_each(wrong)
    return {key: value for key, value in arguments.items() if value is not None}


def check_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment as it is. Raises one pydantic error for all wrong names."""
    wrong = {}
    for name in environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            wrong[name] = (
                "is not the name of an environment variable.",
                "letters, digits and underscores, not beginning with a digit.",
            )
        elif name in OWNED_ENVIRONMENT:
            why, instead = OWNED_ENVIRONMENT[name]
            wrong[name] = (f"is not set here: {why}.", f"{instead}.")
        elif _SECRET_NAME.search(name) or _SECRET_VALUE.search(str(environment[name])):
            wrong[name] = (
                f"looks like a secret, and {_WHY_REFUSED}.",
                "remove it: the engine downloads nothing and calls nobody; a hub's token is "
                "model.token, clients' keys are made by fleet keys create.",
            )
    if wrong:
        raise refuse_each(wrong)
    return environment


def wrong_argument(key: str, value: Any) -> tuple[str, str] | None:
    """(what is wrong, the fix) for one argument; None when nothing is known against it."""
    return _wrong_key(key) or _wrong_value(key, value)


def _wrong_key(key: str) -> tuple[str, str] | None:
    plain = key.lstrip("-")
    if "." not in plain:
        plain = plain.replace("_", "-")
    if key != plain and _KEY.fullmatch(plain):
        return (
            "arguments are written without leading dashes, and with dashes for underscores.",
            f"write {plain}",
        )
    if not _KEY.fullmatch(key):
        return "is not the name of a vLLM argument.", "write it like max-model-len."
    base = key.removeprefix("no-")
    if base in OWNED:
        why, instead = OWNED[base]
        return f"is not set here: {why}.", f"{instead}."
    if base.startswith("ssl-"):
        return f"is not set here: {_TLS}.", "set gateway.tls."
    return None


def _wrong_value(key: str, value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    if value is False:
        # Seen with 0.32.0: a false in vLLM's YAML file is dropped without a word.
        opposite = key.removeprefix("no-") if key.startswith("no-") else f"no-{key}"
        return (
            "vLLM silently ignores false in its configuration file.",
            f"write {opposite}: true, or remove the line if that is the default anyway.",
        )
    if not isinstance(value, bool | int | float | str | list | dict):
        return "must be text, a number, true, a list or a mapping.", "put it in quotes."
    if value == []:
        return "vLLM silently ignores an empty list in its configuration file.", "remove the line."
    if isinstance(value, str) and re.fullmatch(r"/.*[^/]/+", value):
        # Seen with 0.32.0: a name made of such a path keeps the slash, and no request finds it.
        return "is a path with a slash at its end.", f"write {value.rstrip('/')}"
    if allowed := wrong_for(key, value):
        return f"must be {allowed}.", _example(key, value)
    return None


def wrong_for(key: str, value: Any) -> str | None:
    """What is allowed, when `value` is not; None when nothing is known against it."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if key == "gpu-memory-utilization":
        fine = number is not None and 0 < number <= 1
        return None if fine else "a share of each GPU's memory: above 0, at most 1"
    if key == "max-model-len":
        human = isinstance(value, str) and re.fullmatch(r"[1-9][0-9]*[kKmM]", value)
        fine = bool(human) or (isinstance(number, int) and number > 0)
        return None if fine else "a number of tokens, at least 1 (16384, or 16k)"
    if key in _COUNTS:
        return None if isinstance(number, int) and number > 0 else _COUNT
    if key in _SIZES:
        return None if number is not None and number >= 0 else "a number of GiB, at least 0"
    if key == "dtype":
        return None if value in _DTYPES else "one of " + ", ".join(_DTYPES)
    return None


def _example(key: str, value: Any) -> str:
    if key == "gpu-memory-utilization" and isinstance(value, int | float) and 1 < value <= 100:
        return f"write {value / 100:g} if {value} per cent was meant."
    if isinstance(value, str) and value.isdigit():
        return f"remove the quotes: {value}"
    return ""
