"""Installing the NVIDIA driver from the host's own apt sources: the job kind `driver`, and what
comes after the reboot that it may need.

Everything that can forbid it is looked at before anything is changed. Then the engine is drained
and stopped, the packages are installed and held. It is safe to run again after a kill anywhere:
what is installed is not installed again, and a reboot is owed as long as another module is loaded
than the one on the disk. state/driver.json says for which version the host was rebooted, so that a
module that does not load is not answered with one reboot after the other.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    child,
    durable,
    engine,
    events,
    fields,
    golive,
    ground,
    holds,
    layout,
    programs,
    systemctl,
)
from .errors import HostError
from .jobs import boot_id

if TYPE_CHECKING:
    from .status import Progress

UNIT = "llm-driver@.service"
# DKMS builds the module for each installed kernel and prints nothing for minutes.
STALL_SECONDS = 1800.0
CALL_SECONDS = 60.0
STOP_SECONDS = 900.0
# The first call after a boot without persistence mode initialises every card; udev may still be
# loading the module when the first login works.
SETTLE_SECONDS, LOAD_SECONDS = 180.0, 60.0
# Asked for at once, systemd ends the SSH session before this program has answered.
LATER = ["systemd-run", "--quiet", "--on-active=3", "--timer-property=AccuracySec=100ms"]
LOCK_WAIT = ["-o", "DPkg::Lock::Timeout=600"]
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C",
    # needrestart would restart services by itself, the engine's among them.
    "NEEDRESTART_SUSPEND": "1",
}
# As pyinfra_deploy/facts/apt_packages.py: what counts as the driver's.
NVIDIA = re.compile(r"nvidia|^libcuda1|^cuda-(?:compat|drivers)|^libnv(?:cuvid|optix|idia)")
FIXES = programs.Fixes(
    absent="Install the package that it is in.",
    hangs="Look at the kernel's lines: 'journalctl -k | grep -e NVRM -e Xid'.",
    fails="Mend what it names, then run again.",
)
CHANGED = re.compile(r"^(Inst|Remv) (\S+)", re.MULTILINE)


def run(spec: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """{packages, unit, go_live} -> {installed, held, module, loaded, reboot, boot_id}.

    packages: those that the host is to have. unit: the engine's. go_live: the spec of a go-live to
    the release that serves, by which the engine is drained; null: nothing serves. reboot: another
    module is loaded than the one that is installed now.
    """
    fields.refuse_unknown(spec, {"llm_root", "packages", "unit", "go_live"}, "driver")
    packages, unit = fields.texts(spec, "packages"), fields.text(spec, "unit")
    wish = golive.read_wish(spec["go_live"]) if spec.get("go_live") else None
    progress.phase("check", message=", ".join(packages))
    missing = [name for name in packages if not installed_version(name)]
    if missing:
        refuse_unavailable(missing)
        refuse_side_effects(missing)
    before = module_on_disk()
    refuse_second_reboot(before, missing)
    # Not engine.unit_state: a host that gets its first driver has no unit of an engine yet.
    ran = systemctl.show(unit, ["ActiveState"])["ActiveState"] not in ("", "inactive", "failed")
    try:
        if wish is not None:
            golive.drain(wish, ground.read_ground(wish.engine, progress), progress)
        if ran:
            progress.phase("stopping", message=unit)
            systemctl.call(["stop", unit], STOP_SECONDS)
        if missing:
            install(missing, progress)
        held = hold()
    except BaseException:
        with contextlib.suppress(HostError):
            hold()  # what is still there, of which the holds were given up
        if ran and module_on_disk() == before:
            # Nothing has become another: what served can serve on.
            systemctl.call(["start", "--no-block", unit])
        raise
    finally:
        if wish is not None:
            engine.lower_drain_flag(wish.engine, engine.DRAINED_BY_GO_LIVE)
    module, loaded = module_on_disk(), loaded_module()
    if module is None:
        raise HostError(
            "the packages are installed, and there is no NVIDIA kernel module on the disk",
            f"'modinfo nvidia' finds none for this kernel after installing {', '.join(packages)}.",
            "Look at 'dkms status' and /var/lib/dkms/nvidia*/*/build/make.log: the headers of the "
            "running kernel may be missing (linux-headers-$(uname -r)). Then run again.",
        )
    if missing:
        events.record("driver installed", packages=missing, module=module)
    return {
        "installed": missing,
        "held": held,
        "module": module,
        "loaded": loaded,
        "reboot": loaded != module,
        "boot_id": boot_id(),
    }


def refuse_unavailable(names: list[str]) -> None:
    """HostError for packages that none of the configured sources has."""
    text = programs.output_of(["apt-cache", "policy", *names], CALL_SECONDS, FIXES)
    absent = [name for name in names if candidate_in(text, name) is None]
    if absent:
        raise HostError(
            f"apt has no {', '.join(absent)} here",
            "'apt-cache policy' names no candidate from the sources that this host has.",
            "Run 'apt-get update'; add the source yourself (Debian: the component non-free; "
            "NVIDIA's own repository); or correct gpu_driver_packages. Nothing was changed.",
            text.splitlines(),
        )


def candidate_in(policy: str, name: str) -> str | None:
    """The version that apt would install, by `apt-cache policy`."""
    block = re.search(rf"^{re.escape(name)}(?::\w+)?:\n((?:\s+.*\n?)*)", policy, re.MULTILINE)
    found = re.search(r"^\s+Candidate: (\S+)", block.group(1), re.MULTILINE) if block else None
    return None if found is None or found.group(1) == "(none)" else found.group(1)


def refuse_side_effects(names: list[str]) -> None:
    """HostError when installing would remove what is not the driver's (another branch may go), or
    change what the operator holds."""
    command = ["apt-get", "-s", "-y", "--allow-change-held-packages", "install", *names]
    simulated = programs.output_of(command, CALL_SECONDS * 5, FIXES)
    changed = CHANGED.findall(simulated)
    others = [name for what, name in changed if what == "Remv" and not NVIDIA.search(name)]
    theirs = holds.held() - set(holds.ours())
    kept = sorted(theirs & {name for _, name in changed})
    for found, why in (
        (others, "would be removed for it, and are no packages of the NVIDIA driver"),
        (kept, "would be changed for it, and are held by somebody else (apt-mark showhold)"),
    ):
        if found:
            raise HostError(
                f"{', '.join(names)} cannot be installed without touching {', '.join(found)}",
                f"by apt's own simulation they {why}.",
                "Install by hand, give up the hold, or correct gpu_driver_packages. Nothing was "
                "changed.",
                simulated.splitlines()[-20:],
            )


def refuse_second_reboot(module: str | None, missing: list[str]) -> None:
    told = durable.read_json(_state_path()) or {}
    loaded = loaded_module()
    if missing or module is None or loaded == module or told.get("module") != module:
        return
    if told.get("boot_id") == boot_id():
        return  # the reboot was asked for and has not come yet
    raise HostError(
        f"the host was rebooted for driver {module}, and {loaded or 'no module'} is loaded",
        "another reboot would change nothing.",
        "Look at 'dkms status' (not built for this kernel), 'mokutil --sb-state' (Secure Boot "
        "refuses an unsigned module), 'lsmod | grep nouveau', and 'modprobe nvidia'; then run "
        "again.",
    )


def install(names: list[str], progress: Progress) -> None:
    """HostError with apt's last lines; the packages' own state is then as apt left it."""
    ours = holds.ours()
    if ours:
        holds.change([], ours)  # another branch may replace them
    progress.phase("updating", message="apt-get update")
    if _apt(["update"], progress).returncode != 0:
        progress.log("apt-get update failed: installing from the lists that are there")
    progress.phase("installing", message=", ".join(names))
    # What a kill or a power cut has left half configured.
    repaired = child.run(
        ["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"],
        env=_environment(), cwd=Path("/"), on_poll=lambda: None, stall_seconds=STALL_SECONDS,
        on_line=progress.log,
    )  # fmt: skip
    ended = _apt(["-o", "Dpkg::Options::=--force-confold", "install", *names], progress)
    if ended.returncode != 0 or ended.stalled:
        raise HostError(
            f"{', '.join(names)} could not be installed",
            "apt-get did nothing for half an hour and was ended." if ended.stalled
            else f"apt-get ended with {child.exit_words(ended.returncode)}"
            + ("" if repaired.returncode == 0 else ", and so did dpkg --configure -a before it")
            + ".",
            "Mend what it names below (a full disk, a hold of yours: 'apt-mark showhold'), then "
            "run again: it goes on from here.",
            ended.tail,
        )  # fmt: skip


def _apt(words: list[str], progress: Progress) -> child.Ended:
    return child.run(
        ["apt-get", "-y", "-q", *LOCK_WAIT, *words],
        env=_environment(),
        cwd=Path("/"),
        on_poll=lambda: None,
        stall_seconds=STALL_SECONDS,
        on_line=progress.log,
    )


def _environment() -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT}


def hold() -> list[str]:
    """Hold the installed packages of the module's branch, by their versions; those newly held."""
    module = module_on_disk()
    if module is None:
        return []
    branch = re.compile(rf"(?:\d+:)?{re.escape(module.split('.')[0])}\.\d")
    form = "${Package}\t${Version}\t${db:Status-Abbrev}\n"
    listed = programs.output_of(["dpkg-query", "-W", "-f", form], CALL_SECONDS, FIXES)
    names = []
    for line in listed.splitlines():
        name, version, status = (*line.split("\t"), "", "")[:3]
        of_driver = NVIDIA.search(name) and not name.startswith("cuda-compat")
        if status[1:2] == "i" and of_driver and branch.match(version):
            names.append(name)
    return holds.change(sorted(names), [])["held"]


