"""Going live: drain, switch, start, one real completion; back to the old release if it fails.

The job kind `golive`, one job an engine. engines/ENGINE/golive.json says durably how far it is:
{phase, from, to, previous, ...}. `from` is the release that last served; while a phase is pending
it is the one to go back to, whatever `current` says, so a run that is killed anywhere (kill -9, a
power cut) is undone by its unit's end or the boot (unjudged.py), else mended by the next one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import (
    arguments,
    binding,
    durable,
    engine,
    events,
    figures,
    fitness,
    gates,
    hold,
    probe,
    proof,
    rejected,
    release,
    stopped,
    systemctl,
)
from .errors import HostError
from .golive_wish import Wish as Wish
from .golive_wish import read_wish as read_wish
from .ground import Ground, read_ground
from .health import RESTART_TIMEOUT_SECONDS, UnhealthyError, restart, wait_until_serving

if TYPE_CHECKING:
    from .status import Progress

# Requests that Nginx had let through before it saw the flag reach the engine a moment later.
QUIET_POLLS = 2


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """The job's work: {changed, release, from, drained, answer, seconds, gates, warnings}.

    HostError when the release does not serve; its text says what serves now.
    """
    wish = read_wish(spec)
    began = time.monotonic()
    ground = read_ground(wish.engine, progress)
    try:
        if not engine.on_disk(wish.engine, wish.release):
            raise _not_staged(wish)
        _refuse_incomplete(wish)
        stopped.refuse(wish.engine)
        hold.refuse(wish.engine, wish.release)
        if wish.gates is None:
            rejected.refuse(wish.engine, wish.release)
        if not wish.probe.model:
            wish = replace(wish, probe=probe_of(wish, wish.release))
        answer, drained, judged = serving_already(wish), None, None
        if answer is not None:
            if ground.interrupted:  # perhaps before it had passed its gates
                judged = judge(wish, ground, progress, time.time())
            changed = settle(wish, ground)
        else:
            found = prove(wish, ground, progress)
            drained = drain(wish, ground, progress)
            if not found:
                prove_alone(wish, ground, progress)
            answer, judged = switch(wish, ground, progress)
            changed = True
    finally:
        # Also after SIGTERM: a flag without its run would turn requests away for ever.
        engine.lower_drain_flag(wish.engine, engine.DRAINED_BY_GO_LIVE)
    seconds = round(time.monotonic() - began, 1)
    hold.end_for(wish.engine, wish.release)
    rejected.end(wish.engine, wish.release)
    rejected.keep_asked(wish.engine, spec)
    if changed:
        came_from = ground.serving
        more = release.model_in(wish.engine, wish.release)
        more |= {"gates": judged} if judged else {}
        events.record(
            "went live", engine=wish.engine, release=wish.release, came_from=came_from,
            seconds=seconds, run=wish.run, **more,
        )  # fmt: skip
    return {
        "changed": changed,
        "release": wish.release,
        "from": ground.serving,
        "drained": drained,
        "answer": answer[:200],
        "seconds": seconds,
        "gates": judged,
        "warnings": fitness.warnings(wish.engine, wish.release) if wish.fitness else [],
    }


def note(wish: Wish, ground: Ground, phase: str, **more: Any) -> None:
    """Say durably how far this go-live is."""
    document = {
        "phase": phase,
        "from": ground.serving,
        "to": wish.release,
        "previous": ground.previous,
        "run": wish.run,
        "when": events.utc_now(),
        **more,
    }
    durable.write_json(engine.home(wish.engine) / "golive.json", document)


def _not_staged(wish: Wish) -> HostError:
    return HostError(
        f"release {wish.release} of engine {wish.engine} is not on this host",
        f"{engine.release_directory(wish.engine, wish.release)} does not exist, or not in full.",
        "Run the deploy; it stages a release before it goes live.",
    )


def _refuse_incomplete(wish: Wish) -> None:
    directory = engine.release_directory(wish.engine, wish.release)
    runtime, model = (directory / "runtime").readlink(), (directory / "model").readlink()
    release.refuse_incomplete(wish.engine, wish.release, runtime, model)


def runs_as_wished(wish: Wish) -> bool:
    """Whether the running process was started with this release, its present binding, and the
    model's files as they are: not with damaged ones that were mended since."""
    started = engine.read_started(wish.engine)
    return (
        engine.linked(wish.engine, "current") == wish.release
        and started.get("release") == wish.release
        and started.get("binding") == engine.binding_digest(wish.engine, wish.release)
        and started.get("model_mended") == engine.model_mended(wish.engine, wish.release)
        and engine.unit_state(wish.unit)["ActiveState"] == "active"
    )


