"""What a release has to pass between its first answer and its first client: golden prompts, then a
soak with an error budget. Asked at the engine's socket, while nobody else is let in.

What fails here is an UnhealthyError like that of an engine that does not start, so there is one way
back (golive.go_back).
"""

from __future__ import annotations

import json
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import engine, fields, probe
from .errors import SpecError
from .health import UnhealthyError, death, log_of

if TYPE_CHECKING:
    from .status import Progress

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Between two questions of a soak: with one at a time an engine is hardly loaded by them.
PAUSE_SECONDS = 1.0
SHOWN_CHARACTERS = 200

Figures = dict[str, Any]


@dataclass(frozen=True)
class Golden:
    """A question, and the texts that its answer has to contain, as they are written."""

    prompt: str
    must_contain: tuple[str, ...]
    max_tokens: int
    chat: bool


@dataclass(frozen=True)
class Gates:
    """answer_seconds: how long each answer may take. error_budget: the share of the soak's
    questions that may go without one, 0 to 1."""

    golden: tuple[Golden, ...]
    answer_seconds: float
    soak_seconds: float
    error_budget: float
    pause_seconds: float


def read_gates(spec: dict[str, Any]) -> Gates | None:
    """The spec's `gates`, null or absent: none. SpecError."""
    asked = spec.get("gates")
    if asked is None:
        return None
    if not isinstance(asked, dict):
        raise SpecError("the spec's 'gates' is no object", f"it is {asked!r}.", "Correct it.")
    budget = asked.get("error_budget", 0)
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget < 1:
        raise SpecError(
            f"the gates' 'error_budget' is {budget!r}", "it is a share, 0 to 1.", "Correct it."
        )
    return Gates(
        golden=tuple(_golden(one) for one in asked.get("golden") or ()),
        answer_seconds=fields.seconds(asked, "answer_seconds"),
        soak_seconds=float(fields.whole(asked, "soak_seconds", 0)),
        error_budget=float(budget),
        pause_seconds=fields.seconds(asked, "pause_seconds", PAUSE_SECONDS),
    )


def _golden(one: Any) -> Golden:
    if not isinstance(one, dict):
        raise SpecError("a golden prompt is no object", f"it is {one!r}.", "Correct it.")
    return Golden(
        prompt=fields.text(one, "prompt"),
        must_contain=tuple(fields.texts(one, "must_contain")),
        max_tokens=fields.whole(one, "max_tokens", 64),
        chat=one.get("chat", True) is True,
    )


def passed(
    name: str,
    unit: str,
    wanted: probe.Probe,
    gates: Gates,
    progress: Progress,
    since_epoch_seconds: float,
) -> Figures:
    """{golden: [{prompt, seconds}], soak: {asked, failed, median_seconds, slowest_seconds,
    seconds} or null}. UnhealthyError at the first gate that is not passed."""
    invocation = engine.unit_state(unit)["InvocationID"]
    try:
        golden = [_ask_golden(name, wanted.model, one, gates, progress) for one in gates.golden]
        soaked = _soak(name, unit, wanted, gates, progress, invocation)
    except _NotPassedError as failure:
        shown = engine.unit_state(unit)
        lines = log_of(unit, [invocation, shown["InvocationID"]], since_epoch_seconds)
        raise UnhealthyError(str(failure), lines) from failure
    return {"golden": golden, "soak": soaked}


class _NotPassedError(Exception):
    """A gate was not passed; the text is the cause, one sentence."""


def _ask_golden(
    name: str, model: str, golden: Golden, gates: Gates, progress: Progress
) -> dict[str, Any]:
    shown = golden.prompt[:60]
    progress.phase("golden prompts", message=shown)
    body: dict[str, Any] = {"model": model, "max_tokens": golden.max_tokens, "temperature": 0}
    if golden.chat:
        body["messages"] = [{"role": "user", "content": golden.prompt}]
    else:
        body["prompt"] = golden.prompt
    began = time.monotonic()
    try:
        status, answer = probe.request(
            engine.socket_path(name), "POST", CHAT if golden.chat else COMPLETIONS, body,
            gates.answer_seconds,
        )  # fmt: skip
    except probe.NotReadyError as error:
        raise _NotPassedError(
            f"The golden prompt {shown!r} was not answered within rollout.answer_seconds = "
            f"{gates.answer_seconds:g}: {error}."
        ) from error
    seconds = time.monotonic() - began
    text = _text_of(status, answer, shown)
    missing = [part for part in golden.must_contain if part not in text]
    if missing:
        raise _NotPassedError(
            f"The golden prompt {shown!r} was answered {text[:SHOWN_CHARACTERS]!r}, without "
            f"{', '.join(map(repr, missing))}."
        )
    return {"prompt": shown, "seconds": round(seconds, 3)}


def _text_of(status: int, answer: bytes, shown: str) -> str:
    said = answer[:SHOWN_CHARACTERS].decode("utf-8", "replace")
    if status != 200:
        raise _NotPassedError(f"The golden prompt {shown!r} was answered {status}: {said}")
    try:
        choice = json.loads(answer)["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise _NotPassedError(
            f"The golden prompt {shown!r} was answered with no completion: {said}"
        ) from error
    # null: everything went into the reasoning, or into a call of a tool.
    return text if isinstance(text, str) else ""


def _soak(
    name: str,
    unit: str,
    wanted: probe.Probe,
    gates: Gates,
    progress: Progress,
    invocation: str,
) -> dict[str, Any] | None:
    if gates.soak_seconds == 0:
        return None
    progress.phase("soaking", total=gates.soak_seconds, unit="s", message="one question a second")
    # So many questions fit in at the most: what may fail of them is known before they are asked.
    planned = max(1, math.ceil(gates.soak_seconds / gates.pause_seconds))
    began, taken, asked, failed, last = time.monotonic(), [], 0, 0, ""
    while (elapsed := time.monotonic() - began) < gates.soak_seconds:
        _refuse_death(unit, invocation)
        asked += 1
        asking = time.monotonic()
        try:
            probe.completion(engine.socket_path(name), wanted, gates.answer_seconds)
            taken.append(time.monotonic() - asking)
        except (probe.NotReadyError, probe.RejectedError) as error:
            failed, last = failed + 1, str(error)
            # systemd hears of a death a moment after its clients.
            time.sleep(gates.pause_seconds)
            _refuse_death(unit, invocation)
        if failed > gates.error_budget * planned:
            raise _over_budget(gates, asked, failed, last)
        progress.advance(round(elapsed, 1), f"{asked} asked, {failed} without an answer")
        left = gates.soak_seconds - (time.monotonic() - began)
        time.sleep(max(0.0, min(gates.pause_seconds, left)))
    _refuse_death(unit, invocation)
    if failed > gates.error_budget * asked:
        raise _over_budget(gates, asked, failed, last)
    return {
        "asked": asked,
        "failed": failed,
        "median_seconds": round(statistics.median(taken), 3) if taken else None,
        "slowest_seconds": round(max(taken), 3) if taken else None,
        "seconds": round(time.monotonic() - began, 1),
    }


def _refuse_death(unit: str, invocation: str) -> None:
    cause = death(unit, engine.unit_state(unit), invocation)
    if cause is not None:
        raise _NotPassedError(f"It died during its soak: {cause}")


def _over_budget(gates: Gates, asked: int, failed: int, last: str) -> _NotPassedError:
    return _NotPassedError(
        f"{failed} of {asked} questions of its soak had no answer within rollout.answer_seconds = "
        f"{gates.answer_seconds:g}, more than rollout.error_budget_percent = "
        f"{100 * gates.error_budget:g} allows; the last one: {last}."
    )
