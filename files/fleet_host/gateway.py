"""The gateway service on its host: which environment is live, as what, and whether it answers.

Its shape is what its unit makes of it: "direct" answers /auth on auth.sock, "full" and
"full-remote" serve the API on http.sock, which systemd holds (llm-gateway.socket).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import durable, events, fields, gateway_service, layout
from .errors import HostError, SpecError
from .gateway_service import DIRECT
from .keys import reader_gid

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = (DIRECT, "full", "full-remote")
# Set by the unit of the other shapes.
SHAPE_VARIABLE = "LLM_GATEWAY_SHAPE"


def home() -> Path:
    return layout.llm_root() / "gateway"


def configuration_path() -> Path:
    return home() / "config.json"


def started_path() -> Path:
    return layout.run_root() / "llm-gateway" / "started.json"


def linked() -> str | None:
    """The environment that `current` names; None without the link.

    The link and the key files lie in a directory of root's own: whoever builds environments must
    not be able to replace a key file.
    """
    current = home() / "current"
    return current.readlink().name if current.is_symlink() else None


def _environment(name: str) -> Path:
    return layout.llm_root() / "tools" / name


def started(_request: dict[str, Any]) -> dict[str, Any]:
    """`gateway started`, the unit's ExecStartPre: note which environment this start runs."""
    shape = os.environ.get(SHAPE_VARIABLE, DIRECT)
    auth = gateway_service.auth_socket()
    if shape == DIRECT and auth.is_symlink():
        auth.unlink()  # of mode full: the service itself is to listen there
    document = {"environment": linked(), "invocation": os.environ.get("INVOCATION_ID", "")}
    if shape != DIRECT:
        document["shape"] = shape
    return _note(document)


def _note(document: dict[str, Any]) -> dict[str, Any]:
    path = started_path()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # No fsync: /run is memory, and after a power cut nothing runs.
    temporary.write_text(json.dumps(document) + "\n")
    temporary.replace(path)
    return document


@dataclass(frozen=True)
class _State:
    """What is on the disk: an environment, and the configuration's text (None in mode direct)."""

    environment: str
    configuration: str | None


def activate(request: dict[str, Any]) -> dict[str, Any]:
    """`gateway activate` {environment, unit, shape?, configuration?, stop_seconds?} ->
    {environment, previous, handed_over, former}. former: the configuration before, where the
    service could take it up again as it now runs.

    environment: the name of a complete environment below {llm_root}/tools. configuration: the text
    of the service's configuration, for the shapes that have one. Where the service runs in that
    shape already it hands over to the new environment, or takes up the configuration, and cuts no
    answer; else it is started, and what runs is finished first. It must then run just that; else
    what was there before is put back.
    """
    name, unit = fields.text(request, "environment"), fields.text(request, "unit")
    shape = fields.optional_text(request, "shape") or DIRECT
    configuration = fields.optional_text(request, "configuration")
    service = gateway_service.Service(unit, shape, fields.whole(request, "stop_seconds", 0))
    _refuse(name, shape, configuration)
    was, before = _running_shape(), linked()
    # Another shape has no way back: the unit that it had is gone.
    fits = was in (None, shape)
    former = _configuration() if fits and shape != DIRECT else None
    _put(_State(name, configuration))
    try:
        handed_over = service.bring_up(name, configuration, was=was)
    except HostError:
        known = fits and (former is not None or shape == DIRECT)
        if known and before is not None and _environment(before).is_dir():
            changed = before != name or former != configuration
            if changed:
                _put(_State(before, former))
                service.bring_up(before, former, was=_running_shape())
                events.record("gateway reverted", environment=before, failed=name)
        raise
    if handed_over:
        _note({**(durable.read_object(started_path()) or {}), "environment": name})
    events.record("gateway live", environment=name, previous=before, shape=shape)
    return {
        "environment": name,
        "previous": before,
        "handed_over": handed_over,
        "former": former,
    }


def configure(request: dict[str, Any]) -> dict[str, Any]:
    """`gateway configure` {unit, configuration, stop_seconds, environment?} -> {changed, former}.

    Another configuration for the service that runs, in the shape in which it runs; environment:
    another one of those as well, to go back to. Where there is none that has a configuration,
    nothing is done: the next deploy brings it.
    """
    current, shape, text = linked(), _running_shape(), fields.text(request, "configuration")
    name = fields.optional_text(request, "environment") or current
    same = name == current and _configuration() == text
    if name is None or current is None or shape in (None, DIRECT) or same:
        return {"changed": False, "former": None}
    found = activate({**request, "environment": name, "shape": shape})
    return {"changed": True, "former": found["former"]}


def _refuse(name: str, shape: str, configuration: str | None) -> None:
    if "/" in name or name.startswith("."):
        raise SpecError(f"{name!r} is no environment's name", "it is a directory.", "Correct it.")
    if shape not in SHAPES or (configuration is None) != (shape == DIRECT):
        raise SpecError(
            f"the gateway's shape {shape!r} does not fit its configuration",
            f"shapes are {', '.join(SHAPES)}, and all but {DIRECT} have one.",
            "Are the control side and this program of one version?",
        )
    if durable.read_object(_environment(name) / ".fleet-complete.json") is None:
        raise HostError(
            f"the gateway's environment {name} is not there in full",
            "its completion record is missing or cut off.",
            "Run the deploy; it builds the environment first.",
        )


def _running_shape() -> str | None:
    """What the service was last started as; None when it was not since the boot."""
    document = durable.read_object(started_path())
    return None if document is None else str(document.get("shape") or DIRECT)


def _configuration() -> str | None:
    path = configuration_path()
    return path.read_text() if path.is_file() else None


def _put(state: _State) -> None:
    if state.configuration is not None and state.configuration != _configuration():
        durable.make_directories(home())
        durable.write_file(configuration_path(), state.configuration, mode=0o640, gid=reader_gid())
    if linked() != state.environment:
        durable.replace_symlink(home() / "current", f"../tools/{state.environment}")
