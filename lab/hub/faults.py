"""What can go wrong with a hub, as data: tests switch faults on while it runs.

`Fault("corrupt", path="*.safetensors", times=1)` is one. Which of them apply to a request is
decided here; what each does to an answer is in lab/hub/listing.py (the listing) and server.py.
"""

from __future__ import annotations

import fnmatch
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

# Two requests that are no file have these in place of a path, for Fault.path to match.
LISTING = "@listing"
REVISIONS = "@revisions"

FILE_FAULTS = {
    "corrupt": "one byte in the middle of what is sent is another",
    "drop": "the connection closes after `value` bytes (default: half)",
    "stall": "nothing more after `value` bytes (default: half), and the connection stays open",
    "slow": "`value` bytes a second",
    "redirect": "302 to `value` (a URL) and the request's path behind it; default: /cdn here",
}
REQUEST_FAULTS = {
    "error": "HTTP status `value` (default 500); path @listing, @revisions or a file, * is all",
    "token": "401 unless the request carries the token `value`",
}
LISTING_FAULTS = {
    "no_sha256": "the entry has no Sha256",
    "wrong_sha256": "the entry has the Sha256 of something else",
    "wrong_size": "the entry has a Size one byte too large",
    "omit": "the entry is missing",
    "extra": "a file at the path `value` that is no part of the model; it can be downloaded",
    "many": "small files at filler/DD/NNNNN.txt until there are `value` entries",
    "no_revision": "the revision that matches `path` does not exist",
    "moves": "after one listing of the branch that matches `path` it stands for the commit `value`",
}
KINDS = {**FILE_FAULTS, **REQUEST_FAULTS, **LISTING_FAULTS}
_NEEDS_VALUE = {"slow": int, "token": str, "extra": str, "many": int, "moves": str}


@dataclass(frozen=True)
class Fault:
    """One fault. `model` and `path` are shell patterns; `times` None means until it is cleared."""

    kind: str
    path: str = "*"
    model: str = "*"
    times: int | None = None
    value: str | int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no fault is called {self.kind!r}; there are: {', '.join(KINDS)}")
        wanted = _NEEDS_VALUE.get(self.kind)
        if wanted and not isinstance(self.value, wanted):
            raise ValueError(
                f"fault {self.kind} needs value, {wanted.__name__}: {KINDS[self.kind]}; "
                f"found {self.value!r}"
            )
        if self.times is not None and self.times < 1:
            raise ValueError(f"times is {self.times}; it is at least 1, or absent")

    def matches(self, model_id: str, path: str) -> bool:
        return fnmatch.fnmatchcase(model_id, self.model) and fnmatch.fnmatchcase(path, self.path)


class FaultBoard:
    """The faults that are on, and what was asked and sent. Used by many threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._left: list[int | None] = []
        self._moved: dict[str, str] = {}
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._applied: Counter[str] = Counter()

    def replace(self, faults: list[Fault]) -> None:
        """These faults and no others; what a former one had moved is back."""
        with self._lock:
            self._faults = list(faults)
            self._left = [fault.times for fault in faults]
            self._moved = {}

    def take(self, kind: str, model_id: str, path: str) -> Fault | None:
        """The first fault of `kind` that applies here; it counts as applied once more."""
        with self._lock:
            for number, fault in enumerate(self._faults):
                left = self._left[number]
                if fault.kind == kind and left != 0 and fault.matches(model_id, path):
                    if left is not None:
                        self._left[number] = left - 1
                    self._applied[kind] += 1
                    return fault
        return None

    def listing_faults(self, model_id: str) -> list[Fault]:
        """Every listing fault for a model; a listing counts as one application of each."""
        found = []
        with self._lock:
            for number, fault in enumerate(self._faults):
                left = self._left[number]
                about = fnmatch.fnmatchcase(model_id, fault.model)
                if about and left != 0 and fault.kind in LISTING_FAULTS:
                    if left is not None:
                        self._left[number] = left - 1
                    self._applied[fault.kind] += 1
                    found.append(fault)
        return found

    def lasting(self, kind: str, model_id: str) -> list[Fault]:
        """Faults of `kind` for a model, without counting: what an `extra` file contains, say."""
        with self._lock:
            return [
                fault
                for fault in self._faults
                if fault.kind == kind and fnmatch.fnmatchcase(model_id, fault.model)
            ]

    def move(self, model_id: str, branch: str, commit: str) -> None:
        """From now on `branch` stands for `commit`."""
        with self._lock:
            self._moved[f"{model_id}@{branch}"] = commit

    def moved(self, model_id: str, branch: str) -> str:
        """What to look for in the store when `branch` is asked for."""
        with self._lock:
            return self._moved.get(f"{model_id}@{branch}", branch)

    def count_request(self, path: str, status: int) -> None:
        with self._lock:
            self._requests[path] += 1
            self._statuses[str(status)] += 1

    def count_bytes(self, path: str, count: int) -> None:
        with self._lock:
            self._bytes[path] += count

    def counters(self) -> dict[str, Any]:
        """requests and bytes by path, answers by HTTP status, applied faults by kind."""
        with self._lock:
            return {
                "requests": dict(self._requests),
                "bytes": dict(self._bytes),
                "statuses": dict(self._statuses),
                "applied": dict(self._applied),
            }

    def reset_counters(self) -> None:
        with self._lock:
            for counter in (self._requests, self._bytes, self._statuses, self._applied):
                counter.clear()

    def faults(self) -> list[dict[str, Any]]:
        """The faults that are on, with `left`, the applications that remain (null: no limit)."""
        with self._lock:
            return [
                {**asdict(fault), "left": left}
                for fault, left in zip(self._faults, self._left, strict=True)
            ]
