"""Clients as people have them, against a vhost: OpenAI's for Python and for Node, and curl.

Each asks for a stream and says when its chunks came. None checks less than it would by itself: the
name and the CA of the certificate are checked by all of them. Keys are in no argv.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import openai

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

HERE = Path(__file__).parent
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count to ten."}]
# What one burst at the end would be, or a buffer on the way: fewer arrivals than this.
LEAST_ARRIVALS = 5
# Chunks that were read this close together came together.
TOGETHER_SECONDS = 0.005


@dataclass(frozen=True)
class Vhost:
    """Where the gateway is. ca: PEM file to trust. address: IPv4, for a name that no DNS knows."""

    server_name: str
    port: int
    address: str
    ca: Path
    key: str = field(repr=False)
    model: str
    max_tokens: int = 64

    @property
    def base_url(self) -> str:
        port = "" if self.port == 443 else f":{self.port}"
        return f"https://{self.server_name}{port}/v1"

    def settings(self) -> dict[str, Any]:
        """What the programs in this directory read."""
        return {
            "address": self.address,
            "base_url": self.base_url,
            "key": self.key,
            "model": self.model,
            "max_tokens": self.max_tokens,
        }


@dataclass
class Heard:
    """A streamed answer. seconds: when each chunk was here, of any one clock."""

    seconds: list[float]
    text: str
    more: dict[str, Any] = field(default_factory=dict)

    def assert_spread(self) -> None:
        """The chunks came one after the other, not together."""
        assert self.text, "no text came"
        arrivals = [self.seconds[0]]
        arrivals += [
            one
            for before, one in zip(self.seconds, self.seconds[1:], strict=False)
            if one - before > TOGETHER_SECONDS
        ]
        assert len(arrivals) >= LEAST_ARRIVALS, (
            f"{len(self.seconds)} chunks came at {len(arrivals)} moments: something held them back"
        )


class Addressed(httpx2.HTTPTransport):
    """Sends requests for a name to an address, as DNS would; TLS still checks the name."""

    def __init__(self, address: str, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify)
        self.address = address

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.extensions["sni_hostname"] = request.url.host
        request.url = request.url.copy_with(host=self.address)
        return super().handle_request(request)


def with_python(vhost: Vhost) -> Heard:
    """more: models, whole, refused {name, status, code}."""
    transport = Addressed(vhost.address, ssl.create_default_context(cafile=str(vhost.ca)))
    with httpx2.Client(transport=transport, timeout=120) as http:
        ours = openai.OpenAI(
            base_url=vhost.base_url, api_key=vhost.key, http_client=http, max_retries=0
        )
        models = [one.id for one in ours.models.list()]
        whole = ours.chat.completions.create(
            model=vhost.model, messages=QUESTION, max_tokens=vhost.max_tokens
        )
        seconds, text = [], ""
        for chunk in ours.chat.completions.create(
            model=vhost.model, messages=QUESTION, max_tokens=vhost.max_tokens, stream=True
        ):
            seconds.append(time.monotonic())
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        refused: dict[str, Any] = {}
        try:
            ours.with_options(api_key="sk-wrong").chat.completions.create(
                model=vhost.model, messages=QUESTION
            )
        except openai.APIStatusError as error:
            refused = {
                "name": type(error).__name__,
                "status": error.status_code,
                "code": error.code,
            }
    more = {"models": models, "whole": whole.choices[0].message.content, "refused": refused}
    return Heard(seconds, text, more)


def lacks_node() -> str | None:
    """Why there can be no Node client here; None when there can."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            return f"{name} is not installed (apt-get install nodejs npm)"
    return None


def install_node_client(directory: Path) -> Path:
    """OpenAI's client by package-lock.json, and the program that uses it; the program's path."""
    for name in ("package.json", "package-lock.json", "stream.mjs"):
        shutil.copy(HERE / name, directory)
    installed = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert installed.returncode == 0, installed.stdout + installed.stderr
    return directory / "stream.mjs"


def with_node(vhost: Vhost, program: Path) -> Heard:
    """more: as with_python's."""
    ran = subprocess.run(
        ["node", str(program)],
        input=json.dumps(vhost.settings()),
        capture_output=True,
        text=True,
        env=os.environ | {"NODE_EXTRA_CA_CERTS": str(vhost.ca)},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    return Heard(found.pop("seconds"), found.pop("text"), found)


def with_curl(vhost: Vhost) -> Heard:
    """more: status, version of HTTP, and the last event."""
    body = {
        "model": vhost.model,
        "messages": QUESTION,
        "max_tokens": vhost.max_tokens,
        "stream": True,
    }
    command = [
        *("curl", "--silent", "--show-error", "--no-buffer", "--config", "-"),
        *("--cacert", str(vhost.ca), "--data", json.dumps(body)),
        *("--resolve", f"{vhost.server_name}:{vhost.port}:{vhost.address}"),
        *("--header", "Content-Type: application/json"),
        *("--write-out", "\n%{http_code} %{http_version}\n", f"{vhost.base_url}/chat/completions"),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ran:
        assert ran.stdin is not None
        assert ran.stdout is not None
        assert ran.stderr is not None
        ran.stdin.write(f'header = "Authorization: Bearer {vhost.key}"\n')
        ran.stdin.close()
        seconds, text, events, last = [], "", [], ""
        for line in ran.stdout:
            if line.startswith("data: {"):
                seconds.append(time.monotonic())
                choices = json.loads(line[6:])["choices"]
                text += (choices[0]["delta"].get("content") or "") if choices else ""
            if line.startswith("data: "):
                events.append(line.strip())
            last = line.strip() or last
        problem = ran.stderr.read()
    assert ran.returncode == 0, problem
    assert events, last
    status, version = last.split()
    return Heard(seconds, text, {"status": int(status), "version": version, "last": events[-1]})
