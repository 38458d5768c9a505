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

# The longest in planning/tables has 45 characters; dotted ones (compilation-config.x.y) more.
_LONGEST_NAME = 100

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


def wrong_argument(key: str, value: Any) -> tuple[str, str] | None:
    """(what is wrong, the fix) for one argument; None when nothing is known against it."""
    return _wrong_key(key) or _wrong_value(key, value)


def _wrong_key(key: str) -> tuple[str, str] | None:
    if len(key) > _LONGEST_NAME:
        return (
            f"is longer than the name of any vLLM argument ({_LONGEST_NAME} characters).",
            "write it like max-model-len; what belongs to it follows after a colon.",
        )
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
    if wrong := _unfit_text(value):
        return wrong
    if value == []:
        return "vLLM silently ignores an empty list in its configuration file.", "remove the line."
    if isinstance(value, str) and re.fullmatch(r"/.*[^/]/+", value):
        # Seen with 0.32.0: a name made of such a path keeps the slash, and no request finds it.
        return "is a path with a slash at its end.", f"write {value.rstrip('/')}"
    if allowed := wrong_for(key, value):
        return f"must be {allowed}.", _example(key, value)
    return None


def _unfit_text(value: Any) -> tuple[str, str] | None:
    """Text at any depth, keys too, that no argument of a program and no file can hold."""
    if isinstance(value, str):
        if "\0" in value:
            return "has a NUL character, at which an argument ends.", "remove it: \\0."
        if any("\ud800" <= character <= "\udfff" for character in value):
            return "has half a character (a surrogate), which no file can hold.", "write it whole."
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next((wrong for item in value if (wrong := _unfit_text(item))), None)
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
