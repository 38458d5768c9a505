"""python -m tests.bench NAME [OPTIONS]: measurements; docs/measurements.md has the results."""

from __future__ import annotations

import importlib
import sys

BENCHES = {
    "converge": "tests.bench.converge",
    "gateway": "tests.bench.gateway",
    "kv": "tests.bench.kv_estimate",
    "parts": "tests.bench.parts",
    "plan": "tests.bench.plan_hundred",
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in BENCHES:
        print(f"usage: python -m tests.bench {'|'.join(BENCHES)} [OPTIONS]", file=sys.stderr)
        return 2
    code: int = importlib.import_module(BENCHES[arguments[0]]).main(arguments[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
