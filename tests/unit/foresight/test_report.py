"""What `fleet plan` prints for people and for programs, and its exit codes."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from pyinfra_deploy import plan_commands
from pyinfra_deploy.cli import main
from pyinfra_deploy.plan_report import WIDTH, host_ranges
from tests.unit.foresight.places import QWEN3_32B, Place, ids

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def four(tmp_path: Path) -> Place:
    """gpu01 to gpu03 alike, but for their disks; gpu04 with a narrow link, under load."""
    place = Place(tmp_path / "fleet", "gpu01", "gpu02", "gpu03", "gpu04")
    place.write()
    place.rewrite("df.txt", lambda text: text.replace("13780634158080", "12780634158080"), "gpu02")
    place.rewrite(
        "nvidia-smi-q-x.xml",
        lambda text: text.replace("<performance_state>P8<", "<performance_state>P0<").replace(
            "<current_link_width>16x<", "<current_link_width>4x<", 1
        ),
        "gpu04",
    )
    return place


def test_equal_hosts_are_one_paragraph_and_what_is_refused_comes_last(
    four: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = four.text(capsys)
    paragraphs = text.strip().split("\n\n")
    assert code == 1
    assert [one.splitlines()[0] for one in paragraphs] == [
        "gpu01-gpu03: ok, 2 warnings (3 hosts alike)",
        "gpu04: REFUSED: gpu.pcie-width",
        "3 of 4 hosts would be deployed; refused: gpu04.",
    ]
    assert "11903 to 12834 GiB free on disk" in " ".join(paragraphs[0].split())
    assert "models on xfs" in " ".join(paragraphs[0].split())
    assert "fix:" in paragraphs[1]


def test_lines_fit_a_terminal_and_their_columns_are_aligned(
    four: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = four.text(capsys)
    lines = [line for line in text.splitlines() if line]
    assert max(map(len, lines)) <= WIDTH
    assert {len(line) - len(line.lstrip()) for line in lines} <= {0, 2, 4, 12, 20}


def test_layouts_are_shown_with_their_reasons(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = place.text(capsys, "--layouts")
    assert code == 0
    rows = _layout_rows(text)
    # Of prod.yml's vLLM; TP8 alone is as legal with it, but slower (its FP8 blocks are refined).
    assert rows[0] == ("yes", "TP8 + EP")
    assert ("no", "TP4") in rows
    assert ("no", "TP7") in rows
    assert max(map(len, text.splitlines())) <= WIDTH


def _layout_rows(text: str) -> list[tuple[str, str]]:
    """(mark, the layout's whole name) of each row."""
    listed = text.split("the best first:")[1]
    rows = [re.match(r"  (yes|maybe|no) +(TP\d+(?: x [PD]P\d+)*(?: \+ EP)?) ", line)
            for line in listed.splitlines()]  # fmt: skip
    return [(row[1], row[2]) for row in rows if row]


def test_layouts_are_of_the_gpus_that_the_engine_may_have(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """engine.gpus leaves four of eight, which lie on both NUMA nodes."""
    place.model = QWEN3_32B
    args = {**place.settings["engine"]["args"], "tensor-parallel-size": 2}
    del args["enable-expert-parallel"]
    place.write(engine={"args": args, "gpus": [1, 2, 5, 6]})
    _, text = place.text(capsys, "--layouts")
    rows = _layout_rows(text)
    assert ("yes", "TP4") in rows
    assert not any("TP8" in name or "TP5" in name for _, name in rows)
    _, hosts = place.plan(capsys, "--layouts")
    layouts = hosts["gpu01"]["layouts"]
    assert [one["layout"] for one in layouts if one["fits"] == "yes"] == [
        name for mark, name in rows if mark == "yes"
    ]
    two = next(one for one in layouts if one["layout"] == "TP2")
    assert (two["legal"], two["gpus_idle"], two["arguments"]) == (
        True, 2, {"tensor-parallel-size": 2}
    )  # fmt: skip
    # 1 and 2 lie behind one socket: their link is what a pair's is, not a step between sockets.
    assert "across NUMA nodes" not in two["why"]
    assert "across NUMA nodes" in next(one for one in layouts if one["layout"] == "TP4")["why"]
    three = next(one for one in layouts if one["layout"] == "TP3")
    assert (three["legal"], three["fits"], three["weights_bytes"]) == (False, None, None)
    assert three["reasons_against"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["gpu01"], "gpu01"),
        (["gpu01", "gpu02"], "gpu01, gpu02"),
        (["gpu08", "gpu09", "gpu10"], "gpu08-gpu10"),
        (["gpu9", "gpu10", "gpu11"], "gpu9, gpu10, gpu11"),
        (["gpu1", "gpu2", "gpu3", "gpu5", "web"], "gpu1-gpu3, gpu5, web"),
        (["a1", "b2", "b3", "b4"], "a1, b2-b4"),
        ([], ""),
    ],
)
def test_names_are_shortened_to_ranges(names: list[str], said: str) -> None:
    assert host_ranges(names) == said


