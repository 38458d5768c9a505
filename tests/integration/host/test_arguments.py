"""engine.args are asked about before anything is stopped: by source, then by vLLM's own parser."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from fleet_host import arguments, binding, golive, release
from fleet_host.errors import HostError
from fleet_host.status import Progress

from tests.unit.host.test_vllm_flags import FILES as SMALL_VLLM

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.argument_host import ArgumentHost


def stage(host: ArgumentHost, identity: str, **args: Any) -> None:
    release.stage(host.arguments_request(identity, **args))


def go(host: ArgumentHost, identity: str) -> dict[str, Any]:
    return golive.run(host.golive_spec(identity, ask_parser=True), Progress(None))


def refused(host: ArgumentHost, identity: str) -> HostError:
    with pytest.raises(HostError) as caught:
        go(host, identity)
    return caught.value


def engine_calls(host: ArgumentHost) -> list[str]:
    return [call for call in host.calls() if "llm-arguments" not in call and "show" not in call]


def test_the_parser_is_asked_once_for_a_release_and_its_word_is_kept(
    argument_host: ArgumentHost,
) -> None:
    host = argument_host
    stage(host, "r1", **{"max-model-len": 16384, "enable-prefix-caching": True})
    go(host, "r1")
    verdict = host.verdict("r1")
    assert verdict is not None
    assert (verdict["checked"], verdict["accepted"], verdict["version"]) == (True, True, "9.1")
    assert verdict["parsed"]["max-model-len"] == "16384"
    text = (host.home / "releases/r1/help.txt").read_text()
    assert "Only with --help in argv at the import." in text
    assert "groups only" not in text
    assert host.asked() == 1
    assert not (host.home / "candidate").is_symlink()
    assert not (host.root / "run/llm-arguments/main").exists()
    # Another start of the same release: a new binding, a reboot, a second run.
    binding.bind(host.bind("r1", "A=1\n"))
    go(host, "r1")
    assert host.asked() == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"enable-metrics": True}, "unrecognized arguments: --enable-metrics"),
        ({"max-model-len": "many"}, "invalid int value: 'many'"),
        ({"enable-auto-tool-choice": True}, "requires --tool-call-parser"),
        ({"enable-prefix-caching": False}, "enable-prefix-caching: false is dropped"),
        ({"max-model": 5}, "max-model is taken for an argument whose name begins like it"),
    ],
)
def test_what_the_parser_refuses_stops_nothing(
    argument_host: ArgumentHost, args: dict[str, Any], says: str
) -> None:
    host = argument_host
    stage(host, "r1")
    go(host, "r1")
    before, pid = engine_calls(host), (host.unit / "pid").read_text()
    stage(host, "r2", **args)
    error = refused(host, "r2")
    assert "r1 stays live" in error.what
    assert says in error.why
    assert engine_calls(host) == before
    assert (host.unit / "pid").read_text() == pid
    assert (host.linked("current"), host.golive_record()["phase"]) == ("r1", "done")
    assert not host.flag.exists()
    # The verdict is in the release: the next run refuses without asking again.
    assert host.asked() == 2
    assert says in refused(host, "r2").why
    assert host.asked() == 2


@pytest.mark.parametrize("how", ["parser-dies", "parser-silent"])
def test_a_parser_without_a_word_stops_nothing_and_is_asked_again(
    argument_host: ArgumentHost, how: str
) -> None:
    host = argument_host
    stage(host, "r1")
    (host.unit / how).touch()
    error = refused(host, "r1")
    assert "could not be found out" in error.what
    assert host.verdict("r1") is None
    assert host.linked("current") is None
    assert not (host.home / "candidate").is_symlink()
    (host.unit / how).unlink()
    assert go(host, "r1")["changed"] is True


def test_the_lines_are_of_this_start_and_a_too_large_environment_is_named(
    argument_host: ArgumentHost,
) -> None:
    host = argument_host
    for identity in ("r1", "r2"):
        stage(host, identity)
    (host.unit / "parser-dies").write_text("the trouble of r1\n")
    assert "the trouble of r1" in refused(host, "r1").detail
    (host.unit / "parser-dies").write_text("Failed to execute python: Argument list too long\n")
    error = refused(host, "r2")
    assert "the trouble of r1" not in error.detail
    assert "E2BIG" in error.why
    assert "engine.env" in error.fix


def test_a_vllm_of_another_layout_goes_live_and_that_is_on_record(
    argument_host: ArgumentHost,
) -> None:
    host = argument_host
    host.put_vllm(serve="x = 1\n")
    stage(host, "r1", anything=1)
    go(host, "r1")
    verdict = host.verdict("r1")
    assert verdict is not None
    assert (verdict["checked"], "ServeSubcommand" in verdict["message"]) == (False, True)
    assert not (host.home / "releases/r1/help.txt").exists()


def test_a_verdict_of_other_arguments_does_not_count(argument_host: ArgumentHost) -> None:
    host = argument_host
    stage(host, "r1")
    go(host, "r1")
    (host.home / "releases/r1/config.yaml").write_text('{"model": "/m", "nope": 1}')
    assert arguments.verdict_of("main", "r1") is None


def test_the_verdict_of_an_older_run_is_not_taken(argument_host: ArgumentHost) -> None:
    host = argument_host
    stage(host, "r1")
    place = host.root / "run/llm-arguments/main"
    place.mkdir(parents=True)
    (place / "arguments.json").write_text('{"release": "r0", "checked": true, "accepted": true}')
    assert arguments._read_own(place / "arguments.json") is not None
    go(host, "r1")
    assert (host.verdict("r1") or {})["release"] == "r1"


def test_only_a_small_plain_file_is_read_of_the_engine_s_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as handle:
        handle.truncate(arguments.LARGEST_BYTES + 1)
    for name in ("link", "pipe", "large", "none"):
        assert arguments._read_own(tmp_path / name) is None
    assert arguments._read_own(secret) == "{}"


# --- by source


def put_source(runtime: Path, **changes: tuple[str, str]) -> None:
    place = runtime / "lib/python3.12/site-packages"
    for name, text in SMALL_VLLM.items():
        old, new = changes.get(name.split("/")[0], ("", ""))
        path = place / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if old else text)


def review(
    host: ArgumentHost, identity: str, runtime: str, args: dict[str, Any], accepted: bool = False
) -> dict[str, Any]:
    return arguments.review(
        {"engine": "main", "id": identity, "runtime": str(host.llm_root / "runtimes" / runtime),
         "arguments": args, "advice": {"swap-space": "Remove the line."},
         "unknown_accepted": accepted}
    )  # fmt: skip


def test_an_unknown_name_that_is_accepted_is_left_to_the_parser(
    argument_host: ArgumentHost,
) -> None:
    host = argument_host
    put_source(host.llm_root / "runtimes/vllm")
    answer = review(host, "r1", "vllm", {"of-a-plugin": 5}, accepted=True)
    (warning,) = answer["warnings"]
    assert warning.startswith("of-a-plugin: is not an argument of this vLLM")
    assert warning.endswith("Accepted; vLLM's own parser decides.")
    # What is known to be gone, or is wrong in its value, is no plugin's.
    for args in ({"swap-space": 4}, {"level": "middle"}, {"max-model-len": True}):
        with pytest.raises(HostError):
            review(host, "r1", "vllm", args, accepted=True)


def test_the_source_is_read_before_a_release_is_staged(argument_host: ArgumentHost) -> None:
    host = argument_host
    put_source(host.llm_root / "runtimes/vllm")
    answer = review(host, "r1", "vllm", {"max-model-len": 5, "old": 1})
    assert (answer["known"], answer["count"], answer.get("before")) == (False, 29, None)
    assert answer["warnings"] == ["old: vLLM None says: [DEPRECATED] Use new."]
    with pytest.raises(HostError) as caught:
        review(host, "r1", "vllm", {"swap-space": 4, "max-model-lem": 5})
    assert "swap-space, and 1 more below" in caught.value.what
    assert "Remove the line." in caught.value.fix
    assert "Nearest: max-model-len" in caught.value.detail[1]
    assert not (host.home / "releases").exists()


def test_a_release_whose_verdict_is_kept_is_not_read_again(argument_host: ArgumentHost) -> None:
    host = argument_host
    stage(host, "r1")
    go(host, "r1")
    assert review(host, "r1", "vllm", {"swap-space": 4})["known"] is True


def test_an_upgrade_brings_the_arguments_of_both(argument_host: ArgumentHost) -> None:
    host = argument_host
    put_source(host.llm_root / "runtimes/vllm")
    put_source(host.llm_root / "runtimes/newer", engine=('"--loose"', '"--lax"'))
    stage(host, "r1")
    go(host, "r1")
    answer = review(host, "r2", "newer", {"max-model-len": 5})
    assert "loose" in answer["before"]["flags"]
    assert "lax" in answer["flags"]
    assert "loose" not in answer["flags"]
    # The same runtime again: nothing differs.
    assert review(host, "r3", "vllm", {}).get("before") is None


def test_a_source_that_cannot_be_read_is_told_and_refuses_nothing(
    argument_host: ArgumentHost,
) -> None:
    answer = review(argument_host, "r1", "vllm", {"nonsense": 1})
    assert "there is no package vllm in it" in answer["warnings"][0]


def test_all_runtimes_with_their_arguments_and_help(argument_host: ArgumentHost) -> None:
    host = argument_host
    put_source(host.llm_root / "runtimes/vllm")
    stage(host, "r1")
    go(host, "r1")
    (entry,) = arguments.list_flags({"help": True})["runtimes"]
    assert (entry["name"], entry["releases"], entry["problem"]) == ("vllm", ["r1"], "")
    assert "max-model-len" in entry["flags"]
    assert "usage: vllm serve" in entry["help"]
    (entry,) = arguments.list_flags({})["runtimes"]
    assert entry["help"] is None
