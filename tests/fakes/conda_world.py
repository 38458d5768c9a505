"""What the tests of conda's environments share: a stand-in conda, channels, and a host's places."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import environment
from fleet_host.status import Progress

from tests.standin import conda_channel, wheel

if TYPE_CHECKING:
    from tests.standin.conda_channel import Channel

UV = Path(sys.executable).with_name("uv")


@cache
def system_python() -> str:
    """3.N of /usr/bin/python3, of which the stand-in makes environments."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@dataclass
class CondaWorld:
    """forge: a channel without terms. main, r: two with terms, as conda's `defaults` are."""

    root: Path
    forge: Channel
    main: Channel
    r: Channel

    @property
    def python(self) -> str:
        return system_python()

    @property
    def prefix(self) -> Path:
        return self.root / "conda"

    @property
    def path(self) -> Path:
        return self.root / "llm" / "runtimes" / "vllm-1"

    @property
    def home(self) -> Path:
        return self.root / "cache" / "home"

    def spec(self, *channels: Channel, consent: Any = None, **changes: Any) -> dict[str, Any]:
        """channels: where packages come from, the first of them Python. Where there is uv it
        installs, which is quicker: pip takes seconds to be put into an environment."""
        used = channels or (self.forge,)
        installer = changes.pop("installer", "uv" if UV.exists() else "pip")
        lock = used[0].lock(self.python, *(["pip-26.0-0_standin"] if installer == "pip" else []))
        for channel in used[1:]:
            lock += channel.put("zlib-1.3.1-0_standin") + "\n"
        of_conda = {
            "program": str(self.prefix / "bin" / "conda"),
            "lock": lock,
            "channels": [channel.url for channel in used],
            "terms": consent,
        }
        return {
            "path": str(self.path),
            "python": self.python,
            "requirements": wheel.lock_text(),
            "installer": installer,
            "uv": str(UV),
            "find_links": [str(self.root / "wheels")],
            "pip_args": ["--no-index"],
            "commands": ["vllm"],
            "conda": of_conda,
            **changes,
        }

    def build(self, *channels: Channel, **changes: Any) -> dict[str, Any]:
        return environment.run(self.spec(*channels, **changes), Progress(None))

    def switch(self, **switched: Any) -> None:
        conda_channel.switch(self.prefix, **switched)

    def commands(self) -> list[str]:
        """What conda was asked, each by its first two words."""
        return [" ".join(call["argv"][:2]) for call in conda_channel.calls(self.prefix)]

    def acceptances(self) -> list[Path]:
        return sorted(self.home.glob(".conda/tos/*/*.json"))

    def works(self) -> bool:
        done = subprocess.run(
            [str(self.path / "bin" / "python"), "-I", "-c", "import vllm; print(vllm.__version__)"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip() == wheel.VERSION


def consent(*channels: Channel, on: str = "2026-11-30") -> dict[str, Any]:
    return {
        "accepted_by": "Ada Lovelace",
        "accepted_on": on,
        "channels": [channel.url for channel in channels],
    }


@pytest.fixture
def conda_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CondaWorld:
    for name in ("llm/runtimes", "llm/tools", "cache", "programs", "etc", "var-lib", "wheels"):
        (tmp_path / name).mkdir(parents=True)
    # A sync of the whole file system waits for everybody else's writes on this machine.
    (tmp_path / "programs/sync").write_text("#!/bin/sh\n")
    (tmp_path / "programs/sync").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/programs:{os.environ['PATH']}")
    monkeypatch.setenv("FLEET_LLM_ROOT", str(tmp_path / "llm"))
    monkeypatch.setenv("FLEET_ETC_ROOT", str(tmp_path / "etc"))
    monkeypatch.setenv("FLEET_STATE_ROOT", str(tmp_path / "var-lib"))
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))
    wheel.publish(tmp_path / "wheels")
    channels = {
        name: conda_channel.local_channel(tmp_path / "channels" / name)
        for name in ("forge", "main", "r")
    }
    for name in ("main", "r"):
        channels[name].terms()
    made = CondaWorld(tmp_path, **channels)
    conda_channel.install(made.prefix)
    return made
