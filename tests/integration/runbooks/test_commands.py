"""`fleet runbook` over this machine with the real pyinfra and the real host program, and a runbook
that pyinfra itself runs."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

from tests.fakes.rollout_host import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.fakes.rollout_host import RolloutHost

HOOK = "#!/bin/sh\ncat > told-$1\n"


def flag(host: RolloutHost) -> dict[str, Any] | None:
    path = host.root / "run/llm/drain/main"
    return json.loads(path.read_text()) if path.exists() else None


def run(host: RolloutHost, *words: str) -> subprocess.CompletedProcess[str]:
    return host.fleet("runbook", "run", "prod", *words)


def test_taken_out_told_to_hooks_and_put_in_only_when_it_answers(rollout_host: RolloutHost) -> None:
    rollout_host.engine("done", "x", "r1")
    rollout_host.repository.write("hooks/tell", HOOK).chmod(0o755)
    path = rollout_host.root / "group_vars/prod.yml"
    path.write_text(path.read_text() + "hooks: {before: [[hooks/tell, one]], after: "
                    "[[hooks/tell, two]]}\n")  # fmt: skip
    said = run(rollout_host, "take-out", "gpu01", "--dry", "--why", "fan 3")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "would do: drain: no new requests, running ones end" in said.stdout
    assert flag(rollout_host) is None
    assert not (rollout_host.root / "told-one").exists()
    said = run(rollout_host, "take-out", "gpu01", "--yes", "--why", "fan 3")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "DOWNTIME: no other host serves" in said.stdout
    assert (flag(rollout_host) or {})["reason"] == "fan 3"
    told = json.loads((rollout_host.root / "told-two").read_text())
    assert (told["kind"], told["runbook"], told["hosts"], told["code"]) == (
        "runbook", "take-out", ["gpu01"], 0,
    )  # fmt: skip
    # systemd says that its engine has died: it does not come back by itself.
    (rollout_host.root / "active").write_text("failed")
    said = run(rollout_host, "put-in", "gpu01", "--yes")
    assert said.returncode == 3, said.stdout + said.stderr
    assert "the engine of gpu01 died at its start" in said.stdout
    assert flag(rollout_host) is not None


def test_an_emergency_stop(rollout_host: RolloutHost) -> None:
    rollout_host.engine("done", "x", "r1", active=False)
    said = run(rollout_host, "emergency-stop", "prod", "--yes", "--why", "smoke")
    assert said.returncode == 0, said.stdout + said.stderr
    assert (flag(rollout_host) or {})["reason"] == "smoke"


def test_a_bundle(rollout_host: RolloutHost) -> None:
    out = rollout_host.root / "bundle.tar.gz"
    said = run(rollout_host, "collect-diagnostics", "--yes", "--set", "out=bundle.tar.gz")
    assert said.returncode == 0, said.stdout + said.stderr
    with tarfile.open(out) as archive:
        names = archive.getnames()
    for part in ("rollout.json", "events.json", "engine.log"):
        assert f"bundle/hosts/gpu01/{part}" in names
    assert any(name.startswith("bundle/facts/gpu01/") for name in names)


def test_what_is_wrong_with_a_command_is_said(rollout_host: RolloutHost) -> None:
    for words, code, text in (
        (("take-out",), 2, "take-out wants hosts"),
        (("take-out", "gpu01", "--set", "gpus=0"), 2, "take-out has no option gpus"),
        (("take-out", "gpu09"), 1, "matches no group and no host"),
        (("no-such", "gpu01"), 2, "invalid choice"),
    ):
        said = run(rollout_host, *words)
        assert (said.returncode, text in said.stderr) == (code, True), said.stderr


def test_pyinfra_runs_one_too(rollout_host: RolloutHost) -> None:
    rollout_host.engine("done", "x", "r1")
    from tests.fakes.rollout_host import REPOSITORY

    def by_pyinfra(*data: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pyinfra", "-y", "inventories/prod.py",
             str(REPOSITORY / "pyinfra_deploy/runbooks/by_pyinfra.py"),
             *(word for one in data for word in ("--data", one))],
            cwd=rollout_host.root, env=rollout_host.environment(), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip

    said = by_pyinfra("runbook=take-out", "why=fan 3", "dry=yes")
    assert said.returncode == 0, said.stdout + said.stderr
    assert flag(rollout_host) is None
    said = by_pyinfra("runbook=take-out", "why=fan 3")
    assert said.returncode == 0, said.stdout + said.stderr
    assert (flag(rollout_host) or {})["reason"] == "fan 3"
    said = by_pyinfra("runbook=reset-gpu", "set=gpus=0")
    assert said.returncode == 1, said.stdout + said.stderr
