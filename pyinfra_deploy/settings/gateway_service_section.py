"""The settings of the gateway service, which counts in gateway.mode full: what it admits, who goes
first, how it finds engines. All have defaults that need no thought; docs/gateway-service.md."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pyinfra_deploy.settings.kinds import ParameterName, Seconds
from pyinfra_deploy.settings.section import LENIENT, Section, required, setting

Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Maximum(Section):
    """The largest number that a parameter of a request may have."""

    parameter: ParameterName = required(
        "The parameter. max_tokens stands for max_completion_tokens and max_output_tokens too, and "
        "is set where a request has none of them.",
        "max_tokens",
    )
    most: float = required("What it may be at most.", 4096, ge=0, le=1_000_000_000)


class Admission(Section):
    """What a request has to be before an engine sees it."""

    allowed_parameters: Annotated[tuple[ParameterName, ...], LENIENT] | None = setting(
        None,
        "Parameters that requests may have beside model, messages, prompt, input, instructions, "
        "stream, stream_options and user; others are refused (400). null: any.",
        ["temperature", "top_p", "max_tokens", "stop", "tools", "tool_choice"],
    )
    maxima: Annotated[tuple[Maximum, ...], LENIENT] = setting(
        (), "Largest numbers of parameters.", [{"parameter": "max_tokens", "most": 4096}]
    )
    count_tokens: bool = setting(
        True,
        "Whether the engine counts a prompt's tokens first: one that leaves no room is then "
        "refused (413) with the limit, the count and how much to cut.",
        True,
    )
    count_timeout_seconds: int = setting(
        5, "How long the count may take; then the request is admitted without.", 5, ge=1, le=60
    )
    body_timeout_seconds: int = setting(
        30, "How long a request's body may take to arrive.", 30, ge=1, le=600
    )


class Tier(Section):
    """Classes of keys (fleet keys create --tier NAME)."""

    name: ParameterName = required("What keys name it by.", "interactive")
    weight: int = setting(
        100,
        "Its share of the engine where requests wait, compared with the others' weights. None "
        "gets less than 5 percent.",
        100,
        ge=1,
        le=1_000_000,
    )
    priority: int = setting(
        0,
        "Its priority at an engine with args: {scheduling-policy: priority}; smaller goes first.",
        0,
        ge=-1_000_000,
        le=1_000_000,
    )


class Queue(Section):
    """Where requests wait that the engines have no place for."""

    max_waiting: int = setting(
        256,
        "How many may wait for one model; beyond it the lowest tier is refused (503). 0: none.",
        256,
        ge=0,
        le=100_000,
    )
    max_wait_seconds: int = setting(
        60, "How long one may wait before it is refused (503).", 60, ge=1, le=80
    )


class Affinity(Section):
    """Conversations that begin alike to the same engine, whose cache then has the beginning. Only
    where a gateway has several engines."""

    prefix_bytes: int = setting(
        0, "How many bytes of the beginning are compared. 0: off.", 2048, ge=0, le=1_000_000
    )
    balance_percent: int = setting(
        125,
        "How much work the preferred engine may have, in percent of the engines' mean, before "
        "another one gets the request.",
        125,
        ge=100,
        le=1_000,
    )


class Health(Section):
    """How the service finds out whether an engine lives. One that failed gets no requests until it
    has answered a small completion."""

    interval_seconds: int = setting(
        15,
        "How long an engine may be unheard of before a completion of one token is asked for. 0: "
        "requests alone tell.",
        15,
        ge=0,
        le=3_600,
    )
    timeout_seconds: int = setting(10, "How long that may take.", 10, ge=1, le=600)
    failures: int = setting(
        3, "Failures in a row after which an engine gets no requests.", 3, ge=1, le=100
    )
    open_seconds: int = setting(5, "How long it then gets none, at first.", 5, ge=1, le=600)
    max_open_seconds: int = setting(
        10, "How long at most, as the time doubles with each failed try.", 10, ge=1, le=3_600
    )


StopSeconds = Annotated[Seconds, Field(le=3_600)]
