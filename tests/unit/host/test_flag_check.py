"""engine.args against what an installed vLLM takes: names, forms, values."""

from __future__ import annotations

from typing import Any

import pytest
from fleet_host.flag_check import deprecated_arguments, spellings, wrong_arguments


def flag(kind: str = "value", type_: str | None = "str", **more: Any) -> dict[str, Any]:
    return {"aliases": [], "kind": kind, "type": type_, "choices": None, "default": None,
            "deprecated": None, **more}  # fmt: skip


FLAGS = {
    "max-model-len": flag(type_="int"),
    "max-num-seqs": flag(type_="int"),
    "gpu-memory-utilization": flag(type_="float", aliases=["device-memory-utilization"]),
    "enable-prefix-caching": flag("boolean", "bool"),
    "disable-log-stats": flag("switch", "bool"),
    "dtype": flag(choices=["auto", "bfloat16"]),
    "served-model-name": flag("values"),
    "levels": flag("values", choices=["high", "low"]),
    "progress": flag("optional"),
    "middleware": flag("repeated"),
    "compilation-config": flag(type_="json"),
    "hf-overrides": flag(type_="json-or-text"),
    "speculative-config": flag(type_=None),
    "old-thing": flag(type_="int", deprecated="Use new-thing."),
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max-model-len", 16384),
        ("max-model-len", "16k"),
        ("max-model-len", "25.6K"),
        ("max-model-len", "auto"),
        ("max-model-len", -1),
        ("gpu-memory-utilization", 0.9),
        ("gpu-memory-utilization", 1),
        ("gpu-memory-utilization", "1e-1"),
        ("device-memory-utilization", 0.9),
        ("enable-prefix-caching", True),
        ("no-enable-prefix-caching", True),
        ("disable-log-stats", True),
        ("dtype", "bfloat16"),
        ("dtype", None),
        ("served-model-name", "m"),
        ("served-model-name", ["m", "n"]),
        ("levels", ["high", "low"]),
        ("progress", True),
        ("progress", "loud"),
        ("middleware", ["one.thing"]),
        ("compilation-config", '{"mode": 3}'),
        ("compilation-config", {"mode": 3}),
        ("compilation-config", '{"bytes": 80m}'),
        ("compilation-config.mode", 3),
        ("hf-overrides", "text"),
        ("speculative-config.model", "/m"),
        ("speculative-config", "anything"),
    ],
)
def test_what_vllm_takes(key: str, value: Any) -> None:
    assert wrong_arguments({key: value}, FLAGS, {}) == []


@pytest.mark.parametrize(
    ("key", "value", "why", "fix"),
    [
        ("max-model-len", "long", "no number", "number"),
        ("max-model-len", 16384.5, "", ""),
        ("gpu-memory-utilization", "90%", "no number", "number"),
        ("max-num-seq", 4, "max-num-seqs cut short", "Write max-num-seqs"),
        ("max-num", 4, "max-num-seqs cut short", "Write max-num-seqs"),
        ("max-numb-seqs", 4, "not an argument", "Nearest: max-num-seqs"),
        ("max", 4, "not an argument", "fleet runtime flags"),
        ("zebra", 4, "no name of it is near", "fleet runtime flags"),
        ("no-disable-log-stats", True, "off unless it is set", "Remove the line"),
        ("no-max-model-len", True, "off unless it is set", "Remove the line"),
        ("enable-prefix-caching", False, "dropped without a word", "no-enable-prefix-caching"),
        ("disable-log-stats", False, "dropped without a word", "Remove the line"),
        ("levels", [], "dropped without a word", "Remove the line"),
        ("disable-log-stats", "yes", "takes no value", "disable-log-stats: true"),
        ("enable-prefix-caching", 1, "takes no value", "enable-prefix-caching: true"),
        ("max-model-len", True, "needs a value", "max-model-len"),
        ("dtype", "bfloat", "none of auto, bfloat16", "Nearest: bfloat16"),
        ("levels", ["high", "mid"], "none of high, low", "one of these"),
        ("dtype", ["auto", "bfloat16"], "takes one value", "one"),
        ("middleware", ["a.b", "c.d"], "takes one value", "one"),
        ("compilation-config", "mode=3", "no JSON", "mapping"),
        ("max-model-len.x", 3, "takes no parts", "max-model-len"),
        ("guided-decoding-backend", "x", "not an argument", "Write structured-outputs-config."),
    ],
)
def test_what_vllm_does_not_take(key: str, value: Any, why: str, fix: str) -> None:
    advice = {"guided-decoding-backend": "Write structured-outputs-config."}
    found = wrong_arguments({key: value}, FLAGS, advice)
    if not why:
        # A fraction is taken as far as it is a number; vLLM's own parser says the rest.
        assert found == []
        return
    (wrong,) = found
    assert wrong.key == key
    assert why in wrong.why
    assert fix in wrong.fix
    assert str(wrong).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("gpu-memory-utilization", "device-memory-utilization"),
        ("enable-prefix-caching", "no-enable-prefix-caching"),
    ],
)
def test_two_names_of_one_argument_are_not_both_taken(first: str, second: str) -> None:
    value = True if "prefix" in first else 0.9
    (wrong,) = wrong_arguments({first: value, second: value}, FLAGS, {})
    assert (wrong.key, first in wrong.why) == (second, True)


def test_parts_of_one_mapping_belong_together() -> None:
    parts = {"compilation-config.mode": 3, "compilation-config.level": 1}
    assert wrong_arguments(parts, FLAGS, {}) == []


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = wrong_arguments({"zebra": 1, "max-model-len": "x", "dtype": "auto"}, FLAGS, {})
    assert [one.key for one in found] == ["zebra", "max-model-len"]


def test_what_is_on_its_way_out_is_taken_and_told() -> None:
    assert wrong_arguments({"old-thing": 1}, FLAGS, {}) == []
    assert deprecated_arguments({"old-thing": 1, "zebra": 1}, FLAGS) == [
        ("old-thing", "Use new-thing.")
    ]


def test_spellings_have_both_forms_of_what_is_on_or_off() -> None:
    names = spellings(FLAGS)
    assert {"no-enable-prefix-caching", "device-memory-utilization"} <= set(names)
    assert "no-disable-log-stats" not in names