def serving_already(wish: Wish) -> str | None:
    """The answer of an engine that runs exactly what is wished; None when it must be (re)started"""
    if not runs_as_wished(wish):
        return None
    try:
        return probe.completion(engine.socket_path(wish.engine), wish.probe, 30.0)
    except (probe.NotReadyError, probe.RejectedError):
        return None


def settle(wish: Wish, ground: Ground, **more: Any) -> bool:
    """The end of a go-live that succeeded: survives a reboot, and says done, with `more`."""
    changed = ground.interrupted
    if wish.enable and engine.unit_state(wish.unit)["UnitFileState"] != "enabled":
        systemctl.call(["enable", wish.unit])
        changed = True
    earlier = durable.read_json(engine.home(wish.engine) / "golive.json") or {}
    if changed or (earlier.get("phase"), earlier.get("to")) != ("done", wish.release):
        note(wish, ground, "done", **more)
    return changed


def prove(wish: Wish, ground: Ground, progress: Progress) -> bool:
    """Try the release before anything is stopped: parser, tokenizer, proof. False: the proof takes
    the running engine's GPU memory. HostError when it cannot run, with what serves as it was."""
    try:
        undecided = _ask_parser(wish, progress)
        # Of a runtime whose imports fail, the proof says why better.
        if wish.fitness is not None and undecided is None:
            fitness.require(
                wish.engine, wish.release, wish.fitness, progress, wish.patience.poll_seconds
            )
        if not (done := wish.proof is None or proof.proven(wish.engine, wish.release, wish.proof)):
            # In any state but these the old process has, or takes at any moment, its GPU memory.
            beside = engine.unit_state(wish.unit)["ActiveState"] not in ("inactive", "failed")
            done = _proof_of(wish, progress, beside=beside)
        if undecided is not None:
            raise undecided
        return done
    except HostError as error:
        if ground.interrupted:
            # An earlier go-live left something half switched, which is not to stay.
            raise go_back(wish, ground, _as_failure(error), progress) from error
        stays = f"release {ground.serving} stays live" if ground.serving else "nothing was started"
        what = f"release {wish.release} cannot run on this host, so {stays}: {error.what}"
        raise HostError(what, error.why, error.fix, error.detail) from error


def _ask_parser(wish: Wish, progress: Progress) -> arguments.UndecidedError | None:
    """None when it has a verdict. What it died of, the proof says better: which import, and why."""
    try:
        if wish.ask_parser:
            arguments.prove(wish.engine, wish.release, progress)
    except arguments.UndecidedError as error:
        return error
    return None


def prove_alone(wish: Wish, ground: Ground, progress: Progress) -> None:
    """Stop the drained engine for its GPU memory, and prove. HostError after going back."""
    note(wish, ground, "proving")
    progress.log("the running engine is stopped first: its GPU memory is needed for the proof")
    systemctl.call(["stop", wish.unit], RESTART_TIMEOUT_SECONDS)
    try:
        _proof_of(wish, progress, beside=False)
    except HostError as error:
        raise go_back(wish, ground, _as_failure(error), progress) from error


def _proof_of(wish: Wish, progress: Progress, *, beside: bool) -> bool:
    assert wish.proof is not None
    poll_seconds = wish.patience.poll_seconds
    return proof.prove(
        wish.engine, wish.release, wish.proof, progress, beside=beside, poll_seconds=poll_seconds
    )


