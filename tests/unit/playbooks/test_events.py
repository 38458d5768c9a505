"""What an ansible run comes to, from its events."""

from __future__ import annotations

from typing import Any

from pyinfra_deploy.playbooks.events import Told, reason

HOSTS = ("gpu01", "gpu02")


def event(kind: str, host: str = "gpu01", task: str = "mark", **more: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": host, "task": task, **more}}


def stats(told: Told, **figures: dict[str, int]) -> None:
    told.take({"event": "playbook_on_stats", "event_data": figures})


def ended(told: Told, code: int, *not_to_end: str, status: str = "failed") -> dict[str, Any]:
    return told.end(code, status, 60, not_to_end)


def test_changes_are_told_by_host() -> None:
    told = Told(HOSTS)
    assert told.take(event("runner_on_ok", res={"changed": True})) == ["[gpu01] changed: mark"]
    assert told.take(event("runner_on_ok", "gpu02", res={"changed": False})) == []
    stats(told, ok={"gpu01": 1, "gpu02": 1})
    found = ended(told, 0, status="successful")
    assert found == {"concerned": list(HOSTS), "changed": {"gpu01": ["mark"]}, "failed": {}}


def test_the_figures_decide_what_failed() -> None:
    """gpu01's failure was rescued."""
    told = Told(HOSTS)
    for host in HOSTS:
        told.take(event("runner_on_failed", host, res={"msg": "no"}))
    stats(told, ok={"gpu01": 2}, failures={"gpu02": 1})
    failed = ended(told, 2, "gpu02")["failed"]
    assert failed == {"gpu02": {"task": "mark", "why": "no", "unreachable": False}}


def test_a_host_that_was_not_reached() -> None:
    told = Told(HOSTS)
    lines = told.take(event("runner_on_unreachable", res={"msg": "Connection refused"}))
    assert lines == ["[gpu01] unreachable: mark: Connection refused"]
    stats(told, dark={"gpu01": 1}, ok={"gpu02": 1})
    found = ended(told, 4, "gpu01")
    assert found["failed"]["gpu01"]["unreachable"]
    assert set(found["failed"]) == {"gpu01"}


def test_hosts_that_a_playbook_ended_for() -> None:
    told = Told(HOSTS)
    told.take(event("runner_on_failed", res={"msg": "no"}))
    stats(told, failures={"gpu01": 1}, ok={"gpu02": 1})
    failed = ended(told, 2, *HOSTS)["failed"]
    assert failed["gpu02"]["why"] == "it was ended for all hosts after gpu01"


def test_an_ignored_failure_is_said() -> None:
    told = Told(HOSTS)
    lines = told.take(event("runner_on_failed", ignore_errors=True, res={"msg": "no"}))
    assert lines == ["[gpu01] failed, which the playbook ignores: mark"]


def test_one_that_does_not_begin_has_failed_everywhere() -> None:
    told = Told(HOSTS)
    told.take({"event": "verbose", "stdout": "one\n[ERROR]: no module 'x'\nOrigin: y:3"})
    failed = ended(told, 4)["failed"]
    assert set(failed) == set(HOSTS)
    assert failed["gpu01"]["why"] == "[ERROR]: no module 'x'\nOrigin: y:3"


def test_one_that_takes_too_long_has_failed_everywhere() -> None:
    failed = ended(Told(HOSTS), 254, status="timeout")["failed"]
    assert failed["gpu02"]["why"].startswith("it took longer than ansible.timeout_seconds = 60")


def test_why_a_task_failed() -> None:
    assert reason({"msg": "non-zero return code", "stderr": "a\nb"}) == "non-zero return code\na\nb"
    assert reason({"msg": "One or more items failed", "results": [
        {"failed": False}, {"failed": True, "msg": "no room"}]}).endswith("no room")  # fmt: skip
    assert reason({}) == "it does not say why"


def test_secrets_are_masked() -> None:
    told = Told(HOSTS)
    (line,) = told.take(event("runner_on_failed", res={"msg": "password=hunter22 was refused"}))
    assert "hunter22" not in line
    stats(told, failures={"gpu01": 1})
    assert "hunter22" not in ended(told, 2, "gpu01")["failed"]["gpu01"]["why"]
