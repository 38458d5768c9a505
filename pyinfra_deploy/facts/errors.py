"""What a parser raises when an output is not what it knows."""

from __future__ import annotations


class UnreadableOutput(Exception):
    """The text cannot be read without guessing; the message says what is wrong with it."""
