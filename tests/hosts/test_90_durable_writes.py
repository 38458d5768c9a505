"""fsync of the file, rename, fsync of the directory: seen in the system calls of the real program.

A power cut of a lab host keeps what the kernel had not yet written, so only this shows it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts.lab_session import DEBIAN12, shell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.standin_inventory import Checkout

ROOT = "/srv/llm"
ENGINE = f"{ROOT}/engines/main"
CALLS = "fsync,fdatasync,rename,renameat,renameat2,symlink,symlinkat,unlink,unlinkat"

pytestmark = pytest.mark.usefixtures("steady")


@pytest.fixture(scope="module", autouse=True)
def strace(steady: Checkout) -> None:
    shell(
        DEBIAN12,
        "command -v strace >/dev/null || "
        "{ apt-get -qq update && apt-get -qq install -y --no-install-recommends strace; } "
        ">/dev/null 2>&1",
    )


def traced(command: str, spec: dict[str, Any] | None, environment: str = "") -> list[str]:
    """The program's calls in order: `fsync PATH` and `rename FROM TO`, absolute paths."""
    output = shell(
        DEBIAN12,
        f"{environment} strace -f -qq -y -s 4096 -e trace={CALLS} -o /run/trace "
        f"{ROOT}/bin/fleet-host {command} >/run/answer || {{ cat /run/answer; exit 1; }}; "
        "cat /run/trace; rm /run/trace",
        input_text=json.dumps(spec) if spec is not None else None,
    )
    lines = [line for line in output.splitlines() if line.rstrip().endswith("= 0")]
    return [call for line in lines if (call := _call(line))]


def _call(line: str) -> str | None:
    if found := re.search(r"fsync\(\d+<([^>]+)>", line):
        return f"fsync {found[1]}"
    # rename, renameat and renameat2: the two quoted names, absolute with this program.
    if found := re.search(r'rename\w*\([^"]*"([^"]+)", [^"]*"([^"]+)"', line):
        return f"rename {found[1]} {found[2]}"
    if found := re.search(r'unlink\w*\([^"]*"([^"]+)"', line):
        return f"unlink {found[1]}"
    return None


def assert_durable(calls: list[str], path: str, *, is_link: bool = False) -> None:
    """`path` was written by fsync of a temporary file, rename to it, fsync of its directory."""
    renames = [at for at, call in enumerate(calls) if call.startswith("rename ") and
               call.endswith(f" {path}")]  # fmt: skip
    assert renames, f"{path} was not renamed into place: {calls}"
    for at in renames:
        temporary = calls[at].split()[1]
        if not is_link:  # a link has no content of its own
            assert f"fsync {temporary}" in calls[:at], f"no fsync of {temporary} before: {calls}"
        directory = path.rsplit("/", 1)[0]
        assert f"fsync {directory}" in calls[at:], f"no fsync of {directory} after: {calls}"


def test_a_release_is_published_durably() -> None:
    stored = json.loads(shell(DEBIAN12, f"cat {ENGINE}/current/release.json"))
    identity = "0123456789abcdef"
    spec = {
        "engine": "main",
        "id": identity,
        "release": {key: value for key, value in stored.items() if key != "id"},
        "config_yaml": shell(DEBIAN12, f"cat {ENGINE}/current/config.yaml"),
        "env": shell(DEBIAN12, f"cat {ENGINE}/current/env"),
    }
    shell(DEBIAN12, f"rm -rf {ENGINE}/releases/{identity}")
    calls = traced("release stage", spec)
    final = f"{ENGINE}/releases/{identity}"
    assert_durable(calls, final)
    staging = calls[[call.endswith(f" {final}") for call in calls].index(True)].split()[1]
    for name in ("release.json", "config.yaml", "env"):
        assert f"fsync {staging}/{name}" in calls


@pytest.fixture
def at_work() -> Iterator[None]:
    """The go-live's unit at work, with nothing to do: an engine that starts without it takes the
    job's switch for an interrupted one, and undoes it."""
    unit = "llm-golive@main.service"
    drop_in = f"/run/systemd/system/{unit}.d/idle.conf"
    idle = "[Service]\nExecStart=\nExecStart=/bin/sleep infinity\nExecStopPost=\n"
    shell(
        DEBIAN12,
        f"mkdir -p {drop_in.rsplit('/', 1)[0]}; cat > {drop_in}; systemctl daemon-reload; "
        f"systemctl start --no-block {unit}",
        input_text=idle,
    )
    yield
    shell(
        DEBIAN12,
        f"systemctl stop {unit}; rm -r {drop_in.rsplit('/', 1)[0]}; systemctl daemon-reload; "
        f"systemctl reset-failed {unit} || :",
    )


def test_the_switch_is_durable(at_work: None) -> None:
    """The go-live's job as its unit runs it, to the release that the test before has staged."""
    spec = json.loads(shell(DEBIAN12, f"cat {ROOT}/jobs/golive/main/spec.json"))
    wanted = "0123456789abcdef"
    before = shell(DEBIAN12, f"readlink {ENGINE}/current").strip()
    for release, calls in [(name, switched(spec, name)) for name in (wanted, before.split("/")[1])]:
        assert_durable(calls, f"{ENGINE}/current", is_link=True)
        assert_durable(calls, f"{ENGINE}/previous", is_link=True)
        assert_durable(calls, f"{ENGINE}/golive.json")
        order = [calls.index(call) for call in calls if call.endswith(f" {ENGINE}/golive.json")]
        switch = next(at for at, call in enumerate(calls) if call.endswith(f" {ENGINE}/current"))
        assert order[0] < switch < order[-1], f"the note must enclose the switch to {release}"
    shell(DEBIAN12, f"rm -rf {ENGINE}/releases/{wanted}")


def switched(stored: dict[str, Any], release: str) -> list[str]:
    changed = {**stored, "run": "traced", "spec": {**stored["spec"], "release": release}}
    shell(DEBIAN12, f"cat > {ROOT}/jobs/golive/main/spec.json", input_text=json.dumps(changed))
    return traced("job run golive main", None, environment="INVOCATION_ID=traced")


def test_keys_and_lease_are_durable() -> None:
    keys = json.loads(shell(DEBIAN12, f"cat {ROOT}/gateway/keys.json"))
    calls = traced("keys push", {**keys, "serial": keys["serial"] + 1})
    assert_durable(calls, f"{ROOT}/gateway/keys.json")
    run = {
        "owner": "test@here", "machine": "here:1:2", "run": "traced", "pid": 1, "pid_start": 1,
    }  # fmt: skip
    calls = traced("lease acquire", {**run, "ttl_seconds": 60, "generation_seen": None})
    assert_durable(calls, f"{ROOT}/state/lease.json")
    assert_durable(calls, f"{ROOT}/state/generation")
    calls = traced("lease release", run)
    assert calls[-2:] == [f"unlink {ROOT}/state/lease.json", f"fsync {ROOT}/state"]
