"""A stand-in for vLLM's server, for tests of everything around it. It thinks of nothing.

Installed as the module `vllm` with the command `vllm serve --config FILE --uds SOCKET`; standard
library only. Modelled on vLLM 0.32: the same paths, metrics, exit codes (2 for an argument that it
does not know, 1 with a traceback when it cannot start), and SIGTERM to the main process lets what
runs end within --shutdown-timeout while new requests get 500.

How it behaves is in the argument additional-config, a mapping:
  start_seconds   time until the socket is there (0.3)
  token_seconds   time between two tokens (0.02)
  fail            exit-1, no-socket, answer-500, empty-text
"""

from __future__ import annotations

import json
import re
import signal
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

KNOWN = {
    "model",
    "served-model-name",
    "shutdown-timeout",
    "max-model-len",
    "dtype",
    "enforce-eager",
    "seed",
    "max-num-seqs",
    "additional-config",
}
WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
MAXIMUM_TOKENS = 2000


def read_config(path):
    """The flat YAML that the deploy writes: `key: value` a line, a folded value indented."""
    text = re.sub(r"\n +", " ", Path(path).read_text())
    return dict(_pair(line) for line in text.splitlines() if line.strip())


def _pair(line):
    key, _, value = line.partition(": ")
    if value.startswith("'"):
        return key, value[1:-1].replace("''", "'")
    if value.startswith('"'):
        return key, json.loads(value)
    return key, {"true": True, "false": False}.get(value, value)


class Engine:
    """What all connections share."""

    def __init__(self, config):
        self.name = config["served-model-name"]
        behaviour = json.loads(config.get("additional-config", "{}"))
        self.fail = behaviour.get("fail", "")
        self.start_seconds = float(behaviour.get("start_seconds", 0.3))
        self.token_seconds = float(behaviour.get("token_seconds", 0.02))
        self.shutdown_seconds = float(config.get("shutdown-timeout", 0))
        self.draining = False
        self.running = 0
        self.lock = threading.Lock()

    def count(self, by):
        with self.lock:
            self.running += by


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def address_string(self):
        return "unix"

    def log_message(self, form, *values):
        sys.stdout.write(f"INFO:     {form % values}\n")
        sys.stdout.flush()

    def answer(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/health":
            self.answer(200, b"")
        elif self.path == "/version":
            self.answer(200, {"version": "0.32.0+standin"})
        elif self.path == "/v1/models":
            model = {"id": self.engine.name, "object": "model", "owned_by": "vllm"}
            self.answer(200, {"object": "list", "data": [model]})
        elif self.path == "/metrics":
            label = f'{{engine="0",model_name="{self.engine.name}"}}'
            text = (
                f"vllm:num_requests_running{label} {float(self.engine.running)}\n"
                f"vllm:num_requests_waiting{label} 0.0\n"
            )
            self.answer(200, text.encode(), "text/plain; version=0.0.4")
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self.answer(404, {"detail": "Not Found"})
        elif body.get("model") != self.engine.name:
            message = f"The model `{body.get('model')}` does not exist."
            self.answer(404, {"error": {"message": message, "type": "NotFoundError", "code": 404}})
        elif self.engine.draining or self.engine.fail == "answer-500":
            sys.stderr.write("ERROR: EngineCore encountered a fatal error (stand-in)\n")
            self.answer(500, {"error": {"message": "EngineCore encountered an issue."}})
        else:
            self.engine.count(1)
            try:
                self.generate(body)
            finally:
                self.engine.count(-1)

    def generate(self, body):
        chat = self.path == "/v1/chat/completions"
        count = min(int(body.get("max_tokens") or 16), MAXIMUM_TOKENS)
        words = [f"{WORDS[at % len(WORDS)]} " for at in range(count)]
        if self.engine.fail == "empty-text":
            words = [""]
        if body.get("stream"):
            self.stream(words, chat)
            return
        time.sleep(self.engine.token_seconds * len(words))
        text = "".join(words)
        choice = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": 4, "completion_tokens": count, "total_tokens": 4 + count}
        self.answer(200, {**self.head(chat, False), "choices": [choice], "usage": usage})

    def head(self, chat, chunk):
        kind = (
            ("chat.completion.chunk" if chunk else "chat.completion")
            if chat
            else ("text_completion")
        )
        return {
            "id": "cmpl-1",
            "object": kind,
            "created": int(time.time()),
            "model": self.engine.name,
        }

    def stream(self, words, chat):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at, word in enumerate(words):
            time.sleep(self.engine.token_seconds)
            end = "length" if at == len(words) - 1 else None
            choice = {"index": 0, "finish_reason": end}
            choice |= {"delta": {"content": word}} if chat else {"text": word}
            self.chunk("data: " + json.dumps({**self.head(chat, True), "choices": [choice]}))
        self.chunk("data: [DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, line):
        data = (line + "\n\n").encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


def main():
    arguments = sys.argv[1:]
    if arguments[:1] != ["serve"]:
        sys.exit("vllm (stand-in): only `vllm serve --config FILE --uds SOCKET`")
    options = dict(zip(arguments[1::2], arguments[2::2], strict=False))
    config = read_config(options["--config"])
    unknown = [key for key in config if key.removeprefix("no-") not in KNOWN]
    if unknown:
        sys.stderr.write("usage: vllm serve [model_tag] [options]\n")
        words = " ".join(f"--{key} {config[key]}" for key in unknown)
        sys.stderr.write(f"vllm: error: unrecognized arguments: {words}\n")
        sys.exit(2)
    engine = Engine(config)
    print(f"INFO vLLM API server version 0.32.0+standin, serving {engine.name}", flush=True)
    if not Path(config["model"], "config.json").is_file():
        raise ValueError(f"Invalid repository ID or local directory: {config['model']}")
    time.sleep(engine.start_seconds)
    if engine.fail == "exit-1":
        raise RuntimeError("Engine core initialization failed. See root cause above.")
    if engine.fail == "no-socket":
        print("INFO loading weights (for ever)", flush=True)
        while True:
            signal.pause()
    serve(engine, options["--uds"])


def serve(engine, path):
    Path(path).unlink(missing_ok=True)
    Handler.engine = engine
    server = Server(path, Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=drain).start())

    def drain():
        engine.draining = True
        deadline = time.monotonic() + engine.shutdown_seconds
        while engine.running and time.monotonic() < deadline:
            time.sleep(0.05)
        server.shutdown()

    print(f"INFO Uvicorn running on unix socket {path}", flush=True)
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