def _as_failure(error: HostError) -> UnhealthyError:
    return UnhealthyError(f"its proof failed: {error.what}: {error.why} {error.fix}", error.detail)


def drain(wish: Wish, ground: Ground, progress: Progress) -> bool | None:
    """Turn new requests away and let the running ones end. None: there was nothing to drain;
    False: some were still running when drain_seconds had passed."""
    socket = engine.socket_path(wish.engine)
    if wish.drain_seconds == 0 or engine.unit_state(wish.unit)["ActiveState"] != "active":
        return None
    try:
        load = probe.load(socket)
    except probe.NotReadyError:
        return None  # it serves nobody
    note(wish, ground, "draining")
    progress.phase("draining", total=wish.drain_seconds, unit="s", message="no new requests")
    engine.raise_drain_flag(wish.engine, engine.DRAINED_BY_GO_LIVE, f"go-live of {wish.release}")
    began, quiet = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < wish.drain_seconds:
        try:
            load = probe.load(socket)
        except probe.NotReadyError:
            return True  # it ended meanwhile
        quiet = quiet + 1 if load == 0 else 0
        if quiet >= QUIET_POLLS:
            return True
        # Without the metric (--disable-log-stats) the whole time has to be waited.
        told = "unknown" if load is None else f"{load:g}"
        progress.advance(round(elapsed, 1), f"requests running or waiting: {told}")
        time.sleep(min(wish.patience.poll_seconds, wish.drain_seconds - elapsed))
    progress.log(f"drain_seconds passed with {load if load is not None else 'unknown'} running")
    return False


def switch(wish: Wish, ground: Ground, progress: Progress) -> tuple[str, gates.Figures | None]:
    """Make the release current and start it; its first answer, and its gates' figures. HostError
    after going back."""
    note(wish, ground, "switching")
    back = ground.previous if ground.serving == wish.release else ground.serving
    if back is not None:
        engine.link(wish.engine, "previous", back)
    if ground.serving not in (None, wish.release):
        binding.keep_placement(wish.engine, str(ground.serving))
    waiting_on = ground.interrupted and runs_as_wished(wish)
    binding.switch_to(wish.engine, wish.release)
    note(wish, ground, "starting")
    if wish.gates is not None:
        # Nobody is served by a release that has not passed them.
        engine.raise_drain_flag(wish.engine, engine.DRAINED_BY_GO_LIVE, f"gates of {wish.release}")
    progress.phase("starting", unit="s", message=f"release {wish.release}")
    try:
        # After an interrupted run the engine may be minutes into loading: then only wait.
        since = time.time() - 1 if waiting_on else restart(wish.unit)
        answer = wait_until_serving(
            wish.engine, wish.unit, wish.probe, wish.patience, progress, since
        )
    except UnhealthyError as failure:
        raise go_back(wish, ground, failure, progress) from failure
    took = round(time.time() - since, 1)
    judged = judge(wish, ground, progress, since)
    settle(wish, ground, start_seconds=took)
    keep_figures(wish, since, progress)
    return answer, judged


def judge(
    wish: Wish, ground: Ground, progress: Progress, since_epoch_seconds: float
) -> gates.Figures | None:
    """The gates that a rollout asks for, passed before anybody is served; their figures, None
    without gates. HostError after going back, as for an engine that does not start."""
    if wish.gates is None:
        return None
    note(wish, ground, "judging")
    engine.raise_drain_flag(wish.engine, engine.DRAINED_BY_GO_LIVE, f"gates of {wish.release}")
    try:
        return gates.passed(
            wish.engine, wish.unit, wish.probe, wish.gates, progress, since_epoch_seconds
        )
    except UnhealthyError as failure:
        raise go_back(wish, ground, failure, progress) from failure


