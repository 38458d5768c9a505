"""The log of all processes of the service: lines for the journal, never a prompt or a key."""

from __future__ import annotations

import logging


class _NoIncompleteAnswers(logging.Filter):
    """An engine that broke off makes an incomplete answer: ours says why, this one adds nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()


def configure_logging() -> None:
    # journald adds the time, the host and the unit.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(_NoIncompleteAnswers())
