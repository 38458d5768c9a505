"""The plain files that we own on a host: which are wanted, which differ, which have to go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning import driver_install, model_care, wanted
from pyinfra_deploy.planning.engine_care import UNIT_FILES
from pyinfra_deploy.planning.gateway_plan import gateway_units
from pyinfra_deploy.planning.placement import drop_in, drop_in_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyinfra_deploy.planning.artefacts import Artefacts
    from pyinfra_deploy.planning.driver_install import DriverStep
    from pyinfra_deploy.planning.placement import Placement
    from pyinfra_deploy.planning.wanted import ManagedFile
    from pyinfra_deploy.settings.schema import Settings

SYSUSERS, TMPFILES = "/etc/sysusers.d/llm-fleet.conf", "/etc/tmpfiles.d/llm-fleet.conf"


def managed_files(
    groups: frozenset[str],
    settings: Settings,
    artefacts: Artefacts,
    placement: Placement | None = None,
) -> tuple[ManagedFile, ...]:
    """The plain files that we own on a host (Nginx's are applied by their own step)."""
    root = settings.llm_root
    files = [
        wanted.ManagedFile(SYSUSERS, wanted.sysusers(groups)),
        wanted.ManagedFile(TMPFILES, wanted.tmpfiles(root, groups)),
        artefacts.units["llm-environment@.service"],
    ]
    if "gpu" in groups:
        files += [
            artefacts.units[name]
            for name in (
                "llm-pull@.service",
                "llm-golive@.service",
                "llm-arguments@.service",
                "llm-engine@.service",
            )
        ]
        wheelhouse = settings.runtime.wheelhouse if settings.runtime else None
        if wheelhouse is not None and wheelhouse.serve_from is not None:
            # On every gpu host: another one serves when the first is down.
            files += [
                artefacts.units[name] for name in ("llm-wheels@.service", "llm-serve@.service")
            ]
        if artefacts.fan_out:
            files.append(artefacts.units["llm-share@.service"])
        bound = drop_in(settings.engine.name, placement)
        files += [bound] if bound is not None else []
        files += [artefacts.units[name] for name in (*UNIT_FILES, *model_care.UNIT_FILES)]
    if "gateway" in groups:
        files += [artefacts.units[name] for name in gateway_units(settings)]
    return tuple(files)


def stale_files(
    groups: frozenset[str],
    settings: Settings,
    placement: Placement | None,
    snapshot: Mapping[str, Any],
    driver: DriverStep | None,
) -> tuple[str, ...]:
    """Files of ours that are there and are not wanted any more."""
    files = snapshot.get("files") or {}
    path = drop_in_path(settings.engine.name)
    # Of an engine that has another name now, too.
    there = {path} if files.get(path) else set()
    there |= set(snapshot.get("drop_ins") or ())
    if "gpu" in groups and drop_in(settings.engine.name, placement) is not None:
        there.discard(path)
    if driver is None and files.get(driver_install.UNIT_PATH):
        there.add(driver_install.UNIT_PATH)  # of an installation that was given up
    return tuple(sorted(there))


def without_drop_in(
    settings: Settings, snapshot: Mapping[str, Any], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """files and remove of a plan, without the engine's drop-in where another release runs than the
    one that it is of: that one's go-live brings it, and takes it back with it (files/fleet_host/
    binding.py). plan: with what plan_engine gives."""
    engine = (snapshot.get("engines") or {}).get(settings.engine.name) or {}
    current, digest = engine.get("current"), plan["model_digest"]
    identity = plan["release"].id_with(digest) if digest else None
    if not current or current == identity:
        return {}
    path = drop_in_path(settings.engine.name)
    return {
        "files": tuple(file for file in plan["files"] if file.path != path),
        "remove": tuple(name for name in plan["remove"] if name != path),
    }


def changed_files(
    files: tuple[ManagedFile, ...], snapshot: Mapping[str, Any]
) -> tuple[ManagedFile, ...]:
    found = snapshot.get("files") or {}
    return tuple(file for file in files if not file.is_as(found.get(file.path) or {}))