def keep_figures(wish: Wish, since_epoch_seconds: float, progress: Progress) -> None:
    """For later plans; the release serves, with or without them."""
    try:
        invocation = engine.unit_state(wish.unit)["InvocationID"]
        figures.keep(wish.engine, wish.release, invocation, wish.unit, since_epoch_seconds)
    except (HostError, OSError) as error:
        progress.log(f"what the engine said of its memory was not kept: {error}")


def go_back(wish: Wish, ground: Ground, failure: UnhealthyError, progress: Progress) -> HostError:
    """Undo the switch after a failure; the error that says what happened and what serves now."""
    progress.log(f"failed: {failure.cause}")
    if ground.serving is None:
        return _stop(wish, ground, failure)
    if ground.serving == wish.release:
        note(wish, ground, "failed", cause=failure.cause)
        events.record("go-live failed", engine=wish.engine, release=wish.release)
        return HostError(
            f"engine {wish.engine} does not serve release {wish.release} after its restart",
            failure.cause,
            "There is no other release to go back to: this one was live before. Read the lines "
            f"below and 'journalctl -u {wish.unit}' on the host.",
            failure.lines,
        )
    note(wish, ground, "reverting", cause=failure.cause)
    progress.phase("reverting", unit="s", message=f"back to release {ground.serving}")
    binding.switch_to(wish.engine, ground.serving)
    engine.link(wish.engine, "previous", ground.previous)
    try:
        since = restart(wish.unit)
        old_probe = probe_of(wish, ground.serving)
        wait_until_serving(wish.engine, wish.unit, old_probe, wish.patience, progress, since)
    except UnhealthyError as second:
        return _nothing_serves(wish, ground, failure, second)
    if wish.gates is not None:
        rejected.keep(wish.engine, wish.release, failure.cause, wish.run)
    note(wish, ground, "reverted", cause=failure.cause)
    events.record(
        "go-live reverted", engine=wish.engine, release=wish.release, back_to=ground.serving,
        cause=failure.cause, run=wish.run,
    )  # fmt: skip
    return HostError(
        f"release {wish.release} did not go live; release {ground.serving} serves again",
        failure.cause,
        "Mend the settings or the model by what the engine said last, below, and deploy again.",
        failure.lines,
    )


def probe_of(wish: Wish, identity: str) -> probe.Probe:
    """The probe for another release, which may serve its model under another name."""
    path = engine.release_directory(wish.engine, identity) / "release.json"
    document = durable.read_json(path) or {}
    return replace(wish.probe, model=document.get("served_model_name") or wish.probe.model)


def _stop(wish: Wish, ground: Ground, failure: UnhealthyError) -> HostError:
    systemctl.call(["stop", wish.unit], systemctl.CALL_TIMEOUT_SECONDS * 20)
    systemctl.call(["disable", wish.unit])
    engine.link(wish.engine, "current", None)
    note(wish, ground, "failed", cause=failure.cause)
    events.record("go-live failed", engine=wish.engine, release=wish.release, run=wish.run)
    return HostError(
        f"release {wish.release} did not go live, and engine {wish.engine} is stopped",
        failure.cause,
        "No release served here before, so there is none to go back to. Mend the settings or the "
        "model by what the engine said last, below, and deploy again.",
        failure.lines,
    )


def _nothing_serves(
    wish: Wish, ground: Ground, failure: UnhealthyError, second: UnhealthyError
) -> HostError:
    note(wish, ground, "failed", cause=failure.cause, revert_cause=second.cause)
    events.record(
        "go-live failed, and so did going back", engine=wish.engine, release=wish.release,
        back_to=ground.serving, cause=second.cause, run=wish.run,
    )  # fmt: skip
    return HostError(
        f"engine {wish.engine} serves nothing: release {wish.release} failed, and release "
        f"{ground.serving}, which served before, does not come back",
        f"{failure.cause} Then, going back: {second.cause}",
        f"Both fail, so look at the host first (GPUs, disk, memory): 'journalctl -u {wish.unit}'.",
        [f"--- {wish.release}", *failure.lines, f"--- {ground.serving}", *second.lines],
    )
