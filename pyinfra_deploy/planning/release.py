"""What an engine runs: the configuration it is started with and the identity of a release."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

# --shutdown-timeout exists from vLLM 0.18.0 on; before it, a SIGTERM aborts running streams
# (observed: streams end with finish_reason "abort").
SHUTDOWN_TIMEOUT_SINCE = (0, 18, 0)


def version_tuple(version: str) -> tuple[int, ...]:
    """(0, 10, 1, 1) of "0.10.1.1+cpu"; parts that are not numbers end it."""
    parts: list[int] = []
    for part in version.split("+", 1)[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits or not part[0].isdigit():
            break
        parts.append(int(digits))
    return tuple(parts)


def engine_configuration(
    *,
    vllm_version: str,
    model_path: str,
    served_model_name: str,
    arguments: Mapping[str, Any],
    drain_seconds: int,
) -> str:
    """The YAML that `vllm serve --config` reads, keys sorted.

    A false boolean becomes `no-FLAG: true`: vLLM ignores `FLAG: false` silently (seen on 0.32.0
    with enable-prefix-caching).
    """
    settings: dict[str, Any] = {"model": model_path, "served-model-name": served_model_name}
    if version_tuple(vllm_version) >= SHUTDOWN_TIMEOUT_SINCE:
        settings["shutdown-timeout"] = drain_seconds
    for key, value in arguments.items():
        if value is None:
            continue
        if value is False:
            settings[f"no-{key}"] = True
        elif isinstance(value, dict):
            # vLLM takes structured values (compilation-config, ...) as JSON text.
            settings[key] = json.dumps(value, sort_keys=True)
        elif isinstance(value, list):
            # vLLM makes text of each item, and Python's text of a mapping is no JSON.
            settings[key] = [
                json.dumps(item, sort_keys=True) if isinstance(item, dict) else item
                for item in value
            ]
        else:
            settings[key] = value
    return _yaml_of(json.dumps(settings))


@cache
def _yaml_of(settings: str) -> str:
    """JSON to YAML; once for all hosts with the same settings, since PyYAML takes milliseconds."""
    return yaml.safe_dump(
        json.loads(settings), sort_keys=True, default_flow_style=False, allow_unicode=True
    )


def environment_file(variables: Mapping[str, str]) -> str:
    """A systemd EnvironmentFile (systemd.exec(5)): one quoted assignment a line, names sorted."""
    lines = []
    for name in sorted(variables):
        escaped = str(variables[name]).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def digest_of_text(text: str) -> str:
    """Hex SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(value: object) -> str:
    """Hex SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest_of_text(text)


def release_id(
    *, runtime_digest: str, model_digest: str, configuration: str, environment: str
) -> str:
    """The release's identity, 16 hex digits, the same on every host that runs the same thing."""
    return digest_of([runtime_digest, model_digest, configuration, environment])[:16]
