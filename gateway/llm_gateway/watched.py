"""Whether a file changed since it was last read, and the configuration that follows its file."""

from __future__ import annotations

import hashlib
import logging
import os
from typing import TYPE_CHECKING

from .config import MAX_FILE_BYTES, Config, parse_config
from .fields import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("llm_gateway")

CHECK_INTERVAL_SECONDS = 0.5

# device, inode, modification and change time in ns, size. The change time catches a file written
# in place and given its old modification time back.
Signature = tuple[int, int, int, int, int]


def signature_of(descriptor: int) -> Signature:
    """What tells one state of an open file from another."""
    status = os.fstat(descriptor)
    return (
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
    )


class ConfigFile:
    """The configuration in force. One that cannot be read or used changes nothing but the log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.current: Config | None = None
        # SHA-256 of the text in force, and what is wrong with a newer one that is not.
        self.digest: str | None = None
        self.problem: str | None = None
        self._seen: Signature | str | None = None

    def refresh(self) -> bool:
        """Read the file if it changed; True when another configuration is in force."""
        try:
            with self.path.open("rb") as stream:
                signature = signature_of(stream.fileno())
                if signature == self._seen:
                    return False
                content = stream.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            return self._complain(f"it cannot be read: {error.strerror}")
        self._seen = signature
        try:
            config = parse_config(content)
        except ConfigError as error:
            self.problem = str(error)
            log.error("%s: %s; %s", self.path, error, self._consequence())
            return False
        self.digest, self.problem = hashlib.sha256(content).hexdigest(), None
        changed = config != self.current
        self.current = config
        if changed:
            log.info("%s: %d backends in force", self.path, len(config.backends))
        return changed

    def _complain(self, problem: str) -> bool:
        if self._seen != problem:  # once, not twice a second
            self._seen = self.problem = problem
            log.error("%s: %s; %s", self.path, problem, self._consequence())
        return False

    def _consequence(self) -> str:
        if self.current is None:
            return "there is no configuration yet, every request is refused with 503"
        return "the configuration before it stays in force"