def installed_version(name: str) -> str | None:
    """Of a package that is installed and configured."""
    form = "${Version}\t${db:Status-Abbrev}\n"
    try:
        text = programs.output_of(["dpkg-query", "-W", "-f", form, name], CALL_SECONDS, FIXES)
    except HostError:
        return None  # dpkg does not know it
    for line in text.splitlines():
        version, _, status = line.partition("\t")
        if status[1:2] == "i" and version:
            return version
    return None


def module_on_disk() -> str | None:
    """The version of the module that the next boot loads; None when there is none."""
    try:
        text = programs.output_of(["modinfo", "-F", "version", "nvidia"], CALL_SECONDS, FIXES)
    except HostError:
        return None
    return text.strip() or None


def loaded_module() -> str | None:
    """The version of the loaded module; None when none is loaded."""
    try:
        text = (layout.system_root() / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return found.group(1) if found else None


def _state_path() -> Path:
    return layout.llm_root() / "state" / "driver.json"


def reboot(request: dict[str, Any]) -> dict[str, Any]:
    """`driver reboot` {boot_id, module} -> {rebooting: bool}: false when the host has rebooted
    since. The answer comes before the host goes down."""
    seen, module = fields.text(request, "boot_id"), fields.text(request, "module")
    if seen != boot_id():
        return {"rebooting": False}
    durable.write_json(_state_path(), {"module": module, "boot_id": seen}, mode=0o640)
    events.record("reboot for the driver", module=module)
    programs.output_of([*LATER, "systemctl", "reboot"], CALL_SECONDS, systemctl.FIXES)
    return {"rebooting": True}


def boot(_request: dict[str, Any]) -> dict[str, Any]:
    """`driver boot` {} -> {boot_id}."""
    return {"boot_id": boot_id()}


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """`driver verify` {module} -> {driver, gpus}: nvidia-smi answers, with the version that was
    installed. Ends the installation: its unit, which may do anything, goes.
    """
    wanted = fields.text(request, "module")
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    began = time.monotonic()
    while True:
        try:
            answer = programs.output_of(command, CALL_SECONDS, FIXES)
            break
        except HostError as error:
            patience = LOAD_SECONDS if loaded_module() is None else SETTLE_SECONDS
            if time.monotonic() - began < patience:
                time.sleep(2)
                continue
            raise HostError(
                f"driver {wanted} is installed and does not work",
                f"{error.what}: {error.why}",
                "Look at 'dkms status', 'mokutil --sb-state' (Secure Boot refuses an unsigned "
                "module) and 'journalctl -k -b | grep -e nvidia -e NVRM'; then run again.",
                error.detail,
            ) from error
    versions = [line.strip() for line in answer.splitlines() if line.strip()]
    if not versions or set(versions) != {wanted}:
        raise HostError(
            f"nvidia-smi does not answer with driver {wanted}",
            f"it says: {', '.join(sorted(set(versions))) or 'nothing'}.",
            "Look at 'dkms status' and 'modinfo nvidia' on the host: another module than the "
            "installed one is loaded.",
        )
    durable.remove_file(_state_path())
    durable.remove_file(layout.etc_root() / "systemd/system" / UNIT)
    systemctl.call(["daemon-reload"])
    events.record("driver verified", driver=wanted, gpus=len(versions))
    return {"driver": wanted, "gpus": len(versions)}
