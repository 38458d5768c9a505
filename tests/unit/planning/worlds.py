"""Settings, what the control machine brings along, and snapshots of hosts, to plan from.

A snapshot has the shape of files/fleet_host/snapshot.py's document, made from one request for each
thing a role needs: an untouched Debian host, and the same host after a whole deploy.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyinfra_deploy.deploys.artefacts import units_of
from pyinfra_deploy.planning import (
    engine_care,
    gateway_config,
    gateway_plan,
    host_files,
    host_plan,
    model_care,
    nginx,
    wanted,
)
from pyinfra_deploy.planning.artefacts import Artefacts
from pyinfra_deploy.planning.host_care import started_with
from pyinfra_deploy.planning.release import digest_of, digest_of_text
from pyinfra_deploy.settings.schema import Settings

NOW = datetime(2026, 11, 30, 8, tzinfo=UTC)
HOST = "gpu01"
ALL = frozenset({"gpu", "gateway", "prod"})
MODEL_DIGEST = "d" * 64
PROGRAM_DIGEST = "a" * 64
KEYS_SERIAL = 7
CA_SUBJECT = "Fleet prod CA"
LOCK = "# made by hand\nvllm==0.33.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"

CARED_FOR = ("llm-watch@main.service", model_care.TIMER)

SETTINGS: dict[str, Any] = {
    "runtime": {
        "vllm": "0.33.0",
        "lock": "locks/runtime/vllm-0.33.0-cu130-py312-linux_x86_64.txt",
        "python": "3.11",
    },
    "model": {"id": "Qwen/Qwen3-32B"},
    "engine": {"args": {"max-model-len": 16384, "tensor-parallel-size": 8}, "env": {"A": "1"}},
    "gateway": {"server_name": "llm.example.com"},
}


def merged(base: Any, change: Any) -> Any:
    """`base` with the leaves of `change`; a mapping {"=": value} replaces instead of merging.

    What is not changed is shared, so neither is to be changed afterwards.
    """
    if isinstance(change, dict) and set(change) == {"="}:
        return change["="]
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}


def settings_with(change: dict[str, Any] | None = None) -> Settings:
    return Settings.model_validate(merged(SETTINGS, change or {}))


def artefacts_with(settings: Settings, **change: Any) -> Artefacts:
    known: dict[str, Any] = {
        "program_digest": PROGRAM_DIGEST,
        "units": units_of(settings),
        "uv_lock": "uv==0.13.9 --hash=sha256:00\n",
        "modelscope_lock": "modelscope==1.40.2 --hash=sha256:00\n",
        "gateway_lock": "uvicorn==0.40.0 --hash=sha256:00\n",
        "gateway_sources": {"app/llm_gateway/app.py": "x = 1\n"},
        "runtime_lock": LOCK,
        "keys_serial": KEYS_SERIAL,
        "ca_subject": CA_SUBJECT,
        "now": NOW,
    }
    return Artefacts(**(known | change))


def untouched(groups: frozenset[str] = ALL) -> dict[str, Any]:
    """A fresh Debian 12 with nothing of ours on it."""
    users: dict[str, Any] = dict.fromkeys(wanted.service_users(groups))
    units = {
        name: unit(active="inactive", enabled="", load="not-found") for name in units_of_roles()
    }
    return {
        "format": 1,
        "os": {
            "id": "debian",
            "id_like": None,
            "version_id": "12",
            "codename": "bookworm",
            "arch": "x86_64",
            "python": "3.11.2",
            "pythons": ["/usr/bin/python3.11"],
            "systemd": "252",
            "systemd_running": True,
            "nginx": None,
            "nginx_openssl": None,
            "ipv6": True,
            "is_root": True,
        },
        "packages": {"python3": "3.11.2-1+b1", "ca-certificates": "20230311"},
        "users": users,
        "files": {},
        "units": units,
        "sysctl": {"vm.max_map_count": {"live": 65530, "assignments": [], "sysctl_conf": []}},
        "disk": {"llm_root": {"path": "/", "free_bytes": 500 * 1024**3}},
        "state": {
            "program_digest": None,
            "schema_version": None,
            "generation": 0,
            "lease": None,
            "manifest_digest": None,
        },
        "environments": {},
        "models": {},
        "engines": {"main": {"current": None, "previous": None, "releases": {}, "started": None,
                             "golive": None, "socket": False, "draining": False}},
        "gateway": {"current": None, "started": None, "keys_serial": None, "certificate": None,
                    "nginx_loaded": None, "socket": False, "service_socket": False,
                    "configuration": None},
        "listeners": [listener(22, "sshd", "ssh.service")],
        "memory": {"total_bytes": 512 * 1024**3, "available_bytes": 500 * 1024**3},
        "cpus": 64,
        "gpus": {"nvidia_smi": True, "exit_code": 0, "lines": []},
    }  # fmt: skip


def units_of_roles() -> list[str]:
    return ["llm-engine@main.service", "llm-golive@main.service", "llm-gateway.service",
            "llm-gateway.socket", "nginx.service"]  # fmt: skip


def unit(**change: Any) -> dict[str, Any]:
    return {"load": "loaded", "active": "active", "sub": "running", "enabled": "enabled",
            "result": "success", "main_pid": 7, "invocation_id": "i", "restarts": 0,
            "need_reload": False, **change}  # fmt: skip


def listener(port: int, process: str | None, unit_name: str | None = None) -> dict[str, Any]:
    address = "0.0.0.0"  # noqa: S104 - a text in a snapshot
    return {"proto": "tcp", "address": address, "port": port, "pid": 9, "process": process,
            "unit": unit_name}  # fmt: skip


def environments(settings: Settings, artefacts: Artefacts) -> dict[str, wanted.Environment]:
    """Every environment of a host in both groups, by what it is."""
    python = "/usr/bin/python3.11"
    uv = wanted.uv_environment(settings, artefacts.uv_lock, python)
    program = f"{uv.path}/bin/uv"
    return {
        "uv": uv,
        "client": wanted.modelscope_environment(
            settings, artefacts.modelscope_lock, python, program
        ),
        "runtime": wanted.runtime_environment(settings, artefacts.runtime_lock, program),
        "gateway": wanted.gateway_environment(
            settings, artefacts.gateway_lock, artefacts.gateway_sources, python, program
        ),
    }


def release_of(settings: Settings, artefacts: Artefacts) -> str:
    """The ID of the release that the settings ask for, its model having been pulled."""
    assert settings.runtime is not None
    pythons = {"os": {"pythons": [f"/usr/bin/python{settings.runtime.python}"]}}
    plan = host_plan.plan_host(HOST, ALL, settings, merged(untouched(), pythons), artefacts)
    assert plan.release is not None
    return plan.release.id_with(MODEL_DIGEST)


def seen_file(file: wanted.ManagedFile) -> dict[str, Any]:
    return {"mode": file.mode, "owner": file.owner, "group": file.group, "sha256": file.sha256,
            "size": len(file.content)}  # fmt: skip


def beside_the_engine(settings: Settings, artefacts: Artefacts) -> dict[str, Any]:
    """The configurations of watch and log that are wanted, and what they were started with."""
    files = {}
    for kind, text in engine_care.configurations(settings).items():
        if text is not None:
            path = engine_care.configuration_path(kind, "main")
            stamp = started_with(artefacts.units[f"{kind}@.service"].content, text)
            files[path] = seen_file(wanted.ManagedFile(path, text))
            files[f"/run/{kind}-main/started"] = seen_file(wanted.ManagedFile("", stamp))
    return files


def converged(settings: Settings, artefacts: Artefacts) -> dict[str, Any]:
    """The host in both groups after a deploy with these settings, serving."""
    made = environments(settings, artefacts)
    files: dict[str, Any] = {
        path: {"mode": mode, "owner": owner, "group": group, "sha256": None, "directory": True}
        for path, (mode, owner, group) in wanted.directories(settings.llm_root).items()
    }
    for file in host_files.managed_files(ALL, settings, artefacts):
        files[file.path] = seen_file(file)
    files |= beside_the_engine(settings, artefacts)
    verify = model_care.configuration(settings)
    if verify is not None:
        timer = artefacts.units[model_care.TIMER]
        for file in (timer, wanted.ManagedFile(model_care.CONFIGURATION, verify)):
            files[file.path] = seen_file(file)
    snapshot = untouched()
    system = {**snapshot["os"], "nginx": "1.22.1", "nginx_openssl": "3.0.15"}
    rendered = gateway_plan.nginx_files(settings, system)
    for path, text in rendered.files.items():
        files[path] = seen_file(wanted.ManagedFile(path, text))
    files[nginx.STOCK_SITE] = None
    release = release_of(settings, artefacts)
    assert settings.model is not None
    gateway_name = made["gateway"].name
    configuration = gateway_config.service_text(ALL, settings, ()) or ""
    done: dict[str, Any] = {
        "os": system,
        "packages": dict.fromkeys(wanted.packages(ALL, settings, snapshot), "1"),
        "users": {
            "llm": {"uid": 991, "groups": ["llm", "llm-http", "render", "video"]},
            "llm-build": {"uid": 992, "groups": ["llm-build"]},
            "llm-gateway": {"uid": 993, "groups": ["llm-gateway", "llm-http"]},
            "www-data": {"uid": 33, "groups": ["llm-http", "www-data"]},
        },
        "files": files,
        "units": {name: unit() for name in (*units_of_roles(), *CARED_FOR)}
        | {"llm-golive@main.service": unit(active="inactive", enabled="static")},
        "sysctl": {
            "vm.max_map_count": {
                "live": 1048576,
                "assignments": [
                    {"file": "/etc/sysctl.d/90-llm.conf", "line": 1, "value": "1048576"}
                ],
            }
        },
        "state": {
            "program_digest": PROGRAM_DIGEST,
            "schema_version": 1,
            "generation": 4,
            "verified": {
                "release": release,
                "binding": digest_of_text(""),
                "gateway": gateway_name,
                "shape": "full",
                "configuration": digest_of_text(configuration),
                "nginx": digest_of(dict(rendered.files)),
                "certificate": "c" * 64,
            },
        },
        "environments": {environment.path: {"name": "x"} for environment in made.values()},
        "models": {
            wanted.model_slug(settings): {
                settings.model.revision: {
                    "record": {"model_digest": MODEL_DIGEST},
                    "intact": True,
                    "problems": [],
                }
            }
        },
        "engines": {
            "main": {
                "current": release,
                "releases": {release: {"id": release}},
                "started": {"release": release, "binding": digest_of_text("")},
                "golive": {"phase": "done", "to": release},
                "golive_asked": release,
                "socket": True,
            }
        },
        "gateway": {
            "current": gateway_name,
            "started": {"environment": gateway_name, "shape": "full"},
            "configuration": digest_of_text(configuration),
            "service_socket": True,
            "keys_serial": KEYS_SERIAL,
            "certificate": {
                "sans": ["llm.example.com"],
                "issuer": CA_SUBJECT,
                "not_after": "Nov 30 07:02:26 2027 GMT",
                "fingerprint": "c" * 64,
            },
            "nginx_loaded": digest_of(dict(rendered.files)),
            "socket": True,
        },
        "listeners": [
            listener(22, "sshd", "ssh.service"),
            listener(80, "nginx", "nginx.service"),
            listener(443, "nginx", "nginx.service"),
        ],
    }
    result: dict[str, Any] = merged(snapshot, done)
    return result


CASES = sorted((Path(__file__).parent / "cases").glob("*.yml"))
