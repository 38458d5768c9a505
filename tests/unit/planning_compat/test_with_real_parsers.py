"""The tables of arguments against the parsers of two real vLLMs, as these printed themselves: what
tests/vllm_parser.py's PROGRAM printed. tests/hosts and tests/soak ask the installed ones anew."""

from __future__ import annotations

from typing import Any

import pytest

from tests import vllm_parser

RECORDED = {"0.28.0": 362, "0.32.0": 406}


@pytest.mark.parametrize(("version", "count"), RECORDED.items())
def test_the_tables_do_not_disagree_with_the_parser(version: str, count: int) -> None:
    parser = vllm_parser.recorded(version)
    assert len(parser) == count
    assert vllm_parser.with_tables(version, parser) == []


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("max-model-len", None, "max-model-len: only in the table"),
        ("brand-new", {"kind": "value", "choices": None, "default": "1"}, "only in the parser"),
        ("max-model-len", {"kind": "switch", "choices": None, "default": "None"}, "switch in the"),
        ("max-model-len", {"kind": "value", "choices": None, "default": "7"}, "default None in"),
        ("swap-space", {"kind": "value", "choices": None, "default": "4"}, "swap-space: gone by"),
    ],
)
def test_a_disagreement_is_seen(name: str, change: dict[str, Any] | None, said: str) -> None:
    parser = vllm_parser.recorded("0.32.0")
    if change is None:
        del parser[name]
    else:
        parser[name] = change
    assert any(said in line for line in vllm_parser.with_tables("0.32.0", parser))
