"""A locked model that hosts get from each other: once from the hub, or without it."""

from __future__ import annotations

import http.client
import json
import secrets
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from lab.hub import control
from lab.hub.faults import Fault
from lab.plan import address_of
from tests.hosts import host_state, pyinfra_run
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, FIRST_MODEL, shell, upper_of, wait_for
from tests.hosts.pyinfra_run import BIN
from tests.hosts.standin_inventory import NAME, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hosts.standin_inventory import Checkout

    Faults = Callable[..., None]

BOTH = (DEBIAN12, DEBIAN13)
LOCK = "models-shared/first.json"
SLUG = FIRST_MODEL.replace("/", "--")
NOWHERE = "http://10.213.77.1:8099"
SHARD = "model-00002-of-00003.safetensors"
PORT = 8472
UNIT = "llm-share@models.service"
# Says to others, and not to its own host, that it has every file; of each all bytes are wrong.
ROGUE = f"""
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.client_address[0] == "{address_of(DEBIAN12)}":
            return
        sha256 = self.path.split("/")[-1]
        has = [one for one in SIZES if SIZES[one]]
        told = {{"files": has, "coming": [], "pulling": False, "uploads": 0}}
        body = bytes(SIZES[sha256]) if sha256 in SIZES else json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("{address_of(DEBIAN12)}", {PORT}), Handler).serve_forever()
"""

pytestmark = pytest.mark.usefixtures("steady")


def write(checkout: Checkout, **model: Any) -> None:
    """Both hosts serve the same model by one lock."""
    one = {**SETTINGS["model"], "id": FIRST_MODEL, "lock": LOCK, **model}
    checkout.write(host_variables={host: {"model": one} for host in BOTH})


def lock(checkout: Checkout) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((checkout.root / LOCK).read_text())
    return document


def fleet(checkout: Checkout, *words: str, code: int = 0) -> str:
    done = pyinfra_run.run([str(BIN / "fleet"), *words], root=checkout.root)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def place(checkout: Checkout) -> str:
    """Of the locked model, below models/."""
    return f"{SLUG}/master-{lock(checkout)['digest'][:12]}"


def forget(*hosts: str) -> None:
    """Other revisions too: what they have would be copied."""
    for host in hosts:
        shell(host, f"rm -rf /srv/llm/models/{SLUG} /srv/llm/models/.incoming/*")
    control.reset_counters()


def listens(host: str) -> bool:
    return any(line.split()[0].endswith(f":{PORT}") for line in host_state.listeners(host))


def result(host: str) -> dict[str, Any]:
    """Of the host's last pull."""
    text = shell(host, "cat $(ls -t /var/lib/llm-pull/*/result.json | head -n 1)")
    document: dict[str, Any] = json.loads(text)["result"]
    return document


@pytest.fixture(scope="module", autouse=True)
def back_to_two_models(checkout: Checkout) -> Iterator[None]:
    yield
    checkout.write()
    checkout.deploy().done()


def test_the_hub_sends_the_model_once_for_two_hosts(checkout: Checkout) -> None:
    write(checkout)
    fleet(checkout, "model", "lock", NAME)
    forget(*BOTH)
    ran = checkout.deploy().done()
    ran.said("came from gpu")
    sent = sum(control.counters()["bytes"].get(file["path"], 0) for file in lock(checkout)["files"])
    assert sent <= 1.1 * lock(checkout)["total_bytes"]
    for host in BOTH:
        record = json.loads(shell(host, f"cat /srv/llm/models/{place(checkout)}.json"))
        assert record["model_digest"] == lock(checkout)["digest"]
    assert result(DEBIAN12)["peers"]["from"] == {}
    assert result(DEBIAN13)["peers"]["from"] == {DEBIAN12: lock(checkout)["total_bytes"]}
    figures = host_state.exposures(DEBIAN12)
    assert figures["llm-share@main.service"] <= 2.0


def asked_from_here(path: str) -> int:
    connection = http.client.HTTPConnection(address_of(DEBIAN12), PORT, timeout=3)
    connection.request("GET", path)
    return connection.getresponse().status


def open_by_hand(checkout: Checkout, host: str, token: str) -> None:
    request = {
        "model": place(checkout), "name": host, "rank": 0, "pulling": False, "token": token,
        "peers": [], "allowed": [address_of(one) for one in BOTH], "rate_bytes_per_second": None,
        "address": address_of(host), "port": PORT, "idle_seconds": 32,
    }  # fmt: skip
    shell(host, f"systemctl stop {UNIT}; rm -rf /run/llm/fan-out")
    text = shell(host, "/srv/llm/bin/fleet-host fan-out open", input_text=json.dumps(request))
    assert json.loads(text)["state"] == "open"


def test_others_are_turned_away_and_nobody_listens_afterwards(checkout: Checkout) -> None:
    """This machine is in the hosts' network and not in their inventory."""
    secret = secrets.token_hex(32)
    open_by_hand(checkout, DEBIAN12, secret)
    assert listens(DEBIAN12)
    with pytest.raises((OSError, http.client.HTTPException)):
        asked_from_here(f"/{place(checkout)}")
    # A host of the inventory, and no secret.
    ask = f"curl -s -o /dev/null -w '%{{http_code}}' http://{address_of(DEBIAN12)}:{PORT}/"
    assert shell(DEBIAN13, f"{ask}{place(checkout)}").strip() == "403"
    found = host_state.places_of(DEBIAN12, secret)
    assert [line for line in found if not line.startswith("here")] == []
    assert shell(DEBIAN12, "stat -c %a:%U /run/llm/fan-out/*.json").split() == ["640:root"]
    wait_for(lambda: not any(listens(host) for host in BOTH), 120)
    wait_for(lambda: not shell(DEBIAN12, "ls /run/llm/fan-out").split(), 20)
    for host in BOTH:
        assert not shell(host, f"ls -d /run/systemd/system/{UNIT}.d/*.conf || true").strip()
        assert shell(host, f"systemctl is-enabled {UNIT} || true").strip() == "static"
    assert checkout.deploy().done().unchanged


