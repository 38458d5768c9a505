# ruff: noqa: TC001 -- pydantic evaluates the annotations
"""The settings of an engine."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from pyinfra_deploy.settings.engine_arguments import check_arguments
from pyinfra_deploy.settings.engine_environment import check_environment
from pyinfra_deploy.settings.kinds import (
    EnvironmentValue,
    GpuChoice,
    ModelName,
    Seconds,
    Slug,
)
from pyinfra_deploy.settings.section import Section, setting


class Watch(Section):
    """A completion of one token now and then; an engine that answers none, three times in a row,
    and gets nothing else done either, hangs: it is killed, and systemd starts it again."""

    enabled: bool = setting(True, "Whether the engine is watched.", True)
    interval_seconds: int = setting(60, "Time between two looks.", 60, ge=5, le=3_600)
    answer_seconds: int = setting(
        60,
        "How long an answer may take. A full queue may take longer: as long as other requests get "
        "on, that is no hang.",
        60,
        ge=1,
        le=3_600,
    )


class LogFile(Section):
    """The log as a file, which never takes more than max_mb * (keep + 1)."""

    max_mb: int = setting(100, "Size in MB at which a new file is begun.", 100, ge=1, le=10_000)
    keep: int = setting(5, "Old files that are kept: NAME.log.1 is the newest.", 5, ge=1, le=100)


class Engine(Section):
    """One `vllm serve` process group on a host."""

    name: Slug = setting(
        "main", "Name of the engine: of its unit, llm-engine@NAME, and its directories.", "main"
    )
    served_model_name: ModelName | None = setting(
        None, "The model's name in the API. null: model.id.", "qwen3-235b"
    )
    args: dict[str, Any] = setting(
        {},
        "Arguments of `vllm serve`, without the dashes in front. Flags are true; what is null is "
        "left out. host, port, uds, model, served-model-name, api-key, config, ssl-* and a few "
        "more are the product's own and refused with the setting to use instead.",
        {"max-model-len": 16384},
    )
    env: dict[str, EnvironmentValue] = setting(
        {},
        "Environment variables of the engine. Not for secrets: they are part of the release and "
        "readable on the host.",
        {"VLLM_LOGGING_LEVEL": "DEBUG"},
    )
    gpus: GpuChoice = setting(
        "all",
        "GPUs the engine may have; it takes as many as its parallel sizes multiply to, those that "
        "are nearest to each other. Numbers as nvidia-smi -L prints them, or UUIDs, which belong "
        "into host_vars.",
        [0, 1, 2, 3],
    )
    keep_releases: int = setting(
        3,
        "Releases kept on a host, the running one and the one before it among them; older ones are "
        "removed at the end of a deploy that changed something.",
        3,
        ge=2,
        le=100,
    )
    numa: Literal["auto", "off"] = setting(
        "auto",
        "auto: an engine whose GPUs lie on one of several NUMA nodes is bound to the CPUs and the "
        "memory of that node. off: nothing is bound.",
        "auto",
    )
    start_timeout_seconds: Seconds | None = setting(
        None,
        "Longest time from start to the first real answer. null: from the size of the model, 15 "
        "minutes and what reading it at 100 MB/s takes, at least half an hour.",
        3_600,
    )
    stall_timeout_seconds: Seconds = setting(
        600, "A start without a new log line and without CPU time for that long has failed.", 600
    )
    drain_seconds: Seconds = setting(
        120, "Time that running streams get to end before the engine is stopped.", 120
    )

    proof: Literal["required", "off"] = setting(
        "required",
        "required: a release that is new on a host is tried there, in the engine's sandbox, before "
        "anything is switched: torch, driver, the planned GPUs, a product on each, vLLM, the "
        "model's architecture. off: it is switched to unproven.",
        "required",
    )
    watch: Watch = setting(Watch(), "Finds an engine that hangs.", {"interval_seconds": 60})
    log_file: LogFile | None = setting(
        None,
        "The engine's log as a file too, /var/log/llm/NAME.log. null: in the journal alone, where "
        "it is in any case.",
        {"max_mb": 100, "keep": 5},
    )

    @field_validator("args")
    @classmethod
    def _arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        return check_arguments(value)

    @field_validator("env")
    @classmethod
    def _environment(cls, value: dict[str, str]) -> dict[str, str]:
        return check_environment(value)
