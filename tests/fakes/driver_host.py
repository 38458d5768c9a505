"""Stand-ins for apt, dpkg, modinfo, nvidia-smi and systemctl, for the job that installs a driver.

State, in a directory: candidates and installed (JSON, package -> version), held (names), disk and
loaded (versions of the kernel module, empty for none), unit and load (the engine's ActiveState and
LoadState), calls. What a test puts there: removes (package that the installation would remove),
fails (apt-get install ends with 100), offline (apt-get update does), dies (the job's process is
killed by its apt-get), answers (what nvidia-smi says in place of the loaded version).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = r"""
import json, os, signal, sys
home = os.environ["FAKE_DRIVER"]
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
plain = [word for word in words if word[:1] not in "-$" and "=" not in word]

def read(file):
    try:
        return open(os.path.join(home, file)).read()
    except FileNotFoundError:
        return ""

def write(file, text):
    open(os.path.join(home, file), "w").write(text)

def has(file):
    return os.path.exists(os.path.join(home, file))

def log():
    with open(home + "/calls", "a") as file:
        file.write(" ".join([name, *plain]) + "\n")

candidates = json.loads(read("candidates") or "{}")
installed = json.loads(read("installed") or "{}")
held = set(read("held").split())
if name == "apt-cache":
    for package in plain[1:]:
        if package in candidates:
            print(package + ":\n  Installed: " + installed.get(package, "(none)")
                  + "\n  Candidate: " + candidates[package] + "\n  Version table:")
elif name == "apt-get" and plain[0] == "update":
    log()
    sys.exit(100 if has("offline") else 0)
elif name == "apt-get":
    names = plain[1:]
    if "-s" in words:
        for package in read("removes").split():
            print("Remv " + package + " [1.0]")
        for package in names:
            print("Inst " + package + " (" + candidates[package] + " local)")
        sys.exit()
    log()
    if has("dies"):
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(1)
    if held & (set(names) | set(read("removes").split())):
        print("E: Held packages were changed and -y was used.")
        sys.exit(100)
    if has("fails"):
        print("E: You don't have enough free space in /var/cache/apt/archives/.")
        sys.exit(100)
    for package in names:
        installed[package] = candidates[package]
        write("disk", candidates[package].split("-")[0])
    write("installed", json.dumps(installed))
elif name == "dpkg-query":
    form = [word for word in words if word.startswith("$")][0]
    asked = plain[0:] if "${Package}" not in form else sorted(installed)
    for package in asked:
        if package not in installed:
            sys.exit("dpkg-query: no packages found matching " + package)
        values = {"${Package}": package, "${Version}": installed[package],
                  "${db:Status-Abbrev}": "ii "}
        for key, value in values.items():
            form = form.replace(key, value)
        print(form.rstrip("\n"))
        form = [word for word in words if word.startswith("$")][0]
elif name == "dpkg":
    log()
elif name == "apt-mark":
    if plain[0] == "showhold":
        print("\n".join(sorted(held)))
    else:
        log()
        held = held | set(plain[1:]) if plain[0] == "hold" else held - set(plain[1:])
        write("held", " ".join(sorted(held)))
elif name == "modinfo":
    if not read("disk"):
        sys.exit("modinfo: ERROR: Module nvidia not found.")
    print(read("disk"))
elif name == "nvidia-smi":
    version = read("answers") or read("loaded")
    if not version:
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        sys.exit(9)
    print(version + "\n" + version)
elif name == "systemd-run":
    log()
elif name == "systemctl":
    words = [word for word in plain]
    if words[0] == "show":
        wanted = [word for word in sys.argv if word.startswith("--property=")][0][11:].split(",")
        values = {"LoadState": read("load") or "loaded", "ActiveState": read("unit") or "inactive"}
        for key in wanted:
            print(key + "=" + values.get(key, ""))
        sys.exit()
    log()
    if words[0] in ("stop", "start"):
        write("unit", {"stop": "inactive", "start": "active"}[words[0]])
"""
PROGRAMS = ("apt-cache", "apt-get", "apt-mark", "dpkg", "dpkg-query", "modinfo", "nvidia-smi",
            "systemctl", "systemd-run")  # fmt: skip


@dataclass(frozen=True)
class DriverHost:
    root: Path

    def says(self, name: str, text: object = "") -> None:
        (self.root / name).write_text(text if isinstance(text, str) else json.dumps(text))

    def state(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.exists() else ""

    def loads(self, version: str) -> None:
        """The kernel's module, as a boot would load it."""
        self.says("loaded", version)
        kernel = self.root / "root/proc/driver/nvidia"
        kernel.mkdir(parents=True, exist_ok=True)
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Sep 23 2025\n"
        (kernel / "version").write_text(line)

    def calls(self) -> list[str]:
        return self.state("calls").splitlines()


@pytest.fixture
def driver_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverHost:
    """Without a driver; its sources have nvidia-driver-lab 590.10-1."""
    programs = tmp_path / "bin"
    for name in ("bin", "etc/systemd/system", "llm/state", "root", "run/llm/drain"):
        (tmp_path / name).mkdir(parents=True)
    for name in PROGRAMS:
        (programs / name).write_text(f"#!{sys.executable} -SE\n{PROGRAM}")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DRIVER", str(tmp_path))
    for root, where in (("LLM", "llm"), ("ETC", "etc"), ("RUN", "run"), ("SYSTEM", "root")):
        monkeypatch.setenv(f"FLEET_{root}_ROOT", str(tmp_path / where))
    made = DriverHost(tmp_path)
    made.says("candidates", {"nvidia-driver-lab": "590.10-1"})
    return made
