"""A stand-in for the modelscope command that behaves as the real one was seen to (1.40.2).

Its mode is the JSON file that $FAKE_CLIENT names: {mode, path, times}. Every start is appended to
$FAKE_CLIENT.starts with its arguments and what it found in its environment.
"""

import hashlib
import json
import os
import socket
import sys
import time
from pathlib import Path

OPTIONS = ("model", "revision", "local_dir")
plan_file = Path(os.environ["FAKE_CLIENT"])
plan = json.loads(plan_file.read_text())
words = sys.argv[2:]
model, revision, directory = (words[words.index(f"--{name}") + 1] for name in OPTIONS)
include = words[words.index("--include") + 1 :] if "--include" in words else None
with Path(f"{plan_file}.starts").open("a") as log:
    own = {key: value for key, value in os.environ.items() if key.startswith("MODELSCOPE_")}
    own["HOME"] = os.environ["HOME"]
    own |= {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    log.write(json.dumps({"argv": sys.argv[1:], "environment": own}) + "\n")
address = os.environ["MODELSCOPE_ENDPOINT"].removeprefix("http://")
base = f"/api/v1/models/{model}"


def now_or_never() -> bool:
    """Whether the planned misbehaviour still happens; counts it down."""
    plan["times"] = plan.get("times", 1) - 1
    plan_file.write_text(json.dumps(plan))
    return bool(plan["times"] >= 0)


def get(url: str, host: str = address) -> bytes:
    """HTTP by hand: importing http.client would take most of the time of a test."""
    name, port = host.split(":")
    with socket.create_connection((name, int(port)), timeout=10) as connection:
        request = f"GET {url} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: fake-client\r\n\r\n"
        connection.sendall(request.encode())
        received = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    if " 302 " in status:
        (location,) = [line.split(": ")[1] for line in headers if line.startswith("Location: ")]
        _, _, elsewhere, rest = location.split("/", 3)
        return get(f"/{rest}", elsewhere)
    if " 200 " not in status:
        sys.exit(f"error: [E1002] [{status.split()[1]}] for {url}")
    return body


def wait_for_ever() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.02)
    sys.exit(9)


print(" ( '.( OO )_             ( (  OO) )  _(  OO)  ")
sys.stderr.write("\rDownloading:  50%|#####     | 1/2 [00:00<00:00]\r")
if plan["mode"] == "refused" and now_or_never():
    sys.exit("error: [E1002] [401] for the listing")
listing = json.loads(get(f"{base}/repo/files?Revision={revision}&Recursive=True"))
failed = False
for entry in listing["Data"]["Files"]:
    path = entry["Path"]
    if entry["Type"] == "tree" or (include and path not in include):
        continue
    target = Path(directory, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    mine = plan.get("path", path) == path
    if mine and plan["mode"] == "omit" and now_or_never():
        continue
    if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == entry.get("Sha256"):
        continue
    partial = target.with_name(target.name + ".incomplete")
    quoted = path.replace("/", "%2F")
    for _attempt in range(3):
        body = get(f"{base}/repo?Revision={revision}&FilePath={quoted}")
        if mine and plan["mode"] == "full" and now_or_never():
            partial.write_bytes(body[: len(body) // 2])
            sys.exit("OSError: [Errno 28] No space left on device")
        if mine and plan["mode"] in ("drop", "hang") and now_or_never():
            partial.write_bytes(body[: len(body) // 2])
            if plan["mode"] == "hang":
                Path(f"{plan_file}.hangs").touch()
                wait_for_ever()
            sys.exit("requests.exceptions.ConnectionError: connection broken")
        if mine and plan["mode"] == "lie" and now_or_never():
            body = body[:-1] + b"X"
        elif hashlib.sha256(body).hexdigest() != (entry.get("Sha256") or "unchecked"):
            print(f"Hash mismatch for {path}", file=sys.stderr)
            continue
        partial.write_bytes(body)
        partial.rename(target)
        break
    else:
        failed = True
Path(directory, ".msc").write_text("the client's own record")
sys.exit("error: [E1003] 1 file(s) failed to download" if failed else 0)
