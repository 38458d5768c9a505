"""A release's binding: what this host adds to it, switched and reverted together with `current`.

releases/ID/binding.env: which GPUs it gets; the units read it through `current` and `candidate`, so
one rename switches both. releases/ID/placement.conf: the part of the engine's unit that binds it to
CPUs and memory, empty for none; systemd reads that before it starts anything, and at boot perhaps
before llm_root is mounted, so it is copied. Unlike the rest of a release both may be written anew:
a host's GPUs are replaced. A release that was staged before releases had bindings has neither file,
and takes the engine's binding.env, which is not written any more, and the placement that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import durable, engine, events, fields, layout, systemctl
from .errors import HostError

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT, PLACEMENT = "binding.env", "placement.conf"


def drop_in(name: str) -> Path:
    return layout.etc_root() / f"systemd/system/llm-engine@{name}.service.d" / PLACEMENT


def bind(request: dict[str, Any]) -> dict[str, Any]:
    """`release bind` {engine, id, binding, placement} -> {changed, digest}: the host's part of a
    staged release. The engine takes it at its next start, by a go-live.

    binding: the text of a systemd EnvironmentFile. placement: that of a drop-in; empty: none.
    """
    name, identity = engine.name_of(request), engine.name_of(request, "id")
    directory = engine.release_directory(name, identity)
    if not engine.on_disk(name, identity):
        raise HostError(
            f"release {identity} of engine {name} is not on this host",
            f"{directory} does not exist, or not in full.",
            "Run the deploy; it stages a release before it binds it.",
        )
    texts = {
        ENVIRONMENT: fields.text(request, "binding"),
        PLACEMENT: fields.text(request, "placement"),
    }
    changed = [file for file, text in texts.items() if _text(directory / file) != text]
    for file in changed:
        durable.write_file(directory / file, texts[file], mode=0o644)
    make_room(name)
    digest = engine.binding_digest(name, identity)
    if changed:
        events.record("binding written", engine=name, release=identity, digest=digest)
    return {"changed": bool(changed), "digest": digest}


def make_room(name: str) -> None:
    """The directory of the drop-in, where a release may need it: a go-live's sandbox lets it write
    into that one, and not make it."""
    if any(_text(path) for path in (engine.home(name) / "releases").glob(f"*/{PLACEMENT}")):
        durable.make_directories(drop_in(name).parent)


def keep_placement(name: str, release: str) -> None:
    """Give a release that is switched from, and has no placement of its own, the one it ran with:
    to go back to."""
    path = engine.release_directory(name, release) / PLACEMENT
    if not path.exists():
        durable.write_file(path, _text(drop_in(name)) or "", mode=0o644)


def switch_to(name: str, release: str) -> None:
    """Make a release current, with its placement. The unit has to be restarted for both."""
    wanted = _text(engine.release_directory(name, release) / PLACEMENT)
    path = drop_in(name)
    if wanted is not None and wanted != (_text(path) or ""):
        if wanted:
            durable.write_file(path, wanted, mode=0o644)
        else:
            durable.remove_file(path)
        systemctl.call(["daemon-reload"])
    engine.link(name, "current", release)


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
