"""What another release would make different."""

from __future__ import annotations

from typing import Any

import pytest

from pyinfra_deploy.planning.differences import release_differences

LIVE: dict[str, Any] = {
    "current": "r1",
    "releases": {"r1": {"vllm": "0.32.0", "model": "/m/a", "model_digest": "1" * 64}},
    "configuration": "max-model-len: 1024\nmodel: /m/a\nseed: 2\n",
    "environment": 'A="1"\nB="x y"',
}
AFTER: dict[str, Any] = {
    "vllm": "0.33.0",
    "model": "/m/a",
    "model_digest": "2" * 64,
    "configuration": "max-model-len: 2048\nmodel: /m/b\nno-enable-prefix-caching: true\n",
    "environment": 'A="1"\nC="3"\n',
}


def test_each_value_that_differs_is_a_line() -> None:
    assert release_differences(LIVE, AFTER) == [
        "vLLM: 0.32.0 -> 0.33.0",
        "the model's files: 111111111111 -> 222222222222",
        "--max-model-len: 1024 -> 2048",
        "--no-enable-prefix-caching: (not set) -> True",
        "--seed: 2 -> (not set)",
        "B: x y -> (not set)",
        "C: (not set) -> 3",
    ]


def test_another_lock_with_the_same_vllm_is_told() -> None:
    kept = {"vllm": "0.33.0", "model": "/m/a", "runtime": "/srv/llm/runtimes/vllm-0.33.0-aaaa"}
    live = {**LIVE, "releases": {"r1": kept}}
    after = {"vllm": "0.33.0", "model": "/m/a", "runtime": "/srv/llm/runtimes/vllm-0.33.0-bbbb"}
    assert release_differences(live, after) == [
        "runtime (packages, Python): vllm-0.33.0-aaaa -> vllm-0.33.0-bbbb"
    ]
    assert release_differences(live, {**after, "runtime": kept["runtime"]}) == []


def test_another_model_is_one_line() -> None:
    after = {**AFTER, "model": "/m/b", "vllm": "0.32.0"}
    assert release_differences(LIVE, after)[:2] == ["model: /m/a -> /m/b", (
        "--max-model-len: 1024 -> 2048"
    )]  # fmt: skip


@pytest.mark.parametrize("engine", [None, {}, {"current": None}])
def test_where_nothing_is_live(engine: Any) -> None:
    assert release_differences(engine, AFTER) == ["nothing is live yet"]


def test_what_is_not_known_is_no_difference() -> None:
    bare = {"current": "r1", "releases": {}}
    found = release_differences(bare, {**AFTER, "vllm": None, "model": None, "model_digest": None})
    assert found == []
    broken = {**LIVE, "configuration": "a: [", "environment": None}
    assert release_differences(broken, {**AFTER, "model_digest": None}) == [
        "vLLM: 0.32.0 -> 0.33.0"
    ]


def test_long_values_are_cut() -> None:
    after = {"configuration": f"max-model-len: 1024\nseed: {'9' * 300}\n"}
    (line,) = release_differences(LIVE, after)
    assert len(line) < 150
    assert line.endswith("...")
