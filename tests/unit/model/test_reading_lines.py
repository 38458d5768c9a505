"""A child's lines, as they come and as a whole; a child that takes too long."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy import reading
from pyinfra_deploy.model import verify

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_come_one_by_one_and_whole_in_the_end(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import sys; print('one', flush=True); print('two', file=sys.stderr)"
    said = reading.run([sys.executable, "-c", code], tmp_path, 60, lines.append)
    assert lines == ["one", "two"]
    assert said == "one\ntwo\n"


def test_a_child_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    code = "import time; print('begun', flush=True); time.sleep(60)"
    said = reading.run([sys.executable, "-c", code], tmp_path, 0.5)
    assert said == "(stopped: it took more than 0 seconds)"


def test_a_child_is_ended_with_its_reader(tmp_path: Path) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    code = "import time; print('begun', flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        reading.run([sys.executable, "-c", code], tmp_path, 60, interrupted)


def test_only_a_host_s_progress_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    verify.say_progress("    [gpu01] verify: verify, 1.0 GB of 2.0 GB (50%)")
    verify.say_progress("--> Connecting to hosts...")
    assert capsys.readouterr().err == "[gpu01] verify: verify, 1.0 GB of 2.0 GB (50%)\n"
