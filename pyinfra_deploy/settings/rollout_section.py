# ruff: noqa: TC001 -- pydantic evaluates the annotations
"""The settings of a rollout: what a release has to pass on a host before it has clients."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import field_validator

from pyinfra_deploy.settings.kinds import OneLine, Seconds
from pyinfra_deploy.settings.section import LENIENT, Section, required, setting


class GoldenPrompt(Section):
    """Questions whose answers are known, asked at temperature 0 on each host before it serves."""

    prompt: str = required("The question.", "What is the capital of France?", min_length=1)
    must_contain: Annotated[tuple[OneLine, ...], LENIENT] = required(
        "Texts that the answer has to contain, each of them, as they are written here. One alone "
        "needs no list.",
        ["Paris"],
        min_length=1,
    )
    max_tokens: int = setting(
        64,
        "How long the answer may be. A model that reasons first needs room for that.",
        64,
        ge=1,
        le=32_768,
    )
    chat: bool = setting(
        True, "true: as a chat message. false: as a text to complete, for a base model.", True
    )

    @field_validator("must_contain", mode="before")
    @classmethod
    def _one_alone(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Rollout(Section):
    """`fleet rollout` and `fleet rollback` ask this of a release on each host, while no client is
    let in; a release that does not pass goes back. docs/rollout.md."""

    golden_prompts: Annotated[tuple[GoldenPrompt, ...], LENIENT] = setting(
        (),
        "Questions with the answers they must contain.",
        [{"prompt": "What is the capital of France?", "must_contain": ["Paris"]}],
    )
    answer_seconds: Seconds = setting(
        30,
        "How long any of these answers may take, each question of the soak too (4 tokens).",
        30,
    )
    soak_seconds: int = setting(
        60,
        "Time for which the release is asked a question a second before it serves. It must not die "
        "in it. On a single host this is part of the downtime. 0: no soak.",
        60,
        ge=0,
        le=86_400,
    )
    error_budget_percent: int = setting(
        0, "How many of the soak's questions may go without an answer in time.", 1, ge=0, le=50
    )
