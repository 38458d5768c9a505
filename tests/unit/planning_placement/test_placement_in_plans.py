"""What a placement changes on a host: the binding, the drop-in, and whether the engine restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import host_plan, wanted
from pyinfra_deploy.planning.placement import drop_in, drop_in_path, environment_of, place
from pyinfra_deploy.planning.release import digest_of_text, environment_file
from tests.unit.planning import worlds
from tests.unit.planning_placement.machines import engine, machine

if TYPE_CHECKING:
    from pyinfra_deploy.planning.host_plan import HostPlan
    from pyinfra_deploy.planning.placement import Placement

PATH = drop_in_path("main")
RESTART = [
    "go live: the host's binding has changed",
    "verify through HTTPS: after a go-live",
]


def placement(tensor: int, **more: Any) -> Placement:
    found, _ = place(machine(), engine(tensor, **more))
    assert found is not None
    return found


def bound_to(one: Placement | None) -> str:
    return environment_file(environment_of(one, "0.33.0"))


def plan(
    one: Placement | None,
    started_with: str | None,
    file: Placement | None = None,
    change: dict[str, Any] | None = None,
) -> HostPlan:
    """A converged host whose engine was started with a binding, and has the drop-in of `file`."""
    settings = worlds.settings_with(change)
    artefacts = worlds.artefacts_with(settings)
    found = drop_in("main", file)
    digest = None if started_with is None else digest_of_text(started_with)
    seen = worlds.merged(
        worlds.converged(settings, artefacts),
        {
            "files": {PATH: worlds.seen_file(found) if found else None},
            "engines": {"main": {"started": {"binding": digest}}},
            "state": {"verified": {"binding": digest}},
        },
    )
    return host_plan.plan_host(worlds.HOST, worlds.ALL, settings, seen, artefacts, one)


def test_bound_as_wanted() -> None:
    near = placement(4)
    done = plan(near, bound_to(near), near)
    assert done.reasons() == []
    assert done.binding == bound_to(near)
    spanning = placement(8)
    assert plan(spanning, bound_to(spanning)).reasons() == []


def test_the_first_binding_restarts_the_engine() -> None:
    near = placement(4)
    for before in ("", None):
        found = plan(near, before)
        assert found.reasons() == [f"write {PATH}", *RESTART]
        assert found.remove == ()
        (file,) = found.files
        assert "NUMAMask=0" in file.content


def test_other_gpus_restart_the_engine() -> None:
    spanning, other = placement(8), placement(2, numa="off")
    assert plan(other, bound_to(spanning)).reasons() == RESTART


def test_another_drop_in_restarts_the_engine() -> None:
    near, far = placement(4), placement(4, gpus=[4, 5, 6, 7])
    assert plan(far, bound_to(near), near).reasons() == [f"write {PATH}", *RESTART]


def test_a_drop_in_that_is_not_wanted_any_more_goes() -> None:
    near, free = placement(4), placement(4, numa="off")
    assert plan(free, bound_to(near), near).reasons() == [f"remove {PATH}", *RESTART]
    # Also where the engine does not use the GPUs any more.
    on_cpu = plan(near, "", near, {"runtime": {"device": "cpu"}})
    assert f"remove {PATH}" in on_cpu.reasons()


def test_another_release_brings_its_drop_in_itself() -> None:
    """Written before its go-live it would stay when that goes back."""
    near, free = placement(4), placement(4, numa="off")
    before = worlds.settings_with({"engine": {"args": {"max-model-len": 8192}}})
    after = worlds.settings_with()
    artefacts = worlds.artefacts_with(after)
    former = drop_in("main", near)
    assert former is not None
    for wanted_one, file in ((near, None), (free, former)):
        seen = worlds.merged(
            worlds.converged(before, worlds.artefacts_with(before)),
            {"files": {PATH: worlds.seen_file(file) if file else None}},
        )
        found = host_plan.plan_host(worlds.HOST, worlds.ALL, after, seen, artefacts, wanted_one)
        assert found.go_live.startswith("release ")
        assert (found.files, found.remove) == ((), ())
        bound = drop_in("main", wanted_one)
        assert found.unit_binding == (bound.content if bound else "")


def test_the_drop_in_of_an_engine_that_has_another_name_now_goes() -> None:
    near = placement(4)
    settings = worlds.settings_with()
    artefacts = worlds.artefacts_with(settings)
    old = drop_in_path("chat")
    seen = worlds.merged(
        worlds.converged(settings, artefacts),
        {
            "files": {PATH: worlds.seen_file(drop_in("main", near) or artefacts.units["none"])},
            "drop_ins": [old, PATH],
            "engines": {"main": {"started": {"binding": digest_of_text(bound_to(near))}}},
            "state": {"verified": {"binding": digest_of_text(bound_to(near))}},
        },
    )
    found = host_plan.plan_host(worlds.HOST, worlds.ALL, settings, seen, artefacts, near)
    assert found.reasons() == [f"remove {old}"]


def test_masked_facts_foretell_no_restart() -> None:
    """`fleet facts collect --mask-uuids` writes other UUIDs, which are no other GPUs."""
    here = placement(8)
    masked = replace(
        here,
        gpus=tuple(
            replace(gpu, uuid=f"GPU-{at:08x}-0000-0000-0000-{at:012x}")
            for at, gpu in enumerate(here.gpus, start=1)
        ),
    )
    assert plan(masked, bound_to(here)).reasons() == []
    assert plan(here, bound_to(masked)).reasons() == RESTART


def test_an_edited_drop_in_is_put_right_without_a_restart() -> None:
    """What the engine was started with is known; the file is for its next start."""
    near = placement(4)
    settings = worlds.settings_with()
    artefacts = worlds.artefacts_with(settings)
    seen = worlds.merged(
        worlds.converged(settings, artefacts),
        {
            "files": {PATH: worlds.seen_file(wanted.ManagedFile(PATH, "[Service]\n"))},
            "engines": {"main": {"started": {"binding": digest_of_text(bound_to(near))}}},
            "state": {"verified": {"binding": digest_of_text(bound_to(near))}},
        },
    )
    found = host_plan.plan_host(worlds.HOST, worlds.ALL, settings, seen, artefacts, near)
    assert found.reasons() == [f"write {PATH}"]


def test_an_engine_on_the_cpu_is_bound_to_nothing() -> None:
    change = {"runtime": {"device": "cpu"}}
    for before in ("", None):
        found = plan(placement(4), before, change=change)
        assert found.binding == ""
        assert found.reasons() == []


def test_vllm_binds_workers_through_numactl() -> None:
    change = {"engine": {"args": {"numa-bind": True}}}
    settings = worlds.settings_with(change)
    assert "numactl" in wanted.packages(frozenset({"gpu"}), settings, {"os": {}})
    on_cpu = worlds.settings_with(change | {"runtime": {"device": "cpu"}})
    for other in (worlds.settings_with(), on_cpu):
        assert "numactl" not in wanted.packages(frozenset({"gpu"}), other, {"os": {}})
