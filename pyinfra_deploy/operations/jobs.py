"""Long work: started on the host as a systemd job, watched from here by short polls."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gevent
from pyinfra import logger

from pyinfra_deploy.operations.program import (
    ConnectionLost,
    HostRefused,
    call_through_outages,
    report_refusal,
)
from pyinfra_deploy.operations.run import this_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyinfra.api import Host, State

POLL_SECONDS = (0.5, 1.0, 2.0, 3.0, 5.0)
# A host that reboots or loses its network for longer than this is reported; its job goes on.
OUTAGE_PATIENCE_SECONDS = 300.0
PRINT_EVERY_SECONDS = 10.0
# Of those that are being pulled at the same time (model.files_at_once).
SHOWN_FILES = 4
# Units that come at a rate. Of a phase that waits, the seconds pass at one a second.
COUNTED_UNITS = ("bytes", "packages")


def run_job(
    state: State,
    host: Host,
    *,
    kind: str,
    job_id: str,
    spec: Mapping[str, Any],
    llm_root: str,
    step: str,
    renew: Callable[[], None],
) -> dict[str, Any] | None:
    """Start job KIND/ID on the host (or join it when it runs) and wait for its end.

    Returns the job's result, or None when it failed, which has then been reported. `renew` is
    called now and then so that the run's lease does not expire. There is no deadline here: the
    job itself gives up when it makes no progress.
    """
    try:
        return job_result(
            state, host, kind=kind, job_id=job_id, spec=spec, llm_root=llm_root, step=step,
            renew=renew,
        )  # fmt: skip
    except HostRefused as refusal:
        report_refusal(host, step, refusal)
    except ConnectionLost as error:
        host.log_styled(
            f"{step}: the host cannot be reached ({error}); its job llm-{kind}@{job_id} goes on by "
            "itself. Run the same command again when the host is back: it joins the job.",
            fg="red",
            log_func=logger.error,
        )
    return None


def job_result(
    state: State,
    host: Host,
    *,
    kind: str,
    job_id: str,
    spec: Mapping[str, Any],
    llm_root: str,
    step: str,
    renew: Callable[[], None],
) -> dict[str, Any]:
    """As run_job, but raises HostRefused when the job failed, ConnectionLost when the host went."""
    request = {"kind": kind, "id": job_id}
    started = call_through_outages(
        state,
        host,
        "job start",
        request | {"spec": dict(spec), "who": this_run().owner},
        llm_root=llm_root,
        patience_seconds=OUTAGE_PATIENCE_SECONDS,
    )
    if started.get("state") == "attached":
        unit = started.get("unit") or f"llm-{kind}@{job_id}.service"
        host.log(f"{step}: joins {unit}, which runs already", log_func=logger.info)
    status = _watch(state, host, request, llm_root, step, renew)
    if status.get("state") == "done":
        result = status.get("result")
        return dict(result) if isinstance(result, dict) else {}
    told = status.get("error") or {
        "what": f"the job ended as {status.get('state')!r} without saying why",
        "fix": f"journalctl -u llm-{kind}@{job_id} on the host; then run the same command again",
    }
    failure = HostRefused(told)
    failure.result = status.get("result")
    if not failure.detail:
        failure.detail = [str(line) for line in status.get("log_tail", [])][-30:]
    raise failure


def _watch(
    state: State,
    host: Host,
    request: Mapping[str, Any],
    llm_root: str,
    step: str,
    renew: Callable[[], None],
) -> dict[str, Any]:
    polls = 0
    printed_at = -PRINT_EVERY_SECONDS
    printed_phase = None
    while True:
        status = call_through_outages(
            state,
            host,
            "job status",
            request,
            llm_root=llm_root,
            patience_seconds=OUTAGE_PATIENCE_SECONDS,
        )
        if status.get("state") != "running":
            return status
        progress = status.get("progress") or {}
        now = time.monotonic()
        if progress.get("phase") != printed_phase or now - printed_at >= PRINT_EVERY_SECONDS:
            printed_phase, printed_at = progress.get("phase"), now
            host.log(f"{step}: {describe_progress(progress)}", log_func=logger.info)
            renew()
        gevent.sleep(POLL_SECONDS[min(polls, len(POLL_SECONDS) - 1)])
        polls += 1


def describe_progress(progress: Mapping[str, Any]) -> str:
    """One line of a job's progress: phase, how much of how much, the rate, what it says."""
    parts = [str(progress.get("phase") or "starting")]
    unit = progress.get("unit")
    done, total, rate = (_number(progress.get(key)) for key in ("done", "total", "rate"))
    if done is not None and total:
        parts.append(f"{_amount(done, unit)} of {_amount(total, unit)} ({100 * done / total:.0f}%)")
    elif done and unit == "s":
        parts.append(_amount(done, unit))
    if unit in COUNTED_UNITS and rate is not None and rate > 0:
        parts.append(f"{_amount(rate, unit)}/s")
        if done is not None and total is not None and total > done:
            parts.append(f"about {_duration((total - done) / rate)} left")
    message = progress.get("message")
    if message:
        parts.append(str(message))
    parts += _in_flight(progress.get("files"))
    return ", ".join(parts)


def _in_flight(files: object) -> list[str]:
    """The files that are being worked at: the largest first, as many as a line can bear."""
    rows = [row for row in files if isinstance(row, dict)] if isinstance(files, list) else []
    rows.sort(key=lambda row: -(_number(row.get("total")) or 0))
    words = [
        f"{row.get('path')} {100 * (_number(row.get('done')) or 0) / total:.0f}%"
        for row in rows[:SHOWN_FILES]
        if (total := _number(row.get("total")))
    ]
    more = f" and {len(rows) - SHOWN_FILES} more" if len(rows) > SHOWN_FILES else ""
    return [f"now {', '.join(words)}{more}"] if words else []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _amount(value: float, unit: object) -> str:
    if unit == "s":
        return _duration(value)
    if unit == "bytes":
        for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if value >= factor:
                return f"{value / factor:.1f} {name}"
        return f"{value:.0f} B"
    return f"{value:.0f}" + (f" {unit}" if unit else "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
