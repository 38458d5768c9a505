"""Each fault of a hub, met by the real client in the pull's own unit; and the hub's token.

No deploy a case: the job alone, as the deploy starts it.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub import control
from lab.hub.faults import Fault
from lab.hub.places import hub_directory
from lab.plan import address_of
from tests.fakes.model_hub import tiny_model
from tests.hosts import host_jobs
from tests.hosts.hub_fault_cases import (
    CASES,
    MODEL,
    SECOND,
    TOKEN,
    Case,
    faults_of,
    publish_model,
    remove_model,
    spec_of,
)
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, shell, wait_for
from tests.hosts.standin_inventory import MODELS, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.standin_inventory import Checkout

    Faults = Callable[..., None]

HOST = DEBIAN12
ENDPOINT = SETTINGS["model"]["endpoint"]
CREDENTIAL = "/etc/llm/credentials/hub-token"
WHOLE = {path: hashlib.sha256(body).hexdigest() for path, body in tiny_model().items()}
ELSEWHERE_PORT = 8098
# Another origin, on another host: says which headers it got, and brings what the hub has.
ELSEWHERE = f"""
import http.server, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("/run/elsewhere.log", "a") as log:
            log.write(f"{{self.path}}\\n{{self.headers}}\\n")
        body = urllib.request.urlopen("{ENDPOINT}/cdn" + self.path).read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", {ELSEWHERE_PORT}), Handler).serve_forever()
"""

pytestmark = pytest.mark.usefixtures("steady")


@pytest.fixture(scope="module")
def other_commit(lab_hosts: None) -> Iterator[str]:
    """The hub has the model; the commit of another content of it."""
    commit = publish_model(hub_directory())
    host_jobs.forget(HOST, MODEL)
    yield commit
    host_jobs.forget(HOST, MODEL)
    remove_model(hub_directory())


def asked(case: Case, job_id: str, **more: Any) -> dict[str, Any]:
    client, target = host_jobs.client_of(HOST), host_jobs.MODELS
    found = spec_of(
        case, hub_directory(), endpoint=ENDPOINT, target=target, client=client, directory=job_id
    )
    return {**found, **more}


def place(job_id: str) -> str:
    return f"{host_jobs.MODELS}/{MODEL.replace('/', '--')}/{job_id}"


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case) for case in CASES])
def test_a_hub_that_misbehaves(number: int, other_commit: str, hub_faults: Faults) -> None:
    case, job_id = CASES[number], f"faults-{number}"
    hub_faults(*faults_of(case, other_commit))
    status = host_jobs.pull(HOST, job_id, asked(case, job_id))
    found = host_jobs.files_in(HOST, place(job_id))
    if not case.words:
        assert status["state"] == "done", status
        assert found == WHOLE
        return
    assert status["state"] == "failed", status
    error = status["error"]
    said = " ".join((error["what"], error["why"], error["fix"], *error["detail"]))
    assert [word for word in case.words if word not in said] == [], said
    assert found == {}
    # What was good is kept, and the next pull of the mended hub completes.
    control.clear_faults()
    assert host_jobs.pull(HOST, job_id, asked(case, job_id))["state"] == "done"
    assert host_jobs.files_in(HOST, place(job_id)) == WHOLE


# --- the disk


def test_a_locked_model_on_a_disk_that_is_too_small_or_fills_up(
    other_commit: str, hub_faults: Faults
) -> None:
    case = Case("disk", (), locked=True)
    with host_jobs.small_disk(HOST, 200):
        status = host_jobs.pull(HOST, "faults-small-disk", asked(case, "faults-small-disk"))
    assert "does not fit on the disk" in status["error"]["what"]
    hub_faults(Fault("slow", path=SECOND, model=MODEL, value=20_000))
    job_id = "faults-full-disk"
    partial = f"{host_jobs.MODELS}/.incoming/{MODEL.replace('/', '--')}/{job_id}/model/{SECOND}*"
    # 1 GiB has to stay free beside the model, so the disk is that large and somebody fills it.
    with host_jobs.small_disk(HOST, 1100):
        host_jobs.start_pull(HOST, job_id, asked(case, job_id))
        wait_for(lambda: bool(shell(HOST, f"ls {partial} 2>/dev/null; true")), 60)
        shell(HOST, f"dd if=/dev/zero of={host_jobs.MODELS}/filler bs=1M 2>/dev/null; true")
        status = host_jobs.finished(HOST, job_id)
        assert status["state"] == "failed", status
        assert "space" in status["error"]["what"] + status["error"]["why"]
        assert host_jobs.files_in(HOST, place(job_id)) == {}
        shell(HOST, f"rm {host_jobs.MODELS}/filler")
        control.clear_faults()
        assert host_jobs.pull(HOST, job_id, asked(case, job_id))["state"] == "done"
        assert host_jobs.files_in(HOST, place(job_id)) == WHOLE


# --- the token


@pytest.fixture
def token_on_the_host() -> Iterator[Callable[[str], None]]:
    """Where the deploy puts model.token (docs/models.md)."""

    def put(token: str) -> None:
        shell(HOST, f"umask 077; cat > {CREDENTIAL}", input_text=token)

    yield put
    shell(HOST, f"rm -f {CREDENTIAL}")


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """An origin that is not the hub's, on another host."""
    shell(DEBIAN13, "cat > /run/elsewhere.py; rm -f /run/elsewhere.log", input_text=ELSEWHERE)
    shell(DEBIAN13, "systemd-run --quiet --collect --unit=elsewhere python3 /run/elsewhere.py")
    yield f"http://{address_of(DEBIAN13)}:{ELSEWHERE_PORT}"
    shell(DEBIAN13, "systemctl stop elsewhere; rm -f /run/elsewhere.*")


