"""A fake host (engine_host.py) whose systemd also asks a parser: a small vLLM of argparse, run as
the unit llm-arguments@main runs the real one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.engine_host import FILES, JOURNALCTL, SYSTEMCTL, FakeHost, in_use, put_program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# As vllm/entrypoints/cli/{main,serve}.py of 0.32.0: the same names, the same order of steps, and a
# false in the file is dropped unless the top parser has the no- form, which it never has.
MAIN = """
import argparse, sys, yaml

HELP = "Only with --help in argv at the import." if any("--help" in w for w in sys.argv) else ""

class Parser(argparse.ArgumentParser):
    _search_keyword = None

    def parse_args(self):
        words = sys.argv[1:]
        place = words.index("--config")
        lines = []
        for key, value in yaml.safe_load(open(words[place + 1])).items():
            if value is True:
                lines.append("--" + key)
            elif value is not False:
                lines += ["--" + key, str(value)]
        return super().parse_args([words[0], *lines, *words[1:place], *words[place + 2:]])

    def format_help(self):
        return super().format_help() if self._search_keyword == "all" else "groups only"

def main():
    import vllm.entrypoints.cli.serve as serve
    parser = Parser(prog="vllm")
    subparsers = parser.add_subparsers(dest="subparser")
    command = serve.ServeSubcommand()
    command.subparser_init(subparsers).set_defaults(dispatch_function=command.cmd)
    arguments = parser.parse_args()
    command.validate(arguments)
    arguments.dispatch_function(arguments)
"""
SERVE = """
import argparse

class ServeSubcommand:
    name = "serve"

    @staticmethod
    def cmd(args):
        raise SystemExit("it began to serve")

    def validate(self, args):
        if args.enable_auto_tool_choice and not args.tool_call_parser:
            raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")

    def subparser_init(self, subparsers):
        from vllm.entrypoints.cli.main import HELP
        parser = subparsers.add_parser("serve", usage="vllm serve [model_tag] [options]")
        parser.add_argument("model_tag", nargs="?")
        for name in ("--model", "--served-model-name", "--uds", "--tool-call-parser"):
            parser.add_argument(name)
        parser.add_argument("--max-model-len", type=int, help=HELP)
        parser.add_argument("--enable-auto-tool-choice", action="store_true")
        parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
        return parser
"""
# The unit llm-arguments@main.service: restart runs it to its end, stop removes its directory.
SYSTEMCTL_WITH_PARSER = r"""
while :; do case $1 in --no-*) shift ;; *) break ;; esac; done
case "$*" in *llm-arguments@*) ;; *) exec "$(dirname "$0")/systemctl.engine" "$@" ;; esac
cd "$FAKE_UNIT" || exit 1
echo "$*" >> calls
place=$FLEET_RUN_ROOT/llm-arguments/main
[ "$1" = show ] && { echo "InvocationID=$(cat parser-invocation)"; exit 0; }
rm -rf "$place"
[ "$1" = restart ] || exit 0
cat /proc/sys/kernel/random/uuid > parser-invocation
[ -e parser-dies ] && cat parser-dies > "journal-$(cat parser-invocation)"
[ -e parser-dies ] && { echo "Job for $2 failed." >&2; exit 1; }
mkdir -p "$place"
[ -e parser-silent ] && exit 0
"$FAKE_HOME/candidate/runtime/bin/python" -m fleet_host arguments run main >> log 2>&1
"""

# What one start of the unit said, by its invocation; of no start in particular, all of it.
JOURNALCTL_OF_STARTS = r"""
cd "$FAKE_UNIT" || exit 1
for word; do case $word in _SYSTEMD_INVOCATION_ID=*)
    [ ! -e "journal-${word#*=}" ] || { cat "journal-${word#*=}"; exit; } ;; esac; done
case "$*" in *llm-arguments@*) cat journal-* 2>/dev/null; exit 0 ;; esac
exec "$(dirname "$0")/journalctl.engine" "$@"
"""


class ArgumentHost(FakeHost):
    def prepare(self) -> None:
        super().prepare()
        put_program(self.root / "bin", "systemctl.engine", SYSTEMCTL)
        put_program(self.root / "bin", "systemctl", SYSTEMCTL_WITH_PARSER)
        put_program(self.root / "bin", "journalctl.engine", JOURNALCTL)
        put_program(self.root / "bin", "journalctl", JOURNALCTL_OF_STARTS)
        runtime = self.llm_root / "runtimes/vllm"
        put_program(
            runtime / "bin", "python", f'PYTHONPATH="{runtime}/site:{FILES}" exec "$PYTHON" "$@"\n'
        )
        self.put_vllm(main=MAIN, serve=SERVE)

    def put_vllm(self, **modules: str) -> None:
        place = self.llm_root / "runtimes/vllm/site/vllm"
        for package in ("", "entrypoints", "entrypoints/cli"):
            (place / package).mkdir(parents=True, exist_ok=True)
            (place / package / "__init__.py").write_text('__version__ = "9.1"\n')
        for name, text in modules.items():
            (place / "entrypoints/cli" / f"{name}.py").write_text(text)

    def arguments_request(self, identity: str, **arguments: Any) -> dict[str, Any]:
        """A release with these engine.args; its engine takes no notice of them."""
        request = self.release_request(identity)
        config = {"model": "/m", "served-model-name": "m", **arguments}
        return {**request, "config_yaml": json.dumps(config)}

    def verdict(self, identity: str) -> dict[str, Any] | None:
        path = self.home / "releases" / identity / "arguments.json"
        return json.loads(path.read_text()) if path.exists() else None

    def asked(self) -> int:
        return sum("restart llm-arguments@main" in call for call in self.calls())


@pytest.fixture
def argument_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArgumentHost]:
    yield from in_use(ArgumentHost(tmp_path), monkeypatch)
