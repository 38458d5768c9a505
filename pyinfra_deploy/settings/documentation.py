"""docs/settings.md, written from the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyinfra_deploy.settings.engine_arguments import OWNED
from pyinfra_deploy.settings.engine_environment import OWNED_ENVIRONMENT
from pyinfra_deploy.settings.schema import Settings
from pyinfra_deploy.settings.schema_words import (
    allowed_words,
    as_yaml,
    example_of,
    item_section_of,
    section_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from pyinfra_deploy.settings.section import Section

_HEAD = """\
# Settings

<!-- Written by `fleet settings docs` from pyinfra_deploy/settings/schema.py; edit that instead. -->

These are the keys that `group_vars/` and `host_vars/` may set, beside variables of your own, which
pass untouched. Files are Ansible's, and so are the rules: `all` is weakest, then groups from parent
to child, then the host; **a stronger level replaces a whole top-level key** (`engine`, `gateway`,
...), it does not add to it. `fleet settings check INVENTORY` checks everything without contacting
a host.

- Unknown keys, wrong kinds of values and contradictions are refused, with file, line and the fix.
- Templates (`{{ ... }}`) are not evaluated in these keys. Secrets may be `!vault` values, or
  exactly `"{{ lookup('env', 'NAME') }}"`; they are looked up when they are used, and
  `fleet settings check INVENTORY --secrets` looks each of them up (and shows none).
- `group_vars` of the inventory's own group (`prod.yml`, `lab.yml`) is the place for pins.
- Durations are whole seconds, sizes as the name says.
"""


def settings_page() -> str:
    parts = [_HEAD]
    plain = {k: f for k, f in Settings.model_fields.items() if section_of(f) is None}
    parts.append("## At the top level\n\n" + _table("", plain))
    for name, info in Settings.model_fields.items():
        section = section_of(info)
        if section is not None:
            parts += _section(name, section, _note(info))
        item = item_section_of(info)
        if item is not None:
            parts += _section(f"{name}[]", item, "")
    parts.append(_owned())
    return "\n".join(parts)


def _note(info: FieldInfo) -> str:
    description = info.description or ""
    return description if description.startswith("Required") else ""


def _section(name: str, section: type[Section], note: str) -> Iterator[str]:
    text = " ".join(filter(None, [*(section.__doc__ or "").split(), note]))
    fields = {k: f for k, f in section.model_fields.items() if section_of(f) is None}
    yield f"## {name}\n\n{text}\n\n" + _table(f"{name}.", fields)
    for key, info in section.model_fields.items():
        nested = section_of(info)
        if nested is not None:
            yield from _section(f"{name}.{key}", nested, "")
        item = item_section_of(info)
        if item is not None:
            yield from _section(f"{name}.{key}[]", item, "")


def _table(prefix: str, fields: dict[str, FieldInfo]) -> str:
    rows = ["| Key | Allowed | Default | Meaning | Example |", "|---|---|---|---|---|"]
    for key, info in fields.items():
        default = "**required**" if info.is_required() else f"`{as_yaml(info.default)}`"
        rows.append(
            f"| `{prefix}{key}` | {_cell(allowed_words(info))} | {default} "
            f"| {_cell(info.description or '')} | `{example_of(info)}` |"
        )
    return "\n".join(rows) + "\n"


def _owned() -> str:
    rows = ["| Not in `engine.args` | Why | Instead |", "|---|---|---|"]
    for name, (why, instead) in [
        *OWNED.items(),
        ("ssl-*", ("TLS ends at Nginx", "set gateway.tls")),
    ]:
        rows.append(f"| `{name}` | {_cell(why)} | {_cell(instead)} |")
    rows += ["", "| Not in `engine.env` | Why | Instead |", "|---|---|---|"]
    for name, (why, instead) in OWNED_ENVIRONMENT.items():
        rows.append(f"| `{name}` | {_cell(why)} | {_cell(instead)} |")
    return "## What the product sets itself\n\n" + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    # A pipe would end the cell; in Markdown * and _ in running text are left as they are.
    return text.replace("|", "\\|").replace("{{", "`{{").replace("}}", "}}`")
