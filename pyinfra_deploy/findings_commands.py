"""`fleet findings docs` and `fleet findings show ID`."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.findings_table import as_text, finding_row, known_ids, pages

if TYPE_CHECKING:
    import argparse

DIRECTORY = Path("docs/findings")


def register(commands: Any) -> None:
    """Add `findings`; `commands` is argparse's object for subcommands, which has no public type."""
    group = commands.add_parser("findings", help="what the plan's findings mean")
    actions = group.add_subparsers(required=True, metavar="ACTION")

    show = actions.add_parser("show", help="explain one finding")
    show.add_argument("id", help="as the plan prints it in brackets, such as gpu.pcie-width")
    show.set_defaults(run=_show)

    docs = actions.add_parser("docs", help=f"write {DIRECTORY}/ from the table of findings")
    docs.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    docs.set_defaults(run=_docs)


def _show(arguments: argparse.Namespace) -> int:
    row = finding_row(arguments.id.strip("[]"))
    if row is not None:
        print(as_text(row))
        return 0
    close = difflib.get_close_matches(arguments.id, known_ids(), 3, 0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"see {DIRECTORY}/README.md"
    print(f"there is no finding {arguments.id!r}: {hint}", file=sys.stderr)
    return 1


def _docs(arguments: argparse.Namespace) -> int:
    wanted = pages()
    present = {path.name: path for path in DIRECTORY.glob("*.md")}
    stale = sorted(set(present) - set(wanted))
    wrong = sorted(
        name
        for name, text in wanted.items()
        if name not in present or present[name].read_text(encoding="utf-8") != text
    )
    if arguments.check:
        if not stale and not wrong:
            return 0
        print(
            f"{DIRECTORY} does not agree with the table of findings "
            f"({', '.join([*wrong, *stale][:5])}): run `fleet findings docs`.",
            file=sys.stderr,
        )
        return 1
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name in wrong:
        (DIRECTORY / name).write_text(wanted[name], encoding="utf-8")
    for name in stale:
        present[name].unlink()
    print(f"{DIRECTORY}: {len(wanted)} pages, {len(wrong)} written, {len(stale)} removed")
    return 0
