"""`fleet facts collect`: which hosts, where to, and what the operator is told."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyinfra.api import FactProcessError

from pyinfra_deploy import cli, facts_commands
from pyinfra_deploy.facts import collected, raw
from pyinfra_deploy.facts.assemble import assemble
from pyinfra_deploy.settings.problems import SettingsError

if TYPE_CHECKING:
    from pyinfra_deploy.settings.fleet import Fleet

L20 = Path(__file__).parent / "fixtures" / "hosts" / "l20"
HOSTS = ("gpu01", "gpu02", "here")


@pytest.fixture
def fleet(tmp_path: Path) -> Any:
    return SimpleNamespace(
        name="prod",
        root=tmp_path,
        hosts={name: SimpleNamespace(is_local=name == "here") for name in HOSTS},
        groups={"all": list(HOSTS), "gpu": ["gpu01", "gpu02"], "empty": []},
    )


@pytest.fixture
def collect(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command with a pyinfra that reads the hosts in `reached`."""

    def run(*arguments: str, reached: tuple[str, ...] = HOSTS) -> int:
        def pyinfra(command: list[str], root: Path) -> str:
            (option,) = (a for a in command if a.startswith("facts_directory="))
            for host in reached:
                outputs = raw.read_directory(L20)
                collected.write_directory(Path(option.partition("=")[2]) / host, outputs)
            return "--> Connecting\n[gpu02] Could not connect\n"

        monkeypatch.setattr(facts_commands, "load_fleet", lambda inventory: fleet)
        monkeypatch.setattr(facts_commands, "_run", pyinfra)
        return cli.main(["facts", "collect", "prod", "-o", str(tmp_path / "out"), *arguments])

    return run


def test_all_hosts_are_written_for_the_operator_alone(
    collect: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect() == 0
    out = tmp_path / "out"
    assert sorted(entry.name for entry in out.iterdir()) == sorted(HOSTS)
    for path in (out, out / "gpu01"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (out / "gpu01").iterdir()} == {0o600}
    assert raw.read_directory(out / "gpu01") == raw.read_directory(L20)
    printed = capsys.readouterr().out
    assert f"gpu01: 8x NVIDIA L20, driver 535.216.03; in {out}/gpu01" in printed
    assert raw.hosts_of(out) == HOSTS


def test_a_host_that_was_not_reached_is_named_and_what_is_older_too(
    collect: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert collect(reached=("gpu01", "here")) == 2
    said = capsys.readouterr().err
    assert "NOT read: gpu02" in said
    assert "Could not connect" in said
    assert "older" not in said
    assert collect() == 0
    assert collect(reached=("gpu01", "here")) == 2
    assert "is older: gpu02" in capsys.readouterr().err


def test_a_second_run_replaces_a_host_as_a_whole(collect: Any, tmp_path: Path) -> None:
    assert collect() == 0
    (tmp_path / "out/gpu01/df.txt.exit").write_text("1\n")
    assert collect("--limit", "gpu01", reached=("gpu01",)) == 0
    assert not (tmp_path / "out/gpu01/df.txt.exit").exists()
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == sorted(HOSTS)


def test_a_directory_with_other_files_is_refused(
    collect: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out/gpu01").mkdir(parents=True)
    (tmp_path / "out/gpu01/thesis.txt").write_text("mine")
    assert collect() == 1
    assert "thesis.txt" in capsys.readouterr().err
    assert (tmp_path / "out/gpu01/thesis.txt").exists()


@pytest.mark.parametrize(
    ("limits", "hosts"),
    [
        ([], ["gpu01", "gpu02", "here"]),
        (["gpu02"], ["gpu02"]),
        (["here,gpu"], ["gpu01", "gpu02", "here"]),
        (["gpu*", "gpu01"], ["gpu01", "gpu02"]),
    ],
)
def test_limits(fleet: Fleet, limits: list[str], hosts: list[str]) -> None:
    assert facts_commands.chosen(fleet, limits) == hosts


@pytest.mark.parametrize(
    ("limits", "excludes", "hosts"),
    [
        ([], ["gpu02"], ["gpu01", "here"]),
        ([], ["gpu01,here"], ["gpu02"]),
        (["gpu*"], ["gpu01"], ["gpu02"]),
    ],
)
def test_excludes(fleet: Fleet, limits: list[str], excludes: list[str], hosts: list[str]) -> None:
    assert facts_commands.chosen(fleet, limits, excludes) == hosts


def test_an_exclude_that_names_nothing_or_all_is_refused(fleet: Fleet) -> None:
    with pytest.raises(SettingsError, match="--exclude gpu03"):
        facts_commands.chosen(fleet, [], ["gpu03"])
    with pytest.raises(SettingsError, match="leaves no host"):
        facts_commands.chosen(fleet, ["gpu"], ["gpu"])


@pytest.mark.parametrize(
    "command",
    [["facts", "collect", "-o", "x"], ["plan"], ["runtime", "list"], ["runtime", "flags"]],
    ids=" ".join,
)
def test_where_there_is_a_limit_there_is_an_exclude(command: list[str]) -> None:
    parsed = cli.build_parser().parse_args([*command, "prod", "--exclude", "a", "--exclude", "b"])
    assert parsed.exclude == ["a", "b"]
    assert parsed.limit == []


@pytest.mark.parametrize("limit", ["gpu03", "empty"])
def test_a_limit_that_names_nothing_is_refused(fleet: Fleet, limit: str) -> None:
    with pytest.raises(SettingsError, match="matches no group and no host"):
        facts_commands.chosen(fleet, [limit])


def test_the_command_line(fleet: Fleet, tmp_path: Path) -> None:
    line = facts_commands.command(fleet, ["gpu01", "here"], tmp_path, mask_uuids=True)
    assert line[1:] == [
        "-m", "pyinfra", "-y", "--limit", "gpu01", "--limit", "@local",
        "--data", f"facts_directory={tmp_path}", "--data", "facts_mask_uuids=yes",
        "inventories/prod.py", str(facts_commands.DEPLOY),
    ]  # fmt: skip
    assert facts_commands.DEPLOY.is_file()
    assert "--limit" not in facts_commands.command(fleet, list(HOSTS), tmp_path, mask_uuids=False)


def test_the_report_names_what_failed(tmp_path: Path) -> None:
    shutil.copytree(L20, tmp_path / "a")
    (tmp_path / "a/lscpu.json.exit").write_text("127\n")
    (tmp_path / "a/nvidia-smi-q-x.xml").write_text("No devices were found\n")
    (tmp_path / "a/nvidia-smi-query-gpu.csv").unlink()
    hardware = assemble("a", raw.read_directory(tmp_path / "a"))
    said = facts_commands.report(hardware, tmp_path / "a")
    assert "a: no GPU" in said
    assert "nvidia-smi failed (no-devices): No devices were found" in said
    assert "    not read: lscpu.json: failed with exit status 127" in said


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ([collected.NO_PYTHON], "no python3"),
        (["welcome", "{broken"], "no answer"),
        (["welcome"], "printed no answer, but: welcome"),
        ([], "printed no answer"),
        (['{"unknown.txt": {"text": "", "exit": 0, "stderr": ""}}'], "no answer"),
    ],
)
def test_what_a_host_prints_instead(output: list[str], said: str) -> None:
    with pytest.raises(FactProcessError, match=said):
        collected.parse(output)


def test_a_greeting_before_the_answer() -> None:
    found = collected.parse(["Welcome!", '{"uname.txt": {"text": "x", "exit": 0, "stderr": ""}}'])
    assert found["uname.txt"].text == "x"
