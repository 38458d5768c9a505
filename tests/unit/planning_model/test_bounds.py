"""Findings about models and memory on both sides of where they begin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyinfra_deploy.planning.engine_choice import read_choice
from pyinfra_deploy.planning.gpu_memory import Range
from pyinfra_deploy.planning.memory import MemoryBudget, budget
from pyinfra_deploy.planning.memory_rules import memory_findings
from pyinfra_deploy.planning.model_config import read_model
from pyinfra_deploy.planning.parallelism import check_choice
from tests.unit.planning_model import shapes
from tests.unit.planning_model.shapes import h100, ids, l20, shape


def left(low: float, high: float, known: bool) -> MemoryBudget:
    """A budget with room for so many requests; known: what one needs is."""
    args = {"max-model-len": 4096, "tensor-parallel-size": 8}
    choice, _ = read_choice(args)
    found = budget(shape(shapes.QWEN3_32B), l20()[0], choice.layout, choice, "0.33.0")
    assert found is not None
    assert found.request_bytes
    one = found.request_bytes
    room = Range(low * one, (low + high) / 2 * one, high * one)
    return replace(found, available=room, cache=found.cache if known else None)


@pytest.mark.parametrize(
    ("low", "high", "known", "found"),
    [
        (1, 3, True, set()),
        (0.999, 3, True, {("memory.context-may-not-fit", "warn")}),
        (0.2, 1, True, {("memory.context-may-not-fit", "warn")}),
        (0.2, 0.999, True, {("memory.context-does-not-fit", "refuse")}),
        (-0.1, 0, True, {("memory.weights-do-not-fit", "refuse")}),
        # A cache of which no size is known.
        (0.001, 3, False, set()),
        (0, 3, False, {("memory.tight", "warn")}),
        (-0.1, 0, False, {("memory.weights-do-not-fit", "refuse")}),
    ],
)
def test_what_is_left_and_what_a_request_needs(
    low: float, high: float, known: bool, found: set[tuple[str, str]]
) -> None:
    said = memory_findings(left(low, high, known), "h1")
    assert {(one.id, one.severity) for one in said} == found
    assert all(one.fix and one.evidence for one in said)


@pytest.mark.parametrize(
    ("version", "args", "warned"),
    [
        ("0.7.3", {}, False),
        ("0.8.0", {}, True),
        ("0.8.5.post1", {}, True),
        ("0.8.5", {"enforce-eager": True}, False),
        ("0.9.0", {}, False),
        (None, {}, False),
    ],
)
def test_versions_that_ran_out_of_memory(
    version: str | None, args: dict[str, Any], warned: bool
) -> None:
    asked = {"tensor-parallel-size": 8, "max-model-len": 4096, **args}
    _, found = check_choice(shape(shapes.QWEN3_32B), h100(8), asked, version)
    assert ("memory.early-v1" in ids(found, "warn")) == warned


@pytest.mark.parametrize(
    ("method", "warned"),
    [("ngram", False), ("eagle3", False), ("mtp", False), ("draft_model", True), ("dflash", True)],
)
def test_drafts_of_which_nothing_is_known(method: str, warned: bool) -> None:
    args = {"tensor-parallel-size": 8, "max-model-len": 4096,
            "speculative-config": {"method": method, "num_speculative_tokens": 2}}  # fmt: skip
    _, found = check_choice(shape(shapes.DEEPSEEK_V3), h100(16), args, "0.33.0")
    assert ("memory.draft-unknown" in ids(found, "warn")) == warned


@pytest.mark.parametrize(
    ("count", "architecture", "identity", "severity"),
    [
        (128, "Qwen3MoeForCausalLM", None, None),
        (130, "Qwen3MoeForCausalLM", "parallel.experts-uneven", "warn"),
        (8, "Qwen3MoeForCausalLM", None, None),
        (7, "Qwen3MoeForCausalLM", "parallel.experts", "refuse"),
        (130, "DeepseekV4ForCausalLM", "parallel.experts", "refuse"),
        (130, "Qwen9MoeForCausalLM", "parallel.experts-uneven", "warn"),
    ],
)
def test_whole_experts_on_eight_gpus(
    count: int, architecture: str, identity: str | None, severity: str | None
) -> None:
    config = {**shapes.QWEN3_235B, "num_experts": count, "architectures": [architecture]}
    args = {"tensor-parallel-size": 8, "enable-expert-parallel": True, "max-model-len": 1024}
    _, found = check_choice(shape(config), h100(8), args, "0.33.0")
    said = [(one.id, one.severity) for one in found if one.id.startswith("parallel.experts")]
    assert said == ([(identity, severity)] if identity else [])


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, set()),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, {"model.cache-unknown"}),
        ({"vocab_size": None}, {"model.shape-incomplete"}),
        ({"intermediate_size": None}, {"model.shape-incomplete"}),
    ],
)
def test_what_a_configuration_leaves_open(changes: dict[str, Any], found: set[str]) -> None:
    config = {**shapes.QWEN3_32B, **changes}
    config = {key: value for key, value in config.items() if value is not None}
    about = {"model.cache-unknown", "model.shape-incomplete"}
    assert ids(tuple(read_model(config).findings), "warn") & about == found


@pytest.mark.parametrize(
    ("index", "listing", "said"),
    [
        ({"metadata": {"total_size": 65}, "weight_map": {"a": "a.safetensors"}}, None, 0),
        (["no index"], None, 1),
        ({"metadata": {"total_size": 65}}, None, 1),
        ({"metadata": {"total_size": 65}, "weight_map": {"a": 5}}, None, 1),
        (None, {"a.safetensors": 5}, 0),
        (None, "no listing", 1),
        (None, ["no entry"], 1),
    ],
)
def test_documents_that_are_in_no_known_form(index: Any, listing: Any, said: int) -> None:
    found = read_model(shapes.QWEN3_32B, index, listing, "h1")
    assert [one.id for one in found.findings].count("model.file-unreadable") == said
