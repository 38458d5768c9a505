"""What differs between two vLLM versions, in few lines and in full."""

from __future__ import annotations

from typing import Any

from pyinfra_deploy.planning.flag_difference import difference, in_few_lines, in_full


def flag(**changes: Any) -> dict[str, Any]:
    return {"aliases": [], "kind": "value", "type": "str", "choices": None, "default": "None",
            "deprecated": None, **changes}  # fmt: skip


def test_only_what_differs_is_said() -> None:
    same = {"a": flag(), "b": flag(kind="boolean", type="bool")}
    found = difference(same, same, ["a", "no-b"])
    assert found.is_empty
    assert found.yours == ()
    assert in_few_lines(found, "1", "2", "command") == [
        "vLLM 1 to 2: 0 new arguments, 0 gone, 0 other defaults, 0 other forms"
    ]


def test_your_arguments_come_first_by_whatever_name_they_are_set() -> None:
    before = {
        "cache": flag(kind="boolean", type="bool"),
        "share": flag(aliases=["portion"], type="float"),
        "mode": flag(choices=["a", "b"]),
        "gone": flag(),
    }
    after = {
        "cache": flag(kind="switch", type="bool"),
        "share": flag(aliases=["portion"], type="float", deprecated="Use part."),
        "mode": flag(choices=["b", "c"]),
    }
    keys = ["no-cache", "portion", "mode", "gone", "mode.part"]
    found = difference(before, after, keys)
    assert found.yours == (
        "no-cache: was on or off, is on",
        "portion is on its way out: Use part.",
        "mode: no more a; new: c",
        "gone is gone",
        "mode.part: no more a; new: c",
    )
    lines = in_few_lines(found, "1", "2", "fleet runtime flags lab --diff 1 2")
    assert lines[1] == "  in engine.args: no-cache: was on or off, is on"
    assert lines[-1] == "  all of it: fleet runtime flags lab --diff 1 2"


def test_an_argument_that_only_changed_its_main_name_is_not_gone() -> None:
    found = difference({"old": flag()}, {"new": flag(aliases=["old"])})
    assert found.gone == ()


def test_choices_that_could_not_be_read_are_no_difference() -> None:
    assert difference({"a": flag(choices=["x"])}, {"a": flag()}).is_empty


def test_many_names_are_folded_and_all_are_there_in_full() -> None:
    after = {f"flag-{n}": flag(default=str(n)) for n in range(40)}
    found = difference({}, after)
    lines = in_few_lines(found, "1", "2", "command")
    assert "and 28 more" in " ".join(" ".join(lines).split())
    assert all(len(line) <= 110 for line in lines)
    full = in_full(found, after)
    assert len(full) == 40
    assert full[39] == "new: flag-39 (a value (str), default 39)"
