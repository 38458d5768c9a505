"""python -m lab.models: make the lab's models where they are missing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.errors import LabError
from lab.hub.places import hub_directory, models_directory
from lab.hub.store import revision
from lab.models.catalogue import CATALOGUE, make_missing, print_line


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.models", description=__doc__)
    parser.add_argument("--lab-dir", type=Path, help="in place of FLEET_LAB_DIR")
    parser.add_argument("--only", choices=[model.model_id for model in CATALOGUE])
    options = parser.parse_args(argv)
    wanted = tuple(m for m in CATALOGUE if options.only in (None, m.model_id))
    hub = hub_directory(options.lab_dir)
    try:
        make_missing(hub, print_line, wanted)
        for model in wanted:
            found = revision(models_directory(hub), model.model_id, "master")
            megabytes = sum(file.size_bytes for file in found.files) / 1e6
            print_line(f"{model.model_id} at {found.commit[:12]}, {megabytes:.0f} MB")
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except PermissionError as error:
        sys.stderr.write(f"{error}\n  fix: run as root, or set FLEET_LAB_DIR\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
