"""Real tokenizers, good, odd and damaged, examined by the transformers of a runtime's lock."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import real_transformers, tokenizer_cases

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Case -> {error, seen, steps}: one process for all, as importing transformers takes 2 s."""
    python = real_transformers.python_with_transformers()
    place = tmp_path_factory.mktemp("cases")
    root = real_transformers.REPOSITORY
    done = subprocess.run(
        [python, "-m", "tests.fakes.tokenizer_cases", place],
        env={
            **os.environ,
            "PYTHONPATH": f"{root}:{root / 'files'}",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(place / "huggingface"),
        },
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads((place / "found.json").read_text())
    return answer


def warnings(found: Mapping[str, Any], case: str) -> str:
    assert found[case]["error"] is None, found[case]["error"]
    return "\n".join(found[case]["seen"]["warnings"])


def refusal(found: Mapping[str, Any], case: str) -> str:
    error = found[case]["error"]
    assert error is not None, f"{case} counts as fit"
    return "\n".join([error["what"], error["why"], error["fix"], *error["detail"]])


def test_the_lab_s_model_is_fit_without_a_word(found: dict[str, Any]) -> None:
    assert warnings(found, "good") == ""
    assert found["good"]["seen"]["tokens"] == 1024
    assert found["good"]["steps"][-1] == "texts"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("composes", "its normalizer (NFC) changes text: combining characters (at 0 U+0065 became"),
        ("folds", "its normalizer (NFKC, Lowercase) changes text: plain English"),
        ("added without rows", "1 added tokens have no row in the model ('<|new|>' is 1024"),
        ("no template", "the model has no chat template: /v1/chat/completions refuses"),
        ("no system", "takes no system message: TemplateError: System role not supported"),
        ("tools fail unasked", "does not render the result of a tool call: TypeError"),
    ],
)
def test_what_the_tokenizer_says_of_itself_is_a_warning(
    found: dict[str, Any], case: str, said: str
) -> None:
    assert said in warnings(found, case)


@pytest.mark.parametrize("case", ["byte fallback", "tools", "another template"])
def test_these_are_as_fit(found: dict[str, Any], case: str) -> None:
    assert warnings(found, case) in ("", "its chat template drops system messages without a word")


def test_a_model_that_writes_no_text_needs_none_back(found: dict[str, Any]) -> None:
    assert warnings(found, "embeds") == ""
    assert "texts" not in found["embeds"]["steps"]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("tools fail", "does not render the result of a tool call"),
        ("template broken", "does not render a plain question\nTemplateSyntaxError"),
        ("template drops", "its chat template drops the question"),
        ("end outside", "eos_token_id 5000 of config.json is outside the vocabulary"),
        ("end ordinary", "eos_token_id 700 of config.json is the ordinary token"),
        ("another model's", "its tokenizer has 512 tokens more than the model has rows"),
        ("vocabulary small", "its tokenizer has 1024 tokens, and the model 151936"),
        ("vocabulary cut", "cannot be loaded\nException: Token `"),
        ("merges gone", "its tokenizer's merges are missing"),
        ("merges.txt gone", "the tokenizer's merges.txt is missing"),
        ("cut", "tokenizer.json cannot be read"),
        ("none", "it has no tokenizer"),
        ("decoder gone", "its tokenizer does not give plain English back"),
        ("own code", "set engine.args trust-remote-code: true"),
    ],
)
def test_damage_is_refused_with_its_cause(found: dict[str, Any], case: str, said: str) -> None:
    assert said in refusal(found, case)


def test_the_text_and_what_came_back_are_named(found: dict[str, Any]) -> None:
    said = refusal(found, "decoder gone")
    assert '"The quick brown fox, isn\'t it? (Yes: 42%!)" comes back as "T' in said
    assert "full-width brackets" in said
    assert "With model.fitness: off it is served unexamined." in said


def test_code_of_a_model_is_not_run(found: dict[str, Any]) -> None:
    assert "code of the model ran" not in refusal(found, "own code")


def test_every_case_is_looked_at(found: dict[str, Any]) -> None:
    assert set(found) == {*tokenizer_cases.CASES, "transformers"}
