"""What an engine's log says it died of: pure, from the lines of its journal.

vLLM ends with "Engine core initialization failed. See root cause above", and above is often more
than a hundred lines up: each worker prints its traceback, then the engine core, then the server.
"""

from __future__ import annotations

import re

MOST_CAUSES = 6
LAST_LINES = 15
LONGEST_LINE = 500
# "(EngineCore_DP0 pid=71) ", "(VllmWorker rank=5 pid=3073) ": which process speaks.
PROCESS = re.compile(r"^\([\w.-]+(?: \w+=[\w.:]+)+\) ?")
# "ERROR 11-30 07:12:13 [core.py:708] "; before 0.8 without the opening bracket.
LEVEL = re.compile(r"^(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d[\d.]* (?:\[?[\w./-]+:\d+\] ?)?")
# A traceback's last line begins at the margin: "ValueError: ...", "torch.OutOfMemoryError: ...",
# "AssertionError" alone. What argparse and the C runtime say before the end has no traceback.
CAUSE = re.compile(
    r"^(?:(?:[A-Za-z_][\w.]*)?(?:Error|Exception)(?::|$)"
    r"|[\w./ -]{1,60}: error: \S"
    r"|Fatal Python error: "
    r"|terminate called after throwing )"
)
# Lines that only point at others.
GENERIC = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|EngineDeadError"
    r"|[Ss]ee (?:the )?(?:root cause|stack trace)"
)


def explained(lines: list[str]) -> list[str]:
    """The causes that a log names, the first one first, then its last lines."""
    found = causes(lines)
    end = [line[:LONGEST_LINE] for line in lines[-LAST_LINES:]]
    return [*found, "--- the end of its log:", *end] if found else end


def causes(lines: list[str]) -> list[str]:
    """The distinct exceptions of a log, in order, those that explain nothing last; at most six.

    Eight workers that ran out of memory say it with eight numbers: such lines count as one.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        level, text = plain(line)
        if level not in ("", "ERROR", "CRITICAL") or not CAUSE.match(text):
            continue
        if "validation error" in text and number + 1 < len(lines):
            # pydantic names the field and what is wrong with it in the lines below.
            below = plain(lines[number + 1])[1].strip()
            text = f"{text.rstrip()}: {below}"
        found.setdefault(re.sub(r"\d+", "0", text), text.strip()[:LONGEST_LINE])
    ordered = sorted(found.values(), key=lambda text: bool(GENERIC.search(text)))
    return ordered[:MOST_CAUSES]


def plain(line: str) -> tuple[str, str]:
    """(log level or "", the text) of a line without its prefixes."""
    text = PROCESS.sub("", line)
    match = LEVEL.match(text)
    return (match["level"], text[match.end() :]) if match else ("", text)
