# ruff: noqa: TC001 -- pydantic evaluates the annotations
"""The settings: every key, what it may be, its default and what it means.

The single source of validation, of docs/settings.md (`fleet settings docs`) and of what the error
messages call allowed. Keys are documented in the operator's words; units are in their names.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import field_validator

from pyinfra_deploy.settings.ansible_section import Ansible as Ansible
from pyinfra_deploy.settings.ansible_section import Hooks as Hooks
from pyinfra_deploy.settings.engine_section import Engine as Engine
from pyinfra_deploy.settings.fan_out_section import FanOut as FanOut
from pyinfra_deploy.settings.gateway_section import Gateway as Gateway
from pyinfra_deploy.settings.gateway_section import RateLimit as RateLimit
from pyinfra_deploy.settings.gateway_section import Tls as Tls
from pyinfra_deploy.settings.kinds import (
    DataPath,
    FindingId,
    HostAddress,
    HostPattern,
    ModelId,
    OneLine,
    PackageName,
    ProxyException,
    RepositoryPath,
    Revision,
    Seconds,
    Url,
    refuse,
)
from pyinfra_deploy.settings.rollout_section import Rollout as Rollout
from pyinfra_deploy.settings.runtime_section import Runtime as Runtime
from pyinfra_deploy.settings.secret import Secret
from pyinfra_deploy.settings.section import LENIENT, Section, required, setting


class AcceptedFinding(Section):
    """Findings that are accepted with open eyes: a refusal becomes a warning, which stays visible
    with its reason until its last day; after that it refuses again."""

    id: FindingId = required(
        "Id of the finding, as the plan prints it in brackets; `fleet findings show ID` explains "
        "it.",
        "gpu.pcie-width",
    )
    hosts: Annotated[tuple[HostPattern, ...], LENIENT] = setting(
        (), "Hosts it is accepted for, * and ? allowed. Empty: all that have this.", ["gpu01"]
    )
    reason: OneLine = required(
        "Why it is accepted, for whoever reads the plan next.", "slot 3 is repaired in January"
    )
    until: datetime.date = required("Last day on which it is accepted.", datetime.date(2027, 1, 31))
    by: OneLine = required("Who accepted it.", "Ada Lovelace")


class FanPoint(Section):
    """Points of the curve that GPU fans follow; between two of them, the line between them."""

    temperature_c: int = required("Temperature of the GPU, in Celsius.", 60, ge=20, le=95)
    percent: int = required("Speed of its fans, in percent.", 70, ge=20, le=100)


DEFAULT_CURVE = tuple(
    FanPoint(temperature_c=degrees, percent=percent)
    for degrees, percent in ((40, 40), (60, 70), (75, 100))
)


class GpuHost(Section):
    """Kernel and process limits of an engine host, and the hardware it is to have."""

    max_map_count: int = setting(
        1_048_576,
        "Lower bound of vm.max_map_count (memory mappings a process may have). Only ever raised: "
        "a host that has more keeps it, whatever file set it.",
        1_048_576,
        ge=65_530,
        le=2_147_483_647,
    )
    open_files: int = setting(
        1_048_576,
        "Open files the engine may have (LimitNOFILE of its unit).",
        1_048_576,
        ge=1_024,
        le=1_073_741_816,
    )
    expected_gpus: int | None = setting(
        None,
        "GPUs each host has to show; fewer are refused. null: as many as the engine's "
        "tensor, pipeline and data parallel sizes multiply to.",
        8,
        ge=1,
        le=64,
    )
    expected_gpu_model: OneLine | None = setting(
        None,
        "Product name that every GPU has to have, as nvidia-smi -L prints it. null: any, as long "
        "as all are the same.",
        "NVIDIA L20",
    )
    expected_pcie_width: Literal[1, 2, 4, 8, 16] | None = setting(
        None,
        "PCIe lanes each GPU has to have under load; fewer are refused. What the card reports as "
        "its maximum does not show a bad slot. null: what is known of the model, and x4 or less "
        "is refused.",
        16,
    )


class Model(Section):
    """The model: where it is pulled from and at which revision."""

    id: ModelId = required("The model on the hub, as owner/name.", "Qwen/Qwen3-235B-A22B-FP8")
    revision: Revision = setting(
        "master",
        "Branch, tag or commit to pull. The commit it stands for at that moment is recorded.",
        "master",
    )
    hub: Literal["modelscope"] = setting("modelscope", "Which hub's protocol.", "modelscope")
    endpoint: Url = setting(
        "https://www.modelscope.cn",
        "The hub's address, or that of a mirror inside your network.",
        "https://www.modelscope.cn",
    )
    token: Secret | None = setting(
        None,
        "Token of the hub, for private models. A secret: encrypted with ansible-vault "
        "encrypt_string, or from the environment.",
        "{{ lookup('env', 'MODELSCOPE_API_TOKEN') }}",
    )
    lock: RepositoryPath | None = setting(
        None,
        "Lock file that `fleet model lock` has written: every file with its size and SHA-256. "
        "Hosts then take the model for right only if it is the locked one to the byte, and `fleet "
        "plan` asks no hub. null: what the hub lists at the moment of the pull. docs/models.md.",
        "locks/models/Qwen--Qwen3-235B-A22B-FP8/master.json",
    )
    signed_by: Annotated[tuple[RepositoryPath, ...], LENIENT] = setting(
        (),
        "Public keys, or certificates of an authority, in the repository: the lock has to be "
        "signed with one of them (`fleet model sign`), else it is refused. Empty: no signature is "
        "asked for. docs/models.md.",
        ["keys/models.pub"],
    )
    accept: Annotated[tuple[Literal["pickle", "code"], ...], LENIENT] = setting(
        (),
        "What else than safetensors a model may bring. pickle: weights as .bin or .pt, which run "
        "code when they are loaded. code: files that the engine runs with trust-remote-code.",
        ["code"],
    )
    variant: Literal["bf16", "fp16", "fp8", "int8", "awq", "gptq", "mxfp4", "nvfp4"] | None = (
        setting(
            None,
            "Precision of the weights you mean to serve, checked against the model's config.json. "
            "null: whatever model.id holds, with a warning if that is quantised.",
            "fp8",
        )
    )
    quantization_accepted_for: OneLine | None = setting(
        None,
        "Where the weights are quantised: the use that they were tried and accepted for.",
        "support chat, compared with bf16 on 500 answers",
    )
    fitness: Literal["required", "off"] = setting(
        "required",
        "required: before a model first goes live with a runtime, its tokenizer is examined on the "
        "host by that runtime's transformers: files, vocabulary, special tokens, chat template, "
        "texts that must come back as they were. off: it is served unexamined. docs/models.md.",
        "required",
    )
    files_at_once: int = setting(4, "Files pulled at the same time.", 4, ge=1, le=32)
    file_timeout_seconds: Seconds = setting(
        86_400, "Longest time for a single file, retries included, before the pull fails.", 86_400
    )
    stall_timeout_seconds: Seconds = setting(
        900, "Time without a new byte after which the pull counts as stuck and fails.", 900
    )

    proxy: Url | None = setting(
        None,
        "HTTP proxy through which hosts pull models: http://proxy:3128. A name or password in it "
        "is refused, as anybody on the host could read it: let the proxy know the hosts by their "
        "addresses. null: what a drop-in of llm-pull@.service says, and nothing without one.",
        "http://proxy.example.com:3128",
    )
    no_proxy: Annotated[tuple[ProxyException, ...], LENIENT] = setting(
        (),
        "Hosts that are asked without model.proxy: names, domains (.example.com), addresses.",
        [".example.com"],
    )

    @field_validator("lock")
    @classmethod
    def _json(cls, value: str | None) -> str | None:
        if value is not None and not value.endswith(".json"):
            raise refuse("must end in .json: the small files lie beside it, without that ending.")
        return value

    verify_every_days: int | None = setting(
        30,
        "How old a host lets the last verification of a model become: every byte of it is then "
        "read from the disk again and compared, in the background at low priority. What is damaged "
        "is named, and mended by the next deploy. null: only when `fleet model verify` asks.",
        30,
        ge=1,
        le=3650,
    )

    fan_out: FanOut = setting(FanOut(), "Getting the model from other hosts.", {"enabled": True})

    @field_validator("endpoint")
    @classmethod
    def _without_slash(cls, value: str) -> str:
        return value.rstrip("/")


class Settings(Section):
    """All settings of a host. runtime and model are None where a host is no gpu host and has none,
    gateway where it is no gateway."""

    llm_root: DataPath = setting(
        "/srv/llm",
        "Directory on the host for environments, models and releases. Put it on a disk with room "
        "for two models.",
        "/srv/llm",
    )
    storage_address: HostAddress | None = setting(
        None,
        "The host's own address on a network for bulk data, where it has one: other hosts get "
        "models from it there. A host variable. null: its address in the inventory.",
        "10.20.0.11",
    )
    gpu_driver: Literal["check", "hold", "install"] = setting(
        "check",
        "What the deploy does about the NVIDIA driver. check: judges it. hold: also keeps its "
        "packages from unattended upgrades, which would break running engines. install: also "
        "installs it where it is missing, on a drained host, and reboots where another driver is "
        "loaded than installed; docs/driver.md.",
        "hold",
    )
    gpu_driver_packages: Annotated[tuple[PackageName, ...], LENIENT] = setting(
        (),
        "With gpu_driver: install, packages that each host is to have, from the apt sources that "
        "it has; none is added. Empty: the distribution's own driver, on hosts that have none.",
        ["linux-headers-amd64", "cuda-drivers-580"],
    )
    gpu_cooling: Literal["report", "nvml", "bmc"] = setting(
        "report",
        "What is done about fans. report: nothing, the plan tells who cools the GPUs. nvml: fans "
        "of the GPUs themselves, by a unit that gives them back when it stops. bmc: fans of the "
        "chassis, on boards that are known.",
        "report",
    )
    gpu_fan_curve: Annotated[tuple[FanPoint, ...], LENIENT] = setting(
        DEFAULT_CURVE,
        "With gpu_cooling: nvml, how fast the fans run. It must rise, and end at 100 percent.",
        [{"temperature_c": 50, "percent": 50}, {"temperature_c": 70, "percent": 100}],
        min_length=1,
    )
    chassis_fan_percent: int = setting(
        100,
        "With gpu_cooling: bmc, the fixed speed of the chassis' fans. Below 100 they follow no "
        "temperature any more, so measure under load first.",
        100,
        ge=50,
        le=100,
    )
    accept_findings: Annotated[tuple[AcceptedFinding, ...], LENIENT] = setting(
        (),
        "Findings that are accepted, each with a reason and a last day.",
        [
            {
                "id": "gpu.pcie-width",
                "hosts": ["gpu01"],
                "reason": "slot 3 is repaired in January",
                "until": datetime.date(2027, 1, 31),
                "by": "Ada Lovelace",
            }
        ],
    )
    allowed_licenses: Annotated[tuple[OneLine, ...], LENIENT] = setting(
        (),
        "Licences that a model may have, as its lock names them, * and ? allowed; others are "
        "refused, and so is a model whose licence is not known. Empty: any.",
        ["apache-2.0", "mit"],
    )
    gpu_host: GpuHost = setting(GpuHost(), "Limits of an engine host.", {})
    runtime: Runtime | None = setting(None, "Required for the group gpu.", {})
    model: Model | None = setting(None, "Required for the group gpu.", {})
    engine: Engine = setting(Engine(), "The engine.", {})
    gateway: Gateway | None = setting(None, "Required for the group gateway.", {})
    rollout: Rollout = setting(Rollout(), "What a rollout asks of a release.", {})
    ansible: Ansible = setting(Ansible(), "Playbooks of your own.", {})
    hooks: Hooks = setting(Hooks(), "Commands on the operator's machine.", {})

    @property
    def served_model_name(self) -> str:
        """The model's name in the API. Raises ValueError on a host that serves none."""
        if self.engine.served_model_name:
            return self.engine.served_model_name
        if self.model is None:
            raise ValueError("no model is set for this host")
        return self.model.id
