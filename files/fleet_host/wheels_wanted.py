"""Telling a server of wheels that they are still wanted, while something else takes its time.

The fleet's first host serves wheels only while hosts install, and ends when nobody has asked for a
minute (wheel_server.py). conda downloads a Python first; on a busy host a venv with pip takes a
minute too (seen with three hosts on two cores).
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_SECONDS = 15.0
ANSWER_SECONDS = 5.0


def reminder(place: str | None) -> Callable[[], None]:
    """A function to be called often: it asks at most every quarter of a minute. Nothing for wheels
    that are in a directory, or on an index. A server that does not answer is not told of here; what
    installs from it will be."""
    if place is None or not place.startswith(("http://", "https://")):
        return lambda: None
    asked_at = [float("-inf")]
    request = urllib.request.Request(place, method="HEAD")  # noqa: S310 - a URL of the settings

    def remind() -> None:
        if time.monotonic() - asked_at[0] < INTERVAL_SECONDS:
            return
        asked_at[0] = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS):  # noqa: S310
                pass
        except (OSError, http.client.HTTPException, urllib.error.URLError):
            return

    return remind