def test_without_the_hub_a_host_that_has_the_model_deploys_the_other(checkout: Checkout) -> None:
    """By --limit: the one that has it is not even of the run."""
    forget(DEBIAN13)
    write(checkout, endpoint=NOWHERE)
    ran = checkout.deploy("--limit", DEBIAN13).done()
    assert ran.finished(DEBIAN13)
    assert result(DEBIAN13)["peers"]["from"] == {DEBIAN12: lock(checkout)["total_bytes"]}
    assert not control.counters()["requests"]
    write(checkout)


def sign(checkout: Checkout) -> None:
    """As docs/models.md has it, with a key without a passphrase."""
    pair = checkout.root / "models-shared"
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    for words in (
        ["openssl", "genpkey", *curve, "-out", str(pair / "one.key")],
        ["openssl", "pkey", "-in", str(pair / "one.key"), "-pubout", "-out", str(pair / "one.pub")],
    ):
        subprocess.run(words, check=True, capture_output=True)
    (pair / "one.key").chmod(0o600)
    fleet(checkout, "model", "sign", LOCK, "--key", "models-shared/one.key")


def test_without_the_hub_copied_files_are_signed_for_verified_and_given_on(
    checkout: Checkout,
) -> None:
    """Copy in, verify, fan out, with all hosts in the run; and only with the lock's signature."""
    write(checkout, endpoint=NOWHERE, signed_by=["models-shared/one.pub"])
    sign(checkout)
    signature = checkout.root / f"{LOCK}.sig"
    kept = signature.read_bytes()
    signature.unlink()
    assert "it is not signed" in fleet(checkout, "settings", "check", NAME, code=1)
    signature.write_bytes(kept)
    here, there = place(checkout), f"/srv/llm/models/.incoming/{place(checkout)}"
    shell(
        DEBIAN12,
        "cd /srv/llm/models && rm -rf .incoming/* /srv/llm/copied && "
        f"cp -r {here} /srv/llm/copied && chmod -R u+w /srv/llm/copied && rm -rf {SLUG} && "
        f"install -d -o llm-build -g llm-build .incoming/{SLUG} {there} && "
        f"mv /srv/llm/copied {there}/model && chown -R llm-build: {there}",
    )
    forget(DEBIAN13)
    ran = checkout.deploy().done()
    assert ran.finished(DEBIAN12)
    assert result(DEBIAN12)["peers"]["from"] == {}
    assert result(DEBIAN13)["peers"]["from"] == {DEBIAN12: lock(checkout)["total_bytes"]}
    assert not control.counters()["requests"]
    write(checkout)
    signature.unlink()


def test_a_host_that_dies_in_the_middle_does_not_stall_the_other(
    checkout: Checkout, hub_faults: Faults
) -> None:
    forget(*BOTH)
    hub_faults(Fault("stall", path=SHARD, times=1))
    running = checkout.start()
    arrived = upper_of(DEBIAN13) / f"srv/llm/models/.incoming/{place(checkout)}/model/config.json"
    wait_for(arrived.exists, 120)
    shell(DEBIAN12, f"systemctl kill -s KILL 'llm-pull@*' {UNIT}")
    ran = running.finish()
    assert ran.failed == {DEBIAN12}
    assert ran.finished(DEBIAN13)
    requests = control.counters()["requests"]
    checkout.deploy().done()
    after = control.counters()["requests"]
    weights = [path for path in after if path.endswith(".safetensors")]
    assert {path: after[path] for path in weights} == {path: requests[path] for path in weights}
    assert result(DEBIAN12)["peers"]["from"].get(DEBIAN13, 0) > 0


def test_a_port_that_is_taken_by_one_that_gives_wrong_bytes_costs_the_others_nothing(
    checkout: Checkout,
) -> None:
    forget(DEBIAN13)
    shell(DEBIAN12, f"systemctl stop {UNIT}")
    sizes = {file["sha256"]: file["size"] for file in lock(checkout)["files"]}
    shell(DEBIAN12, "cat > /run/rogue.py", input_text=f"SIZES = {sizes!r}\n{ROGUE}")
    shell(DEBIAN12, "systemd-run -q --unit=holder python3 /run/rogue.py")
    try:
        wait_for(lambda: listens(DEBIAN12), 20)
        ran = checkout.deploy("--limit", DEBIAN13).done()
        ran.said("gives no model to other hosts", "write another model.fan_out.port")
    finally:
        shell(DEBIAN12, "systemctl stop holder; rm -f /run/rogue.py")
    told = result(DEBIAN13)["peers"]
    assert told["from"] == {}
    assert "wrong bytes for" in told["dropped"][DEBIAN12]
    found = shell(DEBIAN13, f"cat /srv/llm/models/{place(checkout)}.json")
    assert json.loads(found)["model_digest"] == lock(checkout)["digest"]


def test_a_cut_between_hosts_is_said_with_the_port(checkout: Checkout) -> None:
    """As a firewall between two racks: the hosts reach the hub and not each other."""
    forget(DEBIAN13)
    shell(DEBIAN13, f"ip route add unreachable {address_of(DEBIAN12)}/32")
    try:
        ran = checkout.deploy("--limit", DEBIAN13).done()
    finally:
        shell(DEBIAN13, f"ip route del unreachable {address_of(DEBIAN12)}/32")
    ran.said(f"let TCP port {PORT} through between the gpu hosts")
    assert result(DEBIAN13)["peers"]["from"] == {}
