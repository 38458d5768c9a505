"""`arguments run ENGINE`: what the unit llm-arguments@ENGINE does, by the runtime's own Python.

vLLM's `main()` runs with the engine's command line up to the point where `vllm serve` would begin
to serve; there it is told what was asked for, so that nothing that was asked for is lost unseen.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from . import engine
from .arguments import HELP, VERDICT
from .layout import run_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SERVE, MAIN = "vllm.entrypoints.cli.serve", "vllm.entrypoints.cli.main"
LAST_LINES = 30


class _Reached(BaseException):
    """The parser is through: here `vllm serve` would begin. No Exception: vLLM may catch those."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{engine} -> the verdict, which is also in /run/llm-arguments/ENGINE/arguments.json.

    {release, checked, accepted, message, lines, ignored, parsed, seconds, version}. Ends well also
    when vLLM refuses: the verdict says so.
    """
    name = engine.name_of(request)
    release = (engine.home(name) / "candidate").readlink().name
    config = engine.home(name) / "candidate" / "config.yaml"
    words = ["serve", "--config", str(config), "--uds", str(engine.socket_path(name))]
    place = run_root() / "llm-arguments" / name
    began = time.monotonic()
    verdict, text = ask(words, config)
    verdict = {"release": release, **verdict, "seconds": round(time.monotonic() - began, 1)}
    if text:
        (place / HELP).write_text(text, encoding="utf-8")
    temporary = place / f".{VERDICT}"
    temporary.write_text(json.dumps(verdict) + "\n", encoding="utf-8")
    temporary.replace(place / VERDICT)
    return verdict


def ask(words: list[str], config: Path) -> tuple[dict[str, Any], str | None]:
    """(verdict, help text) of the vLLM that this Python has, for `vllm WORDS`."""
    verdict: dict[str, Any] = {"checked": False, "accepted": None, "message": "", "lines": []}
    # With --help=... in argv vLLM reads its own comments, of which the help text is made.
    sys.argv = ["vllm", *words, "--help=all"]
    try:
        serve = importlib.import_module(SERVE)
        main = importlib.import_module(MAIN).main
        command = serve.ServeSubcommand
        initialise, _ = command.subparser_init, command.cmd
    except (ImportError, AttributeError) as error:
        return {**verdict, "message": f"{type(error).__name__}: {error}"}, None
    sys.argv = ["vllm", *words]
    seen: dict[str, Any] = {}

    def remember(self: Any, subparsers: Any) -> Any:
        seen["parser"] = initialise(self, subparsers)
        return seen["parser"]

    def reached(arguments: Any) -> None:
        seen["arguments"] = arguments
        raise _Reached

    command.subparser_init, command.cmd = remember, staticmethod(reached)
    verdict["version"] = getattr(sys.modules.get("vllm"), "__version__", None)
    message, lines = _through(main)
    accepted = message is None and "arguments" in seen
    verdict |= {"checked": True, "accepted": accepted, "lines": lines}
    verdict["message"] = message or ("" if accepted else "vLLM ended without serving.")
    if accepted:
        verdict |= _taken(config, seen["parser"], seen["arguments"])
    return verdict, _help_of(seen.get("parser"))


def _through(main: Callable[[], object]) -> tuple[str | None, list[str]]:
    """Run it: (what it refused, its last lines); (None, []) when it would have served."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main()
    except _Reached:
        return None, []
    except SystemExit:
        lines = [line for line in said.getvalue().splitlines() if line.strip()][-LAST_LINES:]
        # The usage that argparse prints first names all 400 arguments.
        start = next((n for n, line in enumerate(lines) if "error: " in line), 0)
        told = lines[start:] or ["it said nothing."]
        return told[0].split("error: ", 1)[-1], told
    except Exception as error:
        lines = said.getvalue().splitlines()[-LAST_LINES:]
        return f"{type(error).__name__}: {error}", [*lines, f"{type(error).__name__}: {error}"]
    return "it ended by itself.", said.getvalue().splitlines()[-LAST_LINES:]


def _taken(config: Path, parser: Any, arguments: Any) -> dict[str, Any]:
    """{parsed: {key: what the engine would get}, accepted, message}: every line of the file must
    have set the argument that it names."""
    lines = importlib.import_module("yaml").safe_load(config.read_text(encoding="utf-8"))
    actions = parser._option_string_actions
    parsed: dict[str, str] = {}
    lost = []
    for key, value in lines.items():
        action = actions.get(f"--{key.split('.', 1)[0]}")
        if action is None:
            lost.append(f"{key} is taken for an argument whose name begins like it")
            continue
        got = getattr(arguments, action.dest, None)
        parsed[key] = repr(got)[:200]
        if value is False and got is not False:
            lost.append(f"{key}: false is dropped, the engine would get {got!r}")
    verdict: dict[str, Any] = {"parsed": parsed}
    if lost:
        verdict |= {"accepted": False, "message": lost[0], "lines": lost}
    return verdict


def _help_of(parser: Any) -> str | None:
    """The whole help text, as wide as a file may be."""
    if parser is None:
        return None
    os.environ["COLUMNS"] = "100"
    # From 0.11 on plain help prints only the names of groups; before it, there is no such word.
    type(parser)._search_keyword = "all"
    text = parser.format_help()
    return text if isinstance(text, str) else None
