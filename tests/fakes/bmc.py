"""A stand-in for ipmitool and the BMC behind it: a program with its state in a directory.

$FAKE_BMC holds: mode (Supermicro's byte), duty, manual (Dell's); calls; and what a test puts there:
refuses (every raw command that sets), deaf (takes commands, fans do not react), dead-fan (a fan
that stops when set), slow (seconds until fans react).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[2] / "files"

PROGRAM = r"""#!PYTHON -SE
import os, sys, time
home = os.environ["FAKE_BMC"]
words = sys.argv[1:]

def read(name, default=""):
    try:
        with open(os.path.join(home, name)) as file:
            return file.read()
    except FileNotFoundError:
        return default

def write(name, text):
    with open(os.path.join(home, name), "w") as file:
        file.write(text)

with open(os.path.join(home, "calls"), "a") as file:
    file.write(" ".join(words) + "\n")

def refuse():
    sys.exit("Unable to send RAW command (channel=0x0 netfn=0x30 lun=0x0 cmd=0x30 rsp=0xd4): "
             "Insufficient privilege level")

def rpm():
    duty = 35
    if read("manual") == "1" or read("mode") == "01":
        duty = int(read("duty", "100"))
    if os.path.exists(os.path.join(home, "deaf")) or time.time() < float(read("reacts-at", "0")):
        duty = 35
    return duty * 120

if words == ["sdr", "type", "fan"]:
    dead = os.path.exists(os.path.join(home, "dead-fan")) and rpm() != 4200
    print("FAN1             | 41h | ok  | 29.1 | %d RPM" % rpm())
    second = ("cr ", 0) if dead else ("ok ", rpm())
    print("FAN2             | 42h | %s | 29.2 | %d RPM" % second)
    print("FANA             | 47h | ns  | 29.7 | No Reading")
    print("Fan Redundancy   | 75h | ok  |  7.1 | Fully Redundant")
elif words[0] == "raw":
    data = words[1:]
    if data == ["0x30", "0x45", "0x00"]:
        print(" " + read("mode", "02"))
        sys.exit()
    if os.path.exists(os.path.join(home, "refuses")):
        refuse()
    if read("slow"):
        write("reacts-at", str(time.time() + float(read("slow"))))
    if data[:3] == ["0x30", "0x45", "0x01"]:
        write("mode", data[3][2:])
        write("duty", "100")
    elif " ".join(data[:4]) in ("0x30 0x70 0x66 0x01", "0x30 0x30 0x02 0xff"):
        write("duty", str(int(data[-1], 16)))
    elif data[:3] == ["0x30", "0x30", "0x01"]:
        write("manual", {"0x00": "1", "0x01": "0"}[data[3]])
    else:
        refuse()
else:
    sys.exit("unknown")
"""


@dataclass(frozen=True)
class FakeBmc:
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(FILES),
            "FAKE_BMC": str(self.root),
            "FLEET_DMI_ROOT": str(self.root / "dmi"),
            "FLEET_ETC_ROOT": str(self.root / "etc"),
            "FLEET_RUN_ROOT": str(self.root / "run"),
            "FLEET_STATE_ROOT": str(self.root / "lib"),
        }

    def says(self, name: str, text: str = "") -> None:
        (self.root / name).write_text(text)

    def state(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.exists() else ""

    def raw_calls(self) -> list[str]:
        return [line for line in self.state("calls").splitlines() if line.startswith("raw")]

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "fleet_host", *words]


@pytest.fixture
def bmc(tmp_path: Path) -> FakeBmc:
    fake = FakeBmc(tmp_path)
    for name in ("bin", "dmi", "etc/llm", "etc/systemd/system", "run/llm-chassis-fans", "lib"):
        (tmp_path / name).mkdir(parents=True)
    program = tmp_path / "bin" / "ipmitool"
    program.write_text(PROGRAM.replace("PYTHON", sys.executable))
    program.chmod(0o755)
    fake.says("mode", "02")
    return fake
