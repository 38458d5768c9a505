"""`fleet model verify`: whether the models on hosts are what was verified when they were pulled."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.model.asking import (
    INCOMPLETE,
    add_hosts,
    ask,
    engine_hosts,
    say_what_is_missing,
)
from pyinfra_deploy.planning.model_lock_changes import size_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

DAMAGED = 1
# As the step's lines begin (operations/verify_steps.py, jobs.py).
PROGRESS = "] verify: "
# 235 GB from a disk that gives 100 MB/s, and hosts that wait for each other.
TIMEOUT_SECONDS = 24 * 3600.0


def register(actions: Any) -> None:
    """Add `verify`; `actions` is argparse's object for subcommands, which has no public type."""
    command = actions.add_parser(
        "verify",
        help="whether models on hosts are as they were verified",
        description="Compares size, times and inode of each file with what was recorded when it "
        "was verified, which takes milliseconds, and hashes what differs. With --deep every byte "
        "is read from the disk, at low priority, by a job of the host that goes on without this "
        "command; run again, it joins the job. Engines are not touched; what is damaged is named "
        "and replaced by the next deploy.",
        epilog="exit code: 0 all are, 1 some are damaged, 2 some hosts could not be asked",
    )
    add_hosts(command)
    command.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="OWNER--NAME/REVISION",
        help="only this one; as `fleet model list` names it",
    )
    command.add_argument("--deep", action="store_true", help="read and hash every byte")
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    fleet, hosts = engine_hosts(arguments)
    data = {"deep": "yes" if arguments.deep else "no"}
    if arguments.model:
        data["models"] = ",".join(arguments.model)
    answers, printed = ask(fleet, hosts, "verify_models.py", data, TIMEOUT_SECONDS, say_progress)
    if arguments.json:
        print(json.dumps(answers, indent=1))
    else:
        for host in hosts:
            print("\n".join(report(host, answers.get(host) or {"refused": ["not reached"]})))
    if say_what_is_missing(hosts, answers, printed):
        return INCOMPLETE
    return DAMAGED if any("wrong" in answers[host] for host in hosts) else 0


def say_progress(line: str) -> None:
    """How far a host is, of all that pyinfra says; on stderr, as the answer is yet to come."""
    if PROGRESS in line:
        print(line.strip(), file=sys.stderr, flush=True)


def report(host: str, answer: Mapping[str, Any]) -> list[str]:
    """One host for the operator: a line a model, and lines for what is wrong with it."""
    if "refused" in answer:
        return [f"{host}: {'; '.join(answer['refused']) or 'no answer'}"]
    lines = []
    for row in answer["models"]:
        how = f"{row['hashed']} of {row['files']} files hashed"
        wrong = [f"{bad['path']} {bad['problem']}" for bad in (*row["damaged"], *row["broken"])]
        wrong += [f"{path} does not belong to the model" for path in row["extra"]]
        word = f"{len(wrong)} THINGS ARE WRONG" if wrong else "as it was verified"
        lines.append(f"{host}: {row['name']}, {size_words(row['bytes'] or 0)}: {word} ({how})")
        lines += [f"    {text}" for text in wrong]
    for name in answer.get("skipped", ()):
        lines.append(f"{host}: {name} is left out, as a pull has it: verify it after that")
    if "wrong" in answer:
        lines += [f"    {line.strip()}" for line in answer["wrong"] if line.startswith("  fix:")]
    return lines or [f"{host}: has no model"]
