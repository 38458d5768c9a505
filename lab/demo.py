"""From nothing to a streamed answer over HTTPS: the lab, its hub, the deploy, one question."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab import hosts
from lab.durable import write_atomic
from lab.errors import LabError
from lab.hub import daemon
from lab.hub.places import hub_directory
from lab.layout import current_layout
from lab.models.catalogue import make_missing
from lab.report import say, timed
from pyinfra_deploy.keys import keyfile
from pyinfra_deploy.settings import load_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyinfra_deploy.settings import Fleet

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "Tell me in two sentences what a gateway is."
ANSWER_TOKENS = 80


def run_demo(count: int) -> None:
    """Everything that is missing is made; what is there is kept, so a second run takes seconds.

    Raises LabError when a step fails; each one has printed why.
    """
    started = time.monotonic()
    hosts.up(count, install=True)
    _fresh_disks_after_another_checkout()
    hub = hub_directory()
    with timed("making the lab's models"):
        make_missing(hub, say)
    daemon.start(hub, daemon.DEFAULT_ADDRESS)
    say("locking the model: fleet model lock lab")
    lock_model()
    say("deploying: pyinfra inventories/lab.py deploy.py -y")
    deploy()
    fleet = load_fleet("lab", ROOT)
    say(f"asking {fleet.name} over HTTPS: {QUESTION}")
    for name in gateways(fleet):
        answer(fleet, name)
    say(f"done in {time.monotonic() - started:.0f} s; try it yourself:")
    print(curl_line(fleet, gateways(fleet)[0]))


def _fresh_disks_after_another_checkout() -> None:
    """The lab belongs to the machine, its keys and CA to a checkout, which never lets an older key
    file replace a newer one: hosts that another checkout deployed to begin anew. Whoever sits at a
    terminal is asked, since what is on the disks is gone then."""
    mark = current_layout().directory / "checkout"
    if mark.exists() and mark.read_text().strip() != str(ROOT):
        say(f"these hosts were deployed from {mark.read_text().strip()}: giving them fresh disks")
        if sys.stdin.isatty() and not _agreed():
            raise LabError(
                "the lab's hosts belong to another checkout",
                "this one deploys to them only with fresh disks, which was declined",
                f"work from {mark.read_text().strip()}, or run the same command again and agree",
            )
        hosts.reset()
    write_atomic(mark, f"{ROOT}\n")


def _agreed() -> bool:
    """Whether the person at the terminal agrees to lose what is on the lab hosts' disks."""
    return input("lab: all on these hosts' disks is lost. Go on? [y/N] ").strip().lower() == "y"


def lock_model() -> None:
    """Write down what this lab's hub has, as an operator does once a model. LabError when it fails.

    Not committed: the hub makes its models on this machine.
    """
    command = [str(Path(sys.executable).with_name("fleet")), "model", "lock", "lab"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise LabError(
            "the lab's model could not be locked",
            "fleet model lock lab failed; what it says above tells why",
            "mend that and run the same command again",
        )


def deploy() -> None:
    """Run the deploy as an operator would. LabError when it exits with anything but 0."""
    command = [str(Path(sys.executable).with_name("pyinfra")), "-y", "inventories/lab.py"]
    done = subprocess.run([*command, "deploy.py"], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise LabError(
            "the deploy failed",
            f"pyinfra exited with {done.returncode}; what it says above names host and cause",
            "mend that and run the same command again: it picks up where it stopped",
        )


def gateways(fleet: Fleet) -> list[str]:
    """The gateway hosts' names, in the inventory's order."""
    return list(fleet.groups.get("gateway", []))


def answer(fleet: Fleet, name: str) -> None:
    """Ask one host and print its answer as it comes, with when the first and last words came."""
    print(f"{name}: ", end="", flush=True)
    asked = time.monotonic()
    moments = []
    for words in stream(fleet, name, QUESTION):
        moments.append(time.monotonic() - asked)
        print(words, end="", flush=True)
    if not moments:
        raise LabError(
            f"{name} answered nothing", "the stream ended without a word", f"lab ssh {name}"
        )
    print(f"\n  [{len(moments)} events, the first after {moments[0]:.2f} s, ", end="")
    print(f"the last after {moments[-1]:.2f} s]")


def stream(fleet: Fleet, name: str, question: str) -> Iterator[str]:
    """The words of one streamed chat completion as they arrive."""
    host = fleet.hosts[name]
    gateway = host.settings.gateway
    if gateway is None:
        raise LabError(f"{name} has no gateway", "it is in no group gateway", "add it there")
    key = keyfile.first_key_path(fleet).read_text().strip()
    context = ssl.create_default_context(cafile=str(fleet.directory / "ca.crt"))
    address = (str(host.connection.get("ssh_hostname", name)), gateway.https_port)
    connection = http.client.HTTPConnection(gateway.server_name, timeout=120)
    # Connected by hand: the name is for the certificate, the lab has no DNS.
    connection.sock = context.wrap_socket(
        socket.create_connection(address, timeout=120), server_hostname=gateway.server_name
    )
    body = {
        "model": host.settings.served_model_name,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": ANSWER_TOKENS,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise LabError(
            f"{name} answered {response.status}",
            response.read(2000).decode("utf-8", "replace"),
            f"lab ssh {name} journalctl -u nginx -u llm-gateway -u 'llm-engine@*' -n 50",
        )
    for line in response:
        yield from words_of(line.decode().strip())
    connection.close()


def words_of(line: str) -> list[str]:
    """The words that one line of a streamed chat completion brings, mostly none or one."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return []
    choices = json.loads(line.removeprefix("data: ")).get("choices", [])
    contents = [choice.get("delta", {}).get("content") for choice in choices]
    return [words for words in contents if words]


def curl_line(fleet: Fleet, name: str) -> str:
    """A command line that asks the same host; the key stays in its file."""
    host = fleet.hosts[name]
    gateway = host.settings.gateway
    if gateway is None:
        raise LabError(f"{name} has no gateway", "it is in no group gateway", "add it there")
    server, port = gateway.server_name, gateway.https_port
    body = {
        "model": host.settings.served_model_name,
        "stream": True,
        "max_tokens": ANSWER_TOKENS,
        "messages": [{"role": "user", "content": "Hello!"}],
    }
    directory = fleet.directory.relative_to(fleet.root)
    return " \\\n    ".join(
        [
            f"curl -N --cacert {directory}/ca.crt",
            f"--resolve {server}:{port}:{host.connection.get('ssh_hostname', name)}",
            f'-H @<(printf "Authorization: Bearer %s" "$(cat {directory}/first-key.txt)")',
            "-H 'Content-Type: application/json'",
            f"-d '{json.dumps(body)}'",
            f"https://{server}{'' if port == 443 else f':{port}'}/v1/chat/completions",
        ]
    )
