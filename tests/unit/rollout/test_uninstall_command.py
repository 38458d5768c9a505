"""`fleet uninstall` on hosts that a run of this machine has left locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyinfra_deploy import cli
from pyinfra_deploy.operations.run import own_run
from pyinfra_deploy.rollout import asking
from pyinfra_deploy.rollout.asking import Answers

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from tests.fakes.repository import Repository


def test_the_lock_of_a_killed_run_of_this_machine_is_taken_over(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {"gpu01": own_run().as_spec() | {"pid_start": 1, "run": "dead"}, "gpu02": None}
    asked: list[Mapping[str, Mapping[str, Any]]] = []

    def ask(_fleet: Any, command: str, requests: Any, *_: Any) -> Answers:
        answers = Answers()
        for host in requests:
            answers[host] = (
                {"lease": of[host]}
                if command == "rollout status"
                else {"units": [], "paths": [], "kept": []}
            )
        if command == "uninstall":
            asked.append(requests)
        return answers

    monkeypatch.setattr(asking, "ask", ask)
    assert cli.main(["uninstall", "prod", "gpu01", "gpu02", "--yes"]) == 0
    leases = {host: request["lease"] for host, request in asked[-1].items()}
    assert leases["gpu01"]["steal_run"] == "dead"
    assert "steal_run" not in leases["gpu02"]
    assert not asked[-1]["gpu01"]["dry"]
