"""What settings alone ask for: environments and their names, users, directories, the pull."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pyinfra_deploy.planning import host_plan, wanted
from tests.unit.planning import worlds

UV = "/srv/llm/tools/uv-1/bin/uv"


def runtime(lock: str = worlds.LOCK, **change: Any) -> wanted.Environment:
    return wanted.runtime_environment(worlds.settings_with({"runtime": change}), lock, UV)


def test_a_runtimes_job_is_all_that_the_host_needs_to_know() -> None:
    made = runtime(
        index_url="https://mirror.example.com/simple",
        extra_index_urls=["https://more.example.com"],
        find_links=["https://wheels.example.com"],
        pip_args=["--no-cache"],
    )
    assert made.label == "vLLM 0.33.0"
    assert made.name == f"vllm-0.33.0-{made.digest[:12]}"
    assert made.path == f"/srv/llm/runtimes/{made.name}"
    assert made.job == {
        "path": made.path,
        "python": "/usr/bin/python3.11",
        "requirements": wanted.requirements(worlds.LOCK),
        "installer": "uv",
        "uv": UV,
        "index_url": "https://mirror.example.com/simple",
        "extra_index_urls": ["https://more.example.com"],
        "find_links": ["https://wheels.example.com"],
        "pip_args": ["--no-cache"],
        "files": {},
        "commands": ["vllm"],
        "bytes_needed": 19 * 1024**3,
    }


@pytest.mark.parametrize(
    ("lock", "same"),
    [
        (worlds.LOCK, True),
        ("# other words\n" + worlds.LOCK + "\n   # indented\n\n", True),
        (worlds.LOCK.replace("\n", "   \n"), True),
        (worlds.LOCK.replace("0.33.0", "0.33.1"), False),
        (worlds.LOCK + "x==1 --hash=sha256:00\n", False),
    ],
)
def test_only_requirements_make_another_environment(lock: str, same: bool) -> None:
    assert (runtime(lock).name == runtime().name) is same


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"python": "3.12"}, False),
        ({"index_url": "https://mirror.example.com/simple"}, True),
        ({"installer": "pip"}, True),
        ({"device": "cpu"}, True),
    ],
)
def test_where_packages_come_from_does_not(change: dict[str, Any], same: bool) -> None:
    assert (runtime(**change).name == runtime().name) is same


def test_the_gateways_code_is_part_of_its_environment() -> None:
    settings = worlds.settings_with()

    def made(**sources: str) -> wanted.Environment:
        return wanted.gateway_environment(settings, "a==1", sources, "/usr/bin/python3.11", UV)

    assert made(a="1", b="2").name == made(b="2", a="1").name
    names = {made(a="1").name, made(a="2").name, made(b="1").name, made(a="1", b="").name}
    assert len(names) == 4
    assert made(a="1").job["files"] == {"a": "1"}


def test_no_two_environments_share_a_directory() -> None:
    settings = worlds.settings_with()
    made = worlds.environments(settings, worlds.artefacts_with(settings)).values()
    for one, other in itertools.combinations(made, 2):
        assert one.path != other.path
    assert next(iter(made)).job["installer"] == "pip"  # uv cannot install itself


@pytest.mark.parametrize(
    ("record", "missing"), [({"name": "x"}, False), ({"error": "not JSON"}, True), (None, True)]
)
def test_an_environment_counts_by_its_record(record: Any, missing: bool) -> None:
    environment = runtime()
    assert wanted.missing(environment, {environment.path: record}) is missing
    assert wanted.missing(environment, {})


def test_a_hub_id_is_one_path_component() -> None:
    settings = worlds.settings_with()
    assert wanted.model_slug(settings) == "Qwen--Qwen3-32B"
    assert wanted.model_directory(settings) == "/srv/llm/models/Qwen--Qwen3-32B/master"


def test_the_pull_names_the_tokens_file_and_never_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyinfra_deploy.settings.secret import plain_secret

    settings = worlds.settings_with()
    assert wanted.pull_job(settings, "/srv/llm/tools/m")["token_file"] is None
    assert settings.model is not None
    with_token = settings.model_copy(
        update={"model": settings.model.model_copy(update={"token": plain_secret("hunter2")})}
    )
    job = wanted.pull_job(with_token, "/srv/llm/tools/m")
    assert job == {
        "model_id": "Qwen/Qwen3-32B",
        "revision": "master",
        "endpoint": "https://www.modelscope.cn",
        "hub": "modelscope",
        "target": "/srv/llm/models",
        "client": "/srv/llm/tools/m/bin/modelscope",
        "files_at_once": 4,
        "file_timeout_seconds": 86400,
        "stall_timeout_seconds": 900,
        "accept": [],
        "proxy": None,
        "no_proxy": [],
        "token_file": "hub-token",
    }
    assert "hunter2" not in repr(job)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"gpu"}, ["llm-http", "llm", "llm-build", "llm llm-http", "llm video", "llm render"]),
        ({"gateway"}, ["llm-http", "llm", "llm-build", "llm llm-http", "llm-gateway",
                       "llm-gateway llm-http", "www-data llm-http"]),
    ],
)  # fmt: skip
def test_users_and_their_groups(groups: set[str], expected: list[str]) -> None:
    lines = [line.split() for line in wanted.sysusers(frozenset(groups)).splitlines()]
    found = [" ".join(words[1:3]) if words[0] == "m" else words[1] for words in lines]
    assert found == expected
    # sysusers.d(5): type, name, ID, and for a user a description and a home that is none.
    for words in lines:
        assert words[0] in ("g", "u", "m")
        assert words[0] != "u" or (words[2] == "-" and words[-1] == "/nonexistent")


def test_directories_are_made_from_the_top_and_secrets_are_roots_alone() -> None:
    found = wanted.directories("/data/llm")
    seen: set[str] = {"/data", "/etc"}
    for path in found:
        assert path.rsplit("/", 1)[0] in seen
        seen.add(path)
    for path in ("/etc/llm/credentials", "/etc/llm/tls", "/data/llm/state"):
        mode, owner, group = found[path]
        assert (int(mode, 8) & 0o007, owner, group) == (0, "root", "root")
    # Key files and links lie here: who builds environments must not be able to replace them.
    assert found["/data/llm/gateway"] == ("0755", "root", "root")
    lines = wanted.tmpfiles("/data/llm").splitlines()
    assert "d /data/llm/models 0755 llm-build llm-build -" in lines
    assert lines[-1] == "d /run/llm/drain 0755 root root -"
    assert len(lines) == len(found) + 2


@pytest.mark.parametrize(
    ("system", "python"),
    [(("debian", "12"), "3.11"), (("debian", "13"), "3.13"), (("ubuntu", "24.04"), "3.12")],
)
def test_tools_run_on_the_distributions_own_python(system: tuple[str, str], python: str) -> None:
    snapshot = {"os": dict(zip(("id", "version_id"), system, strict=True))}
    assert wanted.tools_python(snapshot) == f"/usr/bin/python{python}"


def test_where_pip_installs_no_host_needs_uv() -> None:
    settings = worlds.settings_with({"runtime": {"installer": "pip"}})
    artefacts = worlds.artefacts_with(settings)
    plan = host_plan.plan_host("gpu01", worlds.ALL, settings, worlds.untouched(), artefacts)
    assert "install uv" not in plan.reasons()
    built = (*plan.tools, plan.runtime, plan.gateway_environment)
    assert [one.job["installer"] for one in built if one is not None] == ["pip"] * 3
    # Who installs is no part of what is installed: nothing is rebuilt for it.
    other = worlds.settings_with()
    by_uv = host_plan.plan_host("gpu01", worlds.ALL, other, worlds.untouched(), artefacts)
    assert by_uv.runtime is not None
    assert plan.runtime is not None
    assert by_uv.runtime.path == plan.runtime.path
