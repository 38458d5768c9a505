"""A stand-in for the modelscope command that behaves as the real one was seen to (1.40.2).

Its mode is the JSON file that $FAKE_CLIENT names: {mode, path, times}. Every start is appended to
$FAKE_CLIENT.starts with its arguments and what it found in its environment.
"""

import argparse
import hashlib
import http.client
import json
import os
import sys
import time
from pathlib import Path

plan_file = Path(os.environ["FAKE_CLIENT"])
plan = json.loads(plan_file.read_text())
parser = argparse.ArgumentParser()
parser.add_argument("command")
for option in ("--model", "--revision", "--local_dir", "--max-workers"):
    parser.add_argument(option)
parser.add_argument("--include", nargs="+")
given = parser.parse_args()
with Path(f"{plan_file}.starts").open("a") as log:
    own = {key: value for key, value in os.environ.items() if key.startswith("MODELSCOPE_")}
    own["HOME"] = os.environ["HOME"]
    log.write(json.dumps({"argv": sys.argv[1:], "environment": own}) + "\n")
address = os.environ["MODELSCOPE_ENDPOINT"].removeprefix("http://")
base = f"/api/v1/models/{given.model}"


def now_or_never() -> bool:
    """Whether the planned misbehaviour still happens; counts it down."""
    plan["times"] = plan.get("times", 1) - 1
    plan_file.write_text(json.dumps(plan))
    return bool(plan["times"] >= 0)


def get(url: str, host: str = address) -> bytes:
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.request("GET", url, headers={"User-Agent": "fake-client"})
    answer = connection.getresponse()
    if answer.status == 302:
        _, _, elsewhere, rest = answer.headers["Location"].split("/", 3)
        return get(f"/{rest}", elsewhere)
    if answer.status != 200:
        sys.exit(f"error: {answer.status} for {url}")
    return answer.read()


def wait_for_ever() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.02)
    sys.exit(9)


print(" ( '.( OO )_             ( (  OO) )  _(  OO)  ")
sys.stderr.write("\rDownloading:  50%|#####     | 1/2 [00:00<00:00]\r")
listing = json.loads(get(f"{base}/repo/files?Revision={given.revision}&Recursive=True"))
failed = False
for entry in listing["Data"]["Files"]:
    path = entry["Path"]
    if entry["Type"] == "tree" or (given.include and path not in given.include):
        continue
    target = Path(given.local_dir, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    mine = plan.get("path", path) == path
    if mine and plan["mode"] == "omit" and now_or_never():
        continue
    if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == entry.get("Sha256"):
        continue
    partial = target.with_name(target.name + ".incomplete")
    quoted = path.replace("/", "%2F")
    for _attempt in range(3):
        body = get(f"{base}/repo?Revision={given.revision}&FilePath={quoted}")
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
Path(given.local_dir, ".msc").write_text("the client's own record")
sys.exit("error: [E1003] 1 file(s) failed to download" if failed else 0)
