"""What makes a release another one, the engine's configuration, and its environment file."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pyinfra_deploy.planning import host_plan
from pyinfra_deploy.planning.release import (
    digest_of,
    engine_configuration,
    environment_file,
    release_id,
    version_tuple,
)
from tests.unit.planning import worlds


def configuration(arguments: dict[str, Any], vllm: str = "0.33.0") -> dict[str, Any]:
    text = engine_configuration(
        vllm_version=vllm,
        model_path="/srv/llm/models/Qwen--Qwen3-32B/master",
        served_model_name="Qwen/Qwen3-32B",
        arguments=arguments,
        drain_seconds=120,
    )
    document: dict[str, Any] = yaml.safe_load(text)
    return document


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.33.0", (0, 33, 0)),
        ("0.10.1.1+cpu", (0, 10, 1, 1)),
        ("0.11.0rc2", (0, 11, 2)),
        ("0.9.dev1", (0, 9)),
        ("", ()),
    ],
)
def test_versions_are_compared_as_numbers(version: str, expected: tuple[int, ...]) -> None:
    assert version_tuple(version) == expected


def test_the_configuration_names_the_model_its_name_and_the_drain() -> None:
    assert configuration({"max-model-len": 16384}) == {
        "model": "/srv/llm/models/Qwen--Qwen3-32B/master",
        "served-model-name": "Qwen/Qwen3-32B",
        "shutdown-timeout": 120,
        "max-model-len": 16384,
    }


@pytest.mark.parametrize(("vllm", "drains"), [("0.17.1", False), ("0.18.0", True)])
def test_an_older_vllm_is_not_told_of_the_drain(vllm: str, drains: bool) -> None:
    assert ("shutdown-timeout" in configuration({}, vllm)) is drains


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ({"enable-expert-parallel": True}, {"enable-expert-parallel": True}),
        # vLLM ignores `FLAG: false`.
        ({"enable-prefix-caching": False}, {"no-enable-prefix-caching": True}),
        ({"max-num-seqs": None}, {}),
        ({"allowed-origins": ["a", "b"]}, {"allowed-origins": ["a", "b"]}),
        ({"compilation-config": {"b": 1, "a": [2]}}, {"compilation-config": '{"a": [2], "b": 1}'}),
        (
            {"lora-modules": [{"path": "/l", "name": "l"}]},
            {"lora-modules": ['{"name": "l", "path": "/l"}']},
        ),
        ({"dtype": "auto"}, {"dtype": "auto"}),
        # Text that YAML would read as something else stays text.
        ({"revision": "1e5"}, {"revision": "1e5"}),
        ({"quantization": "off"}, {"quantization": "off"}),
    ],
)
def test_arguments_as_vllm_reads_them(argument: dict[str, Any], written: dict[str, Any]) -> None:
    found = configuration(argument)
    for key in ("model", "served-model-name", "shutdown-timeout"):
        del found[key]
    assert found == written


def test_an_environment_file_is_read_back_by_systemds_rules() -> None:
    # systemd.exec(5), EnvironmentFile=: in double quotes, backslash and quote are escaped.
    assert environment_file({"B": 'say "hi"', "A": "a\\b $HOME", "C": ""}) == (
        'A="a\\\\b $HOME"\nB="say \\"hi\\""\nC=""\n'
    )
    assert environment_file({}) == ""


PARTS = {
    "runtime_digest": "r" * 64,
    "model_digest": "m" * 64,
    "configuration": "a: 1\n",
    "environment": 'A="1"\n',
}


def test_an_identity_is_sixteen_hexadecimal_digits_and_does_not_move() -> None:
    # Written down: another value would restart every engine of every fleet.
    assert release_id(**PARTS) == "ab8b195aafd36848"


@pytest.mark.parametrize("part", PARTS)
def test_each_part_makes_another_release(part: str) -> None:
    assert release_id(**{**PARTS, part: PARTS[part] + "x"}) != release_id(**PARTS)


def test_parts_do_not_run_into_each_other() -> None:
    assert release_id(**{**PARTS, "configuration": "ab", "environment": "c"}) != release_id(
        **{**PARTS, "configuration": "a", "environment": "bc"}
    )


def test_a_digest_is_of_the_value_not_of_its_order() -> None:
    assert digest_of({"a": 1, "b": "ü"}) == digest_of({"b": "ü", "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": "1"})
    assert digest_of([1, 2]) != digest_of([2, 1])


def test_a_release_is_the_same_on_every_host() -> None:
    settings = worlds.settings_with()
    artefacts = worlds.artefacts_with(settings)
    identities = set()
    for host, snapshot in {
        "gpu01": worlds.untouched(),
        "gpu02": worlds.converged(settings, artefacts),
        "gpu03": worlds.merged(worlds.untouched(), {"os": {"nginx": "1.26.3"}, "cpus": 8}),
    }.items():
        plan = host_plan.plan_host(host, worlds.ALL, settings, snapshot, artefacts)
        assert plan.release is not None
        identities.add(plan.release.id_with(worlds.MODEL_DIGEST))
    assert len(identities) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"gateway": {"server_name": "other.example.com", "https_port": 8443}},
        {"gpu_host": {"open_files": 4096, "max_map_count": 2097152}},
        {"engine": {"start_timeout_seconds": 60}},
        {"runtime": {"installer": "pip", "pip_args": ["--no-cache"]}},
        {"model": {"endpoint": "https://mirror.example.com", "files_at_once": 1}},
    ],
)
def test_what_the_engine_does_not_see_makes_no_other_release(change: dict[str, Any]) -> None:
    before, after = worlds.settings_with(), worlds.settings_with(change)
    assert worlds.release_of(before, worlds.artefacts_with(before)) == worlds.release_of(
        after, worlds.artefacts_with(after)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"engine": {"args": {"max-model-len": 1}}},
        {"engine": {"env": {"A": "2"}}},
        {"engine": {"served_model_name": "chat"}},
        {"engine": {"drain_seconds": 60}},
        {"model": {"revision": "v2"}},
        {"llm_root": "/data/llm"},
    ],
)
def test_what_the_engine_sees_does(change: dict[str, Any]) -> None:
    before, after = worlds.settings_with(), worlds.settings_with(change)
    assert worlds.release_of(before, worlds.artefacts_with(before)) != worlds.release_of(
        after, worlds.artefacts_with(after)
    )
