"""python -m tests.hosts.lanes PATH... [--beside PATH...] [-- PYTEST OPTIONS]: the hosts' tests as
two runs at once.

They wait half of the time: for engines that start, for time-outs, for machines that boot. So some
files run beside the others, with hosts and a hub of their own in the same lab (lab_session.LANE),
and so do tests that need no hosts, which are named after --beside.
Exit code: pytest's, the largest of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from lab import hosts
from lab.hub.places import HUB_VARIABLE, hub_directory, models_directory
from lab.models.catalogue import make_missing, print_line
from tests.hosts.lab_session import FIRST_MODEL

REPOSITORY = Path(__file__).resolve().parents[2]
# Without a lab, so before both.
ALONE = ("test_00_lab.py",)
# These use neither the real engine's host nor another file's deploys; together about half.
SECOND_LANE = (
    "test_50_go_live.py",
    "test_55_proof_and_watch.py",
    "test_57_log_file.py",
    "test_70_gateway.py",
    "test_72_wheelhouse.py",
    "test_74_three_engines.py",
    "test_75_kernel_and_settings.py",
    "test_80_conda.py",
    "test_80_rollout.py",
    "test_81_rollout_ends.py",
    "test_82_care.py",
    "test_83_playbooks.py",
    "test_84_driver.py",
    "test_87_rollout_behind_a_gateway.py",
    "test_88_lost_operator.py",
    "test_every_kind.py",
)
_PRINTING = threading.Lock()


def files_of(paths: list[str]) -> list[Path]:
    """The files of these paths, in the order in which pytest takes them."""
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(path.glob("test_*.py")) if path.is_dir() else [path]
    return found


def split(files: list[Path]) -> tuple[list[Path], list[Path], list[Path]]:
    """(before both, first lane, second lane)."""
    alone = [file for file in files if file.name in ALONE]
    second = [file for file in files if file.name in SECOND_LANE]
    return alone, [file for file in files if file not in (*alone, *second)], second


def main(arguments: list[str]) -> int:
    """Exit code."""
    paths, beside, options = asked(arguments)
    alone, first, second = split(files_of(paths))
    if os.geteuid() != 0:
        return _start(options, [*beside, *alone, *first, *second]).wait()
    code = _start(options, alone).wait() if alone else 0
    was_down = not hosts.status()
    other = hub_directory().with_name("hub-2")
    make_missing(hub_directory(), print_line)
    _copy_model(hub_directory(), other)
    runs = [_start(options, first, {"FLEET_LANE": "1"})] if first else []
    if second:
        runs.append(_start(options, second, {"FLEET_LANE": "2", HUB_VARIABLE: str(other)}))
    if beside:
        runs.append(_start([*options, "-q"], beside, {}))
    codes = _print_both(runs)
    shutil.rmtree(other)
    if was_down:
        hosts.down()
    return max(code, *codes)


def asked(arguments: list[str]) -> tuple[list[str], list[Path], list[str]]:
    """(the hosts' tests, what runs beside them, pytest's options)."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    paths, options = arguments[:at], arguments[at + 1 :]
    at = paths.index("--beside") if "--beside" in paths else len(paths)
    return paths[:at] or ["tests/hosts"], [Path(path) for path in paths[at + 1 :]], options


def _copy_model(hub: Path, other: Path) -> None:
    source, target = models_directory(hub) / FIRST_MODEL, models_directory(other) / FIRST_MODEL
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)


def _start(
    options: list[str], files: list[Path], environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """pytest on these files. environment: of one run of several, whose output is piped."""
    piped = None if environment is None else subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-v", *options, *map(str, files)],
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdout=piped,
        stderr=piped and subprocess.STDOUT,
        text=True,
    )


def _print_both(runs: list[subprocess.Popen[str]]) -> list[int]:
    """Their lines as they come, each with its lane. The exit codes."""
    threads = [
        threading.Thread(target=_print, args=(run, lane)) for lane, run in enumerate(runs, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [run.wait() for run in runs]


def _print(run: subprocess.Popen[str], lane: int) -> None:
    assert run.stdout is not None
    for line in run.stdout:
        with _PRINTING:
            print(f"{lane} | {line}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
