"""Stand-ins for systemctl, journalctl, apt-mark and nvidia-smi, for `fleet-host host care`.

State, in a directory: units/NAME (words: enabled or disabled or static, then active or inactive),
held (package names), persistence (Enabled or Disabled), calls. What a test puts there: locked (so
many times dpkg's lock is taken), fails-NAME (the unit does not start), no-mode (Ubuntu's daemon,
which leaves the mode off).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SYSTEMCTL = r"""
import os, sys
home = os.environ["FAKE_CARE"]
words = [word for word in sys.argv[1:] if not word.startswith("--no-")]
with open(home + "/calls", "a") as file:
    file.write("systemctl " + " ".join(words) + "\n")
action, names = words[0], [word for word in words[1:] if not word.startswith("-")]
path = home + "/units/" + (names[0] if names else "")
state = open(path).read().split() if names and os.path.exists(path) else None
if action == "show":
    wanted = [word for word in words if word.startswith("--property=")][0][11:].split(",")
    values = {"LoadState": "loaded" if state else "not-found", "InvocationID": "i",
              "ActiveState": state[1] if state else "inactive",
              "UnitFileState": state[0] if state else "",
              "Result": "success"}
    if os.path.exists(home + "/dirty-stop") or values["ActiveState"] == "failed":
        values["Result"] = "exit-code"
    for key in wanted:
        print(key + "=" + values[key])
elif action == "daemon-reload":
    pass
else:
    file = os.environ["FLEET_ETC_ROOT"] + "/systemd/system/" + names[0]
    if state is None and os.path.exists(file):
        state = ["disabled", "inactive"]
    if state is None:
        sys.exit("Unit " + names[0] + " could not be found.")
    if action in ("start", "restart"):
        if os.path.exists(home + "/fails-" + names[0]):
            sys.exit("Job for " + names[0] + " failed.")
        state[1] = "active"
        if "persistence" in names[0]:
            drop_in = file + ".d/llm.conf"
            if not os.path.exists(home + "/no-mode") or os.path.exists(drop_in):
                open(home + "/persistence", "w").write("Enabled")
    elif action == "enable":
        state[0] = "enabled"
    elif action == "disable":
        state = ["disabled", "failed" if state[1] == "failed" else "inactive"]
    elif action == "reset-failed":
        state[1] = "inactive"
    open(path, "w").write(" ".join(state))
"""

APT_MARK = r"""
import os, sys
home = os.environ["FAKE_CARE"]
action, names = sys.argv[1], sys.argv[2:]
with open(home + "/calls", "a") as file:
    file.write(" ".join(["apt-mark", action, *names]) + "\n")
held = set(open(home + "/held").read().split())
if action == "showhold":
    print("\n".join(sorted(held)))
    sys.exit()
locked = home + "/locked"
if os.path.exists(locked):
    left = int(open(locked).read()) - 1
    os.unlink(locked) if left <= 0 else open(locked, "w").write(str(left))
    sys.exit("dpkg: error: dpkg frontend lock was locked by another process with pid 4711")
if os.path.exists(home + "/dies"):
    os.kill(os.getppid(), 9)
    sys.exit()  # or the hold would come about a moment later, while the test goes on
held = held | set(names) if action == "hold" else held - set(names)
open(home + "/held", "w").write(" ".join(sorted(held)))
"""

NVIDIA_SMI = r"""
import os
print(open(os.environ["FAKE_CARE"] + "/persistence").read())
print(open(os.environ["FAKE_CARE"] + "/persistence").read())
"""

JOURNALCTL = r"""
print("Starting llm-fans.service - GPU fans by temperature...")
print('{\n "error": {\n  "what": "the GPU has no fan",')
print('  "why": "the chassis cools it.", "fix": "Write report.", "detail": []\n }\n}')
print("Failed to start.")
"""


@dataclass(frozen=True)
class CareHost:
    root: Path

    def says(self, name: str, text: str = "") -> None:
        (self.root / name).write_text(text)

    def state(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.exists() else ""

    def calls(self, *first: str) -> list[str]:
        """Calls that change something, of one program if it is named."""
        return [
            line
            for line in self.state("calls").splitlines()
            if line.split()[1] not in ("show", "showhold") and line.startswith(first or ("",))
        ]


@pytest.fixture
def care_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CareHost:
    programs = tmp_path / "bin"
    for name in ("bin", "units", "etc/systemd/system", "llm/state", "root/usr/bin"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in {
        "systemctl": SYSTEMCTL,
        "apt-mark": APT_MARK,
        "nvidia-smi": NVIDIA_SMI,
        "journalctl": JOURNALCTL,
    }.items():
        (programs / name).write_text(f"#!{sys.executable} -SE\n{text}")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CARE", str(tmp_path))
    monkeypatch.setenv("FLEET_LLM_ROOT", str(tmp_path / "llm"))
    monkeypatch.setenv("FLEET_ETC_ROOT", str(tmp_path / "etc"))
    monkeypatch.setenv("FLEET_STATE_ROOT", str(tmp_path / "lib"))
    monkeypatch.setenv("FLEET_SYSTEM_ROOT", str(tmp_path / "root"))
    made = CareHost(tmp_path)
    made.says("held")
    made.says("persistence", "Disabled")
    return made