def watched_pull(job_id: str, spec: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A pull, and every command line and environment file that anybody could read meanwhile."""
    shell(
        HOST,
        "systemd-run --quiet --collect --unit=watch-cmdlines sh -c 'while :; do "
        'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\\\0" " " >> /run/cmdlines; sleep 0.2; done\'',
    )
    try:
        status = host_jobs.pull(HOST, job_id, spec)
    finally:
        seen = shell(HOST, "systemctl stop watch-cmdlines; cat /run/cmdlines; rm /run/cmdlines")
    return status, seen


def test_the_token_is_where_it_belongs_and_nowhere_else(
    other_commit: str,
    hub_faults: Faults,
    token_on_the_host: Callable[[str], None],
    elsewhere: str,
) -> None:
    """The right one opens the hub, goes with no redirect to another host, and is in nothing that
    others can read."""
    job_id = "faults-token"
    hub_faults(
        Fault("token", model=MODEL, value=TOKEN),
        Fault("redirect", path="*.safetensors", model=MODEL, value=elsewhere),
        Fault("slow", path="config.json", model=MODEL, value=15, times=2),
    )
    token_on_the_host(TOKEN)
    case = Case("token", ())
    status, cmdlines = watched_pull(job_id, asked(case, job_id, token_file="hub-token"))
    assert status["state"] == "done", status
    assert host_jobs.files_in(HOST, place(job_id)) == WHOLE
    assert "modelscope download" in cmdlines or "/modelscope" in cmdlines
    redirected = shell(DEBIAN13, "cat /run/elsewhere.log")
    assert ".safetensors" in redirected
    unit = f"llm-pull@{job_id}.service"
    looked_at = {
        "command lines": cmdlines,
        "the other host": redirected,
        "systemctl": shell(HOST, f"systemctl show {unit}; systemctl cat {unit}"),
        "journal": shell(HOST, f"journalctl --no-pager -u {unit}"),
        "files of jobs, status and result": shell(
            HOST,
            "cat /srv/llm/jobs/pull/*/spec.json /run/llm-pull/*/* /var/lib/llm-pull/*/* "
            "/srv/llm/state/*; true",
        ),
        "the hub's answer": str(status),
    }
    assert [where for where, text in looked_at.items() if TOKEN in text] == []
    # Through stdin: sudo writes command lines into the journal.
    assert shell(HOST, f"grep -rlF -f - {host_jobs.MODELS}; true", input_text=TOKEN) == ""
    assert shell(HOST, f"stat -c %a:%U {CREDENTIAL}").strip() == "600:root"


def test_a_deploy_gives_the_host_its_token_and_says_it_nowhere(
    checkout: Checkout, hub_faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """model.token from the environment; the hub gives the model to nobody else."""
    monkeypatch.setenv("FLEET_TEST_HUB_TOKEN", TOKEN)
    hub_faults(Fault("token", model=MODELS[HOST], value=TOKEN))
    live = shell(HOST, "readlink -f /srv/llm/engines/main/current/model").strip()
    shell(HOST, f"rm -rf $(dirname {live})")
    checkout.write(model={"token": "{{ lookup('env', 'FLEET_TEST_HUB_TOKEN') }}"})
    try:
        ran = checkout.deploy("--limit", HOST, "-vv").done()
        assert TOKEN not in ran.log
        assert host_jobs.files_in(HOST, live)
        assert shell(HOST, f"cat {CREDENTIAL}").strip() == TOKEN
        assert TOKEN not in shell(HOST, "journalctl --no-pager -b")
    finally:
        shell(HOST, f"rm -f {CREDENTIAL}")
        checkout.write()
    assert checkout.deploy().done().unchanged


@pytest.mark.parametrize("locked", [False, True], ids=["listed", "locked"])
def test_a_wrong_token_is_said_by_the_settings_name(
    locked: bool,
    other_commit: str,
    hub_faults: Faults,
    token_on_the_host: Callable[[str], None],
) -> None:
    hub_faults(Fault("token", model=MODEL, value=TOKEN))
    token_on_the_host("wrong-one")
    job_id = f"faults-wrong-token-{locked}"
    case = Case("wrong token", (), locked=locked)
    status = host_jobs.pull(HOST, job_id, asked(case, job_id, token_file="hub-token"))
    assert status["state"] == "failed"
    error = status["error"]
    assert "401" in error["why"]
    assert re.search(r"token is not accepted", error["why"])
    assert "model.token" in error["why"] + error["fix"]
    assert "wrong-one" not in str(status) + shell(
        HOST, f"journalctl --no-pager -u llm-pull@{job_id}.service"
    )
