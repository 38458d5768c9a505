"""python -m tests.bench [NAME [OPTIONS]]: measurements; docs/measurements.md has the results.

Without a name all of them, those that need recordings or root only where there are any.
"""

from __future__ import annotations

import importlib
import os
import sys

BENCHES = {
    "converge": "tests.bench.converge",
    "fanout": "tests.bench.fanout",
    "fanout-loopback": "tests.bench.fanout_loopback",
    "gateway": "tests.bench.gateway",
    "kv": "tests.bench.kv_estimate",
    "parts": "tests.bench.parts",
    "plan": "tests.bench.plan_hundred",
    "pull": "tests.bench.pull_memory",
    "rollout": "tests.bench.rollout",
    "transfer": "tests.bench.transfer",
    "verify": "tests.bench.verify",
}


ALL = "all"


def main(arguments: list[str]) -> int:
    """Exit code: the largest of what was run; 2 for a name that there is none of."""
    name = arguments[0] if arguments else ALL
    if name == ALL:
        return max(run(one, []) for one in BENCHES if not _lacking(one))
    if name not in BENCHES:
        print(f"usage: python -m tests.bench [{'|'.join((ALL, *BENCHES))} [OPTIONS]]",
              file=sys.stderr)  # fmt: skip
        return 2
    return run(name, arguments[1:])


def run(name: str, options: list[str]) -> int:
    code: int = importlib.import_module(BENCHES[name]).main(options)
    return code


def _lacking(name: str) -> bool:
    """Whether this one cannot be run here; says which and why, and announces it otherwise."""
    why = ""
    if name == "kv" and "CORPUS" not in os.environ:
        why = "CORPUS names no recorded starts"
    elif name == "fanout-loopback":
        why = "it needs --client"
    elif name in ("converge", "fanout", "rollout") and os.geteuid() != 0:
        why = "it needs root, for the lab's hosts"
    print(f"--- {name}" + (f": left out, {why}" if why else ""), flush=True)
    return bool(why)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