def test_the_document_for_programs_keeps_its_shape(
    four: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*four.arguments(), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"hosts", "not_read"}
    assert [host["host"] for host in document["hosts"]] == list(four.hosts)
    host = document["hosts"][3]
    assert set(host) == {
        *("host", "refused", "hardware", "model", "placement", "memory", "findings", "changes"),
        "layouts",
    }
    assert host["layouts"] is None
    assert set(host["hardware"]) == {
        *("gpus", "driver", "cuda", "cpus", "memory_total_bytes", "llm_mount")
    }
    assert host["hardware"]["llm_mount"]["kind"] == "xfs"
    assert set(host["hardware"]["gpus"][0]) == {"index", "name", "uuid", "memory_total_mib"}
    assert set(host["memory"]) == {
        *("layout", "source", "weights_bytes", "available_bytes", "kv_bytes_per_token", "tokens"),
        *("requests_at_max_model_len", "longest_context"),
        *("requests_at_typical_length", "typical_tokens"),
    }
    assert host["memory"]["typical_tokens"] > 0
    typical = host["memory"]["requests_at_typical_length"]
    assert typical["low"] > host["memory"]["requests_at_max_model_len"]["low"]
    assert set(host["memory"]["tokens"]) == {"low", "middle", "high"}
    for one in host["findings"]:
        assert set(one) == {*("id", "severity", "subject", "message", "evidence", "fix", "source")}
    assert host["refused"]
    assert host["changes"] is None
    assert [one["severity"] for one in host["findings"]] == sorted(
        (one["severity"] for one in host["findings"]), key=["refuse", "warn", "note"].index
    )


def test_exit_codes(four: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert four.plan(capsys, "--limit", "gpu01,gpu02")[0] == 0
    shutil.rmtree(four.facts / "gpu02")
    # A refusal is known for sure, so it outweighs what is not known.
    assert four.plan(capsys, "--limit", "gpu01,gpu04")[0] == 1
    assert main([*four.arguments(), "--limit", "nothing-like-it"]) == 1
    with pytest.raises(SystemExit) as usage:
        main(["plan"])
    assert usage.value.code == 2


def test_the_last_line_on_the_screen_says_what_is_not_known(
    four: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After what pyinfra has said of a host that could not be read."""
    said = "[gpu03] Could not connect\nNo hosts remaining!\n"
    monkeypatch.setattr(plan_commands, "_facts", lambda *_: (four.facts, ["gpu03"], said))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", sys.stdout)
        code = main([*four.arguments(), "--limit", "gpu01,gpu03"])
    text = capsys.readouterr().out
    assert code == 2
    assert "  | No hosts remaining!" in text
    assert text.splitlines()[-1] == "1 of 1 hosts would be deployed; could not be read: gpu03."


def test_an_accepted_refusal_stays_visible(four: Place, capsys: pytest.CaptureFixture[str]) -> None:
    accepted = {"id": "gpu.pcie-width", "hosts": ["gpu04"], "reason": "repaired in January",
                "until": datetime.date(2999, 1, 31), "by": "Ada"}  # fmt: skip
    four.write(accept_findings=[accepted])
    code, hosts = four.plan(capsys)
    assert (code, ids(hosts["gpu04"], "refuse")) == (0, [])
    assert "gpu.pcie-width" in ids(hosts["gpu04"], "warn")
