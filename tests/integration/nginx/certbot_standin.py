"""What certbot does as far as this project sees it. It looks for its own answer through Nginx, as
an authority would. Run as: PYTHON certbot_standin.py PLACE PORT WORDS..."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

REFUSAL = """Certbot failed to authenticate some domains
  Type:   unauthorized
  Detail: 192.0.2.1: Invalid response"""


def main(place: Path, port: str, words: list[str]) -> int:
    def value(name: str) -> str:
        return words[words.index(name) + 1]

    with (place / "calls").open("a") as calls:
        calls.write(json.dumps([words, os.environ.get("REQUESTS_CA_BUNDLE")]) + "\n")
    if (place / "fail").exists():
        print(REFUSAL, file=sys.stderr)
        return 1
    if words[0] == "certonly":
        answer = Path(value("--webroot-path"), ".well-known/acme-challenge/token-1")
        answer.parent.mkdir(parents=True, exist_ok=True)
        answer.write_text("token-1.thumbprint")
        url = f"http://127.0.0.1:{port}/.well-known/acme-challenge/token-1"
        with urllib.request.urlopen(url) as response:
            assert response.read() == b"token-1.thumbprint"
        answer.unlink()
        (place / "hook").write_text(value("--deploy-hook"))
    elif not (place / "due").exists():
        return 0
    live = Path(value("--config-dir"), "live", value("--cert-name"))
    live.mkdir(parents=True, exist_ok=True)
    for name, source in (("fullchain.pem", "tls.crt"), ("privkey.pem", "tls.key")):
        (live / name).write_bytes((place / source).read_bytes())
    subprocess.run(["/bin/sh", "-c", (place / "hook").read_text()], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
