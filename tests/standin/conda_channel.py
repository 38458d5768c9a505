"""Where the stand-in conda comes from: an installation, an installer, channels, and their locks.

python -m tests.standin.conda_channel    writes the locks of the hosts' tests again
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("conda.py")
TERMS = {"version": "2026-07-15T00:00:00Z", "text": "Terms of a test.", "support": "nobody"}


def install(prefix: Path, **switched: Any) -> Path:
    """PREFIX/bin/conda, as an installation has it; the program's path."""
    program = prefix / "bin" / "conda"
    program.parent.mkdir(parents=True, exist_ok=True)
    (prefix / "conda-meta").mkdir(exist_ok=True)
    (prefix / "conda-meta" / "history").write_text("")
    program.write_text(PROGRAM.read_text())
    program.chmod(0o755)
    switch(prefix, **switched)
    return program


def switch(prefix: Path, **switched: Any) -> None:
    (prefix / "standin.json").write_text(json.dumps(switched))
    (prefix / "standin.hangs").unlink(missing_ok=True)


def calls(prefix: Path) -> list[dict[str, Any]]:
    """{argv, env} of every call since the installation."""
    log = prefix / "calls.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


# As Miniforge's: a shell script that unpacks what is behind it; -b asks nothing, -p is the prefix,
# and an existing prefix is refused.
_INSTALLER = r"""#!/bin/sh
set -eu
batch=0 prefix=
while getopts bp: option; do
    case $option in
    b) batch=1 ;;
    p) prefix=$OPTARG ;;
    *) exit 2 ;;
    esac
done
if [ $batch = 0 ]; then
    echo "In order to continue the installation process, please review the license agreement."
    read -r answer || exit 2
fi
if [ -e "$prefix" ]; then
    echo "ERROR: File or directory already exists: '$prefix'" >&2
    echo "If you want to update an existing installation, use the -u option." >&2
    exit 1
fi
echo "PREFIX=$prefix"
mkdir -p "$prefix/bin" "$prefix/conda-meta" "$prefix/pkgs"
: >"$prefix/conda-meta/history"
echo "Unpacking payload ..."
${STANDIN_PAUSE}cat >"$prefix/bin/conda" <<'END-OF-PAYLOAD'
PAYLOAD
END-OF-PAYLOAD
chmod 0755 "$prefix/bin/conda"
echo "installation finished."
"""


def installer_text(pause: str = "") -> str:
    """pause: shell that runs in the middle, for tests that end it there."""
    text = _INSTALLER.replace("${STANDIN_PAUSE}", f"{pause}\n" if pause else "")
    return text.replace("PAYLOAD\nEND", PROGRAM.read_text() + "END")


@dataclass(frozen=True)
class Channel:
    """A directory that is a channel: packages, and terms.json where it has terms. url: where
    conda is told that it is."""

    directory: Path
    url: str

    def put(self, name: str, subdir: str = "linux-64") -> str:
        """A package of that name-version-build; its line of an explicit lock."""
        content = f"the stand-in package {name}\n".encode()
        path = self.directory / subdir / f"{name}.conda"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"{self.url}/{subdir}/{name}.conda#{hashlib.sha256(content).hexdigest()}"

    def terms(self, **changes: Any) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "terms.json").write_text(json.dumps({**TERMS, **changes}))

    def lock(self, python: str, *more: str) -> str:
        """An explicit lock with a Python, `python`: 3.11, and further packages."""
        names = [f"python-{python}.9-0_standin", "ca-certificates-2026.11.1-0", *more]
        return "@EXPLICIT\n" + "".join(f"{self.put(name)}\n" for name in sorted(names))


def local_channel(directory: Path) -> Channel:
    """A channel that conda reads as files."""
    return Channel(directory, f"file://{directory}")


# The hosts' tests: channels as directories on the hosts, and locks of them, relative to the
# repository as runtime.conda.lock wants them. The main channel has terms.
HOST_CHANNELS = Path("/srv/conda-channel")
HOST_LOCKS = {
    (channel, python): f"tests/standin/conda-{channel}-python-{python}.txt"
    for channel in ("forge", "main")
    for python in ("3.11", "3.13")
}
_HEAD = "# The stand-in's. Made by `python -m tests.standin.conda_channel`.\n"


def host_channel(name: str) -> str:
    return f"file://{HOST_CHANNELS / name}"


def make_host_channels(directory: Path) -> dict[tuple[str, str], str]:
    """Put the hosts' channels into a directory; the text of each lock, by channel and Python."""
    texts = {}
    for name, python in HOST_LOCKS:
        channel = Channel(directory / name, host_channel(name))
        texts[name, python] = _HEAD + channel.lock(python)
        if name == "main":
            channel.terms()
    return texts


def host_channels_archive() -> str:
    """The hosts' channels as a tar archive in base64, to be unpacked in HOST_CHANNELS."""
    with tempfile.TemporaryDirectory() as scratch:
        make_host_channels(Path(scratch))
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(scratch, arcname=".")
    return base64.b64encode(buffer.getvalue()).decode()


if __name__ == "__main__":
    repository = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as scratch:
        for key, text in make_host_channels(Path(scratch)).items():
            (repository / HOST_LOCKS[key]).write_text(text)
