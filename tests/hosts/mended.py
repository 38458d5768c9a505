"""What must hold of a host after a kill or a power cut, at any moment, and how it is mended."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hosts.lab_session import shell, upper_of

if TYPE_CHECKING:
    from tests.hosts.standin_inventory import Checkout

ROOT = Path("srv/llm")
# What comes after the release itself: what vLLM's own parser said of it, and its binding.
GATHERED = {"arguments.json", "help.txt", "binding.env", "placement.conf"}


def restore(checkout: Checkout, host: str) -> None:
    """A plain run completes, serves, and has nothing left to do after it."""
    checkout.deploy().done()
    assert checkout.service(host).answers()
    assert_nothing_is_half_visible(host)
    ran = checkout.deploy().done()
    assert ran.unchanged, ran.log


def assert_nothing_is_half_visible(host: str, *, is_on: bool = True) -> None:
    """What has its final name is whole: environments that run, the model, releases, links."""
    top = upper_of(host) / ROOT
    for place in ("runtimes", "tools", "gateway"):
        for path in (top / place).iterdir() if (top / place).is_dir() else ():
            if (path / ".fleet-complete.json").is_file():
                assert json.loads((path / ".fleet-complete.json").read_text())["digest"]
                if is_on:
                    # The stand-in of Miniforge brings conda and no Python of its own.
                    own = path.name.startswith("miniforge-")
                    runs = "conda --version" if own else "python -c 'import sys'"
                    shell(host, f"/{ROOT}/{place}/{path.name}/bin/{runs}")
    assert_models_are_whole(top / "models")
    for release in (top / "engines/main/releases").glob("[!.]*"):
        names = {path.name for path in release.iterdir()}
        assert names - GATHERED == {"release.json", "config.yaml", "env", "runtime", "model"}
        assert json.loads((release / "release.json").read_text())["id"] == release.name
    current = top / "engines/main/current"
    if current.is_symlink():
        assert (current.parent / current.readlink()).is_dir()
    for path in (top / "state").glob("*.json"):
        json.loads(path.read_text())


def assert_models_are_whole(models: Path) -> None:
    """Every byte of every model that counts as there, and nothing else beside it. The record comes
    last: a directory without one counts for nothing."""
    for record_file in models.glob("[!.]*/[!.]*.json"):
        directory = record_file.with_name(record_file.name.removesuffix(".json"))
        found = {
            path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in directory.rglob("*")
            if path.is_file()
        }
        recorded = json.loads(record_file.read_text())["files"]
        assert found == {file["path"]: file["sha256"] for file in recorded}, record_file


def wipe(host: str) -> None:
    """The host as before its first deploy, but for the distribution's packages. Nginx, disabled
    as if by an operator, has to be enabled again."""
    shell(
        host,
        "systemctl disable --now llm-watch@main.service llm-log@main.service "
        "llm-verify.timer; "
        "systemctl disable --now llm-gateway.socket llm-gateway.service 'llm-engine@main.service' "
        "nginx.service; "
        f"rm -rf /{ROOT} /etc/llm /etc/systemd/system/llm-* /etc/nginx/conf.d/llm* "
        "/etc/sysusers.d/llm* /etc/tmpfiles.d/llm* /var/lib/llm-* /var/cache/llm-* "
        "/etc/sysctl.d/*llm*; systemctl daemon-reload",
    )
