# pathlib costs 12 ms of every converge of every host, and os.path is enough here:
# ruff: noqa: PTH110, PTH112, PTH114, PTH115, PTH116, PTH118, PTH119, PTH120, PTH123, PTH207, PTH208
"""What a host is, in one command: the facts that the deploy decides from.

Self-contained on purpose, and therefore one long file: the deploy runs its text with
`python3 -I -S -c TEXT` before anything of ours is on the host. Debian's python3-minimal has no
json, ctypes or http module (`dpkg -L libpython3.11-minimal`), hence the small JSON reader and
writer at the end. Few and cheap imports, for each converge pays for them.

Input, one JSON object on stdin or as the only argument, each key optional: llm_root; packages,
files, units, engines, users, driver (lists of strings); certificate (path). Output: one JSON
object, a key a section. A section that could not be read is {"error": why}; a snapshot never fails
as a whole. Sizes are bytes, times UTC.
"""

from __future__ import annotations

import binascii
import glob
import grp
import hashlib
import os
import pwd
import re
import struct
import subprocess
import sys
import time

TYPE_CHECKING = False  # typing itself costs 6 ms at each snapshot; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Json: TypeAlias = Any
    Process: TypeAlias = "subprocess.Popen[bytes] | None"

MAP_COUNT = "vm/max_map_count"
# The order of precedence of systemd-sysctl for files of the same name, sysctl.d(5).
SYSCTL_DIRECTORIES = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/local/lib/sysctl.d",
    "/usr/lib/sysctl.d",
    "/lib/sysctl.d",
)
UNIT_PROPERTIES = {
    "LoadState": "load",
    "ActiveState": "active",
    "SubState": "sub",
    "UnitFileState": "enabled",
    "Result": "result",
    "MainPID": "main_pid",
    "InvocationID": "invocation_id",
    "NRestarts": "restarts",
    "NeedDaemonReload": "need_reload",
}
INODE_SCAN_SECONDS = 1.0


def read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as handle:
        return handle.read()


def text_or_none(path: str) -> str | None:
    try:
        return read_text(path).rstrip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def json_or_none(path: str) -> Json:
    """The document in `path`; None without such a file, {"error": ...} when it is not JSON."""
    try:
        text = text_or_none(path)
        return None if text is None else from_json(text)
    except IsADirectoryError:
        return {"error": f"{path} is a directory, and a file belongs there: move it away"}
    except (ValueError, RecursionError) as error:
        return {"error": f"{path} is not JSON: {error}"}


def sha256_or_none(path: str) -> str | None:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as handle:
            for block in iter(lambda: handle.read(1 << 20), b""):
                digest.update(block)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return digest.hexdigest()


def whole_or_none(path: str) -> int | None:
    """The number in `path`; ValueError in words for whatever else is there."""
    try:
        text = text_or_none(path)
        return int(text) if text else None
    except (ValueError, IsADirectoryError) as error:
        raise ValueError(
            f"{path} does not hold a number ({error}): somebody else changed it. "
            "Look at it, then remove it on the host, with lease.json beside it, and run again"
        ) from error


def link_or_none(path: str) -> str | None:
    return os.path.basename(os.readlink(path)) if os.path.islink(path) else None


def entries(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


# --- commands: all started first, read when their section is due, so that they run side by side


def start(*argv: str) -> Process:
    environment = dict(
        os.environ, LC_ALL="C", PATH=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"
    )
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    except FileNotFoundError:
        return None


def finish(process: Process, timeout_seconds: float = 10.0) -> tuple[str, int]:
    if process is None:
        raise OSError("the program is not installed")
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        # Not waited for: what hangs in the kernel does not die.
        process.kill()
        raise OSError(f"no answer within {timeout_seconds:.0f} seconds") from None
    return output.decode("utf-8", "replace"), process.returncode


def start_commands(request: dict[str, Any]) -> dict[str, Any]:
    units, packages = request["units"], request["packages"]
    dpkg = ("dpkg-query", "-W", "-f", "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n", *packages)
    show = (
        "systemctl",
        "show",
        "--no-pager",
        "-p",
        "Id," + ",".join(UNIT_PROPERTIES),
        "--",
        *units,
    )
    driver = request["driver"]
    return {
        "policy": start("apt-cache", "policy", *driver) if driver else None,
        "dpkg": start(*dpkg) if packages else None,
        "show": start(*show) if units else None,
        "systemd": start("systemctl", "--version"),
        "nginx": start("nginx", "-V"),
    }


# --- sections


def command_output(process: Process) -> str:
    return finish(process)[0] if process else ""


def last_group(pattern: str, text: str) -> str | None:
    """The last group of a match that took part in it; None without a match."""
    match = re.search(pattern, text)
    return match.group(match.lastindex or 0) if match else None


def os_section(commands: dict[str, Any]) -> Json:
    release = {}
    for line in read_text("/etc/os-release").splitlines():
        key, found, value = line.partition("=")
        if found:
            release[key] = value.strip().strip("\"'")
    uname = os.uname()
    systemd = command_output(commands["systemd"])
    nginx = command_output(commands["nginx"])
    # "built with OpenSSL A ... (running with OpenSSL B ...)", the latter only where they differ.
    openssl = r"built with OpenSSL ([\d.]+)(?:.*running with OpenSSL ([\d.]+))?"
    pythons = [
        path
        for path in sorted(glob.glob("/usr/bin/python3.*"))
        if re.search(r"/python3\.\d+$", path)
    ]
    return {
        "id": release.get("ID"),
        "id_like": release.get("ID_LIKE"),
        "version_id": release.get("VERSION_ID"),
        "codename": release.get("VERSION_CODENAME"),
        "kernel": uname.release,
        "arch": uname.machine,
        "hostname": uname.nodename,
        "boot_id": text_or_none("/proc/sys/kernel/random/boot_id"),
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "pythons": pythons,
        "systemd": last_group(r"systemd (\d+)", systemd),
        "systemd_running": os.path.isdir("/run/systemd/system"),
        "nginx": last_group(r"nginx/([\d.]+)", nginx),
        "nginx_openssl": last_group(openssl, nginx),
        "ipv6": os.path.exists("/proc/net/if_inet6"),
        "name_servers": name_servers(),
        "acme_certificate": os.path.exists("/etc/llm/acme/live/llm-gateway/fullchain.pem"),
        "is_root": os.geteuid() == 0,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def name_servers() -> list[str]:
    """The addresses in resolv.conf(5), as written; without the scope of a link-local one."""
    text = text_or_none("/etc/resolv.conf") or ""
    found = re.findall(r"^\s*nameserver\s+([0-9A-Fa-f.:]+)", text, re.MULTILINE)
    return [address for address in found if not address.lower().startswith("fe80:")]


def packages_section(request: dict[str, Any], commands: dict[str, Any]) -> Json:
    found: dict[str, str | None] = dict.fromkeys(request["packages"])
    if not found:
        return found
    for line in finish(commands["dpkg"])[0].splitlines():
        name, version, status = (*line.split("\t"), "", "")[:3]
        # Status "ii " is installed; "rc" is removed with its configuration left.
        if name in found and status[1:2] == "i":
            found[name] = version
    return found


SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# Where DKMS and Ubuntu keep the key that they sign modules with.
MODULE_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")


def driver_section(request: dict[str, Any], commands: dict[str, Any]) -> Json:
    """The packages that `driver` names: {packages: {name: {installed, candidate}}, secure_boot,
    module_key}; None where none is named. module_key: the firmware trusts the key that modules
    built here are signed with; null where nothing tells."""
    if not request["driver"]:
        return None
    text, status = finish(commands["policy"])
    if status:
        raise OSError(text.strip()[-200:])
    found: dict[str, dict[str, str | None]] = {}
    name = ""
    for line in text.splitlines():
        key, _, value = line.strip().partition(": ")
        if line[:1] not in (" ", "\t"):
            name = line.rstrip(":").split(":")[0]
            found[name] = {"installed": None, "candidate": None}
        elif key in ("Installed", "Candidate") and name:
            found[name][key.lower()] = None if value == "(none)" else value
    on = secure_boot()
    return {
        "packages": {name: found.get(name) for name in request["driver"]},
        "secure_boot": on,
        "module_key": module_key() if on else None,
    }


def secure_boot() -> bool | None:
    """By the variable's last byte, efivarfs(5) puts four bytes before it; False without EFI."""
    if not os.path.isdir("/sys/firmware/efi"):
        return False
    try:
        with open(SECURE_BOOT, "rb") as handle:
            return handle.read()[-1:] == b"\x01"
    except FileNotFoundError:
        return False
    except OSError:
        return None


def module_key() -> bool | None:
    for path in MODULE_KEYS:
        if os.path.exists(path):
            try:
                return "already enrolled" in finish(start("mokutil", "--test-key", path))[0]
            except OSError:
                return None
    return None


def drop_ins_section() -> Json:
    """Of our engines, whatever they are named."""
    return sorted(glob.glob("/etc/systemd/system/llm-engine@*.service.d/placement.conf"))


def users_section(request: dict[str, Any]) -> Json:
    groups = grp.getgrall()
    users: dict[str, Json] = {}
    for name in request["users"]:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            users[name] = None
            continue
        names = sorted(
            group.gr_name for group in groups if name in group.gr_mem or group.gr_gid == user.pw_gid
        )
        users[name] = {
            "uid": user.pw_uid,
            "gid": user.pw_gid,
            "groups": names,
            "home": user.pw_dir,
            "shell": user.pw_shell,
        }
    return users


def owner_names(status: os.stat_result) -> tuple[str, str]:
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    try:
        return owner, grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        return owner, str(status.st_gid)


def files_section(request: dict[str, Any]) -> Json:
    return {path: file_state(path) for path in request["files"]}


def file_state(path: str) -> Json:
    try:
        status = os.stat(path)
        owner, group = owner_names(status)
        state: dict[str, Json] = {
            "mode": f"{status.st_mode & 0o7777:04o}",
            "owner": owner,
            "group": group,
            "size": status.st_size,
            "sha256": None,
        }
        if os.path.isdir(path):
            state["directory"] = True
        else:
            state["sha256"] = sha256_or_none(path)
        if os.path.islink(path):
            state["link"] = os.readlink(path)
        return state
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return {"error": str(error)}


def units_section(request: dict[str, Any], commands: dict[str, Any]) -> Json:
    names = request["units"]
    if not names:
        return {}
    text, code = finish(commands["show"])
    blocks = [block for block in text.split("\n\n") if block.strip()]
    if len(blocks) != len(names):
        counts = f"{len(blocks)} of {len(names)} units"
        raise OSError(f"systemctl show exited {code} with {counts}: {text.strip()[:300]}")
    units = {}
    # Equal lengths were checked above; strict= is not in Python 3.9.
    for name, block in zip(names, blocks):  # noqa: B905
        found = dict(line.partition("=")[::2] for line in block.strip().splitlines())
        unit: dict[str, Json] = {
            ours: found.get(theirs, "") for theirs, ours in UNIT_PROPERTIES.items()
        }
        for number in ("main_pid", "restarts"):
            unit[number] = int(unit[number]) if unit[number].isdigit() else 0
        unit["need_reload"] = unit["need_reload"] == "yes"
        units[name] = unit
    return units


def sysctl_files() -> list[str]:
    """sysctl.d files as systemd-sysctl reads them: by name; of one name the first directory's."""
    by_name: dict[str, str] = {}
    for directory in SYSCTL_DIRECTORIES:
        for name in entries(directory):
            if name.endswith(".conf"):
                by_name.setdefault(name, os.path.join(directory, name))
    return [by_name[name] for name in sorted(by_name)]


def sysctl_assignments(paths: list[str], key: str = MAP_COUNT) -> list[dict[str, Json]]:
    """Each line that sets `key` (with slashes), in reading order: the next boot sets the last."""
    found = []
    for path in paths:
        for number, line in enumerate((text_or_none(path) or "").splitlines(), start=1):
            name, equals, value = line.strip().lstrip("-").partition("=")
            separator = re.search(r"[./]", name)
            if not equals or line.lstrip()[:1] in "#;" or separator is None:
                continue
            # The first separator tells which is meant: with a slash first, dots are part of names.
            plain = name.strip() if separator.group() == "/" else name.strip().replace(".", "/")
            if plain == key:
                found.append({"file": path, "line": number, "value": value.strip()})
    return found


def sysctl_section() -> Json:
    live = text_or_none("/proc/sys/vm/max_map_count")
    # Read at boot only through a link such as /etc/sysctl.d/99-sysctl.conf (Debian 12 and older).
    outside = sysctl_assignments(["/etc/sysctl.conf"])
    return {
        "vm.max_map_count": {
            "live": int(live) if live else None,
            "assignments": sysctl_assignments(sysctl_files()),
            "sysctl_conf": outside,
        }
    }


def disk_section(request: dict[str, Any]) -> Json:
    found = {}
    for path in (request["llm_root"], "/var"):
        existing = path
        while not os.path.exists(existing):
            existing = os.path.dirname(existing)
        space = os.statvfs(existing)
        # f_bavail: what a service user may use; root's reserve is no room for a model.
        found[path] = {
            "path": existing,
            "device": os.stat(existing).st_dev,
            "free_bytes": space.f_bavail * space.f_frsize,
            "total_bytes": space.f_blocks * space.f_frsize,
            "free_inodes": space.f_favail,
        }
    return {"llm_root": found[request["llm_root"]], "/var": found["/var"]}


def state_section(request: dict[str, Any]) -> Json:
    root, state = request["llm_root"], request["llm_root"] + "/state"
    manifest = json_or_none(state + "/manifest.json")
    manifest = manifest if isinstance(manifest, dict) else {}
    return {
        "program_digest": sha256_or_none(root + "/bin/fleet-host"),
        "schema_version": whole_or_none(state + "/schema_version"),
        "generation": whole_or_none(state + "/generation") or 0,
        "lease": json_or_none(state + "/lease.json"),
        "manifest_digest": sha256_or_none(state + "/manifest.json"),
        "held_packages": manifest.get("held_packages") or [],
        "verified": json_or_none(state + "/verified.json"),
    }


def environments_section(request: dict[str, Any]) -> Json:
    paths = []
    for kind in ("runtimes", "tools", "gateway"):
        paths += sorted(
            glob.glob(f"{glob.escape(request['llm_root'])}/{kind}/*/.fleet-complete.json")
        )
    return {os.path.dirname(path): environment_record(path) for path in paths}


def environment_record(path: str) -> Json:
    record = json_or_none(path)
    return record if isinstance(record, dict) else {"error": f"{path} is cut off or no record"}


def models_section(request: dict[str, Any]) -> Json:
    models: dict[str, dict[str, Json]] = {}
    root = request["llm_root"] + "/models"
    for model in entries(root):
        for name in entries(os.path.join(root, model)):
            if name.endswith(".json") and not model.startswith("."):
                directory = os.path.join(root, model, name[: -len(".json")])
                try:
                    state = model_state(directory)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    # The other models must still be seen.
                    why = f"its record cannot be read ({type(error).__name__}: {error})"
                    state = {"record": None, "intact": False, "complete": False, "problems": [why]}
                models.setdefault(model, {})[name[: -len(".json")]] = state
    return models


def model_state(directory: str) -> Json:
    """The record beside a model's directory, whether every file is as it was verified, and whether
    there is anything else.

    One stat a file and one walk. Records from before it was kept have no ctime_ns, and older ones
    no mtime_ns.
    """
    record = json_or_none(directory + ".json")
    if not isinstance(record, dict) or "files" not in record:
        return {
            "record": record,
            "intact": False,
            "complete": False,
            "problems": ["the record has no file list"],
        }
    listed = record["files"]
    if isinstance(listed, dict):
        listed = [dict(value, path=path) for path, value in listed.items()]
    problems, total = [], 0
    for entry in listed:
        try:
            found = os.lstat(os.path.join(directory, entry["path"]))
        except OSError as error:
            problems.append(f"{entry['path']}: {error.strerror}")
            continue
        size = found.st_size
        total += size
        seen = {"mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns, "inode": found.st_ino}
        if size != entry["size"]:
            problems.append(f"{entry['path']}: {size} bytes, {entry['size']} expected")
        elif entry.get("damaged"):
            problems.append(f"{entry['path']}: {entry['damaged']}")
        elif any(entry.get(key) not in (None, value) for key, value in seen.items()):
            problems.append(f"{entry['path']}: was touched since it was verified")
    complete = not problems
    extra = extra_files(directory, {entry["path"] for entry in listed})
    problems += [f"{path}: does not belong to the model" for path in extra]
    summary = {key: value for key, value in record.items() if key != "files"}
    return {
        "record": summary,
        "files": len(listed),
        "bytes": total,
        "intact": not problems,
        # What an engine needs is there; a file too much keeps nobody from going back to it.
        "complete": complete,
        "problems": problems[:20],
    }


def extra_files(directory: str, listed: set[str]) -> list[str]:
    """What is there and not in the record, as integrity.extra_files finds it: files, links, and
    directories of no use."""
    parents = {path[:end] for path in listed for end, sign in enumerate(path) if sign == "/"}
    extra: list[str] = []
    waiting = [""]
    while waiting:
        within = waiting.pop()
        try:
            found = list(os.scandir(os.path.join(directory, within)))
        except OSError:
            continue  # its files are missing, which has been said
        for entry in found:
            path = within + entry.name
            if entry.is_symlink() or path not in (
                parents if entry.is_dir(follow_symlinks=False) else listed
            ):
                extra.append(path)
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(path + "/")
    return sorted(extra)


def engines_section(request: dict[str, Any]) -> Json:
    return {name: engine_state(request["llm_root"], name) for name in request["engines"]}


def engine_state(root: str, name: str) -> Json:
    home, run = f"{root}/engines/{name}", f"/run/llm-engine-{name}"
    releases = {}
    for release in entries(home + "/releases"):
        if not release.startswith("."):
            releases[release] = json_or_none(f"{home}/releases/{release}/release.json")
    return {
        "current": release_or_none(home, "current"),
        "previous": release_or_none(home, "previous"),
        "releases": releases,
        "binding_digest": sha256_or_none(home + "/current/binding.env")
        or sha256_or_none(home + "/binding.env"),
        "started": json_or_none(run + "/started.json"),
        "golive": json_or_none(home + "/golive.json"),
        "golive_asked": golive_asked(f"{root}/jobs/golive/{name}/spec.json"),
        "start": json_or_none(home + "/start.json"),
        "hold": json_or_none(home + "/hold.json"),
        "rejected": json_or_none(home + "/rejected.json"),
        "stopped": json_or_none(home + "/stopped.json"),
        # Of what is live, for what a change would make different.
        "configuration": text_or_none(home + "/current/config.yaml"),
        "environment": text_or_none(home + "/current/env"),
        "socket": os.path.exists(run + "/http.sock"),
        "draining": os.path.exists(f"/run/llm/drain/{name}"),
        "drained": drain_flag(f"/run/llm/drain/{name}"),
    }


def release_in(home: str, name: str) -> str | None:
    """The release that a link in an engine's home names; None for another place."""
    path = os.path.join(home, name)
    if not os.path.islink(path):
        return None
    target = os.path.normpath(os.path.join(home, os.readlink(path)))
    parent, release = os.path.split(target)
    return release if parent == os.path.normpath(home + "/releases") else None


def release_or_none(home: str, name: str) -> str | None:
    """The same; the link's whole text where it points elsewhere."""
    path = os.path.join(home, name)
    return release_in(home, name) or (os.readlink(path) if os.path.islink(path) else None)


def drain_flag(path: str) -> Json:
    """{by, reason, since} of a drain flag, null for what is not recorded in it (an operator may
    have touched an empty one: then since is when). None without a flag."""
    try:
        since = int(os.stat(path).st_mtime)
    except FileNotFoundError:
        return None
    found = json_or_none(path)
    found = found if isinstance(found, dict) and "error" not in found else {}
    known = {"since": since, **found}
    return {key: known.get(key) for key in ("by", "reason", "since")}


def golive_asked(path: str) -> str | None:
    """The release of the last go-live that was asked for, which runs while its unit is active."""
    stored = json_or_none(path)
    spec = stored.get("spec") if isinstance(stored, dict) else None
    return spec.get("release") if isinstance(spec, dict) else None


def gateway_section(request: dict[str, Any]) -> Json:
    root = request["llm_root"]
    keys = json_or_none(root + "/gateway/keys.json")
    nginx = json_or_none(root + "/state/nginx.json")
    nginx = nginx if isinstance(nginx, dict) else {}
    return {
        "current": link_or_none(root + "/gateway/current"),
        "started": json_or_none("/run/llm-gateway/started.json"),
        "keys_serial": keys.get("serial") if isinstance(keys, dict) else None,
        "verify_key": os.path.exists(root + "/gateway/verify-key.json"),
        "certificate": guarded(lambda: certificate_state(request["certificate"])),
        "host_certificate": guarded(lambda: certificate_state("/etc/llm-gateway/mtls/host.crt")),
        # The vhost's where it is no certificate of the inventory's CA; None where nobody asks.
        "other_certificate": guarded(
            lambda: (
                certificate_state(request["other_certificate"])
                if request.get("other_certificate")
                else None
            )
        ),
        "acme": json_or_none(root + "/state/acme.json"),
        "authority": guarded(lambda: certificate_state("/etc/llm/tls/ca.crt")),
        "nginx_files": {
            path: {"written": digest, "sha256": sha256_or_none(path)}
            for path, digest in nginx.get("files", {}).items()
        },
        "nginx_loaded": nginx_loaded(nginx),
        # Of gateway.mode direct, and of full.
        "socket": os.path.exists("/run/llm-gateway/auth.sock"),
        "service_socket": os.path.exists("/run/llm-gateway/http.sock"),
        "configuration": sha256_or_none(root + "/gateway/config.json"),
    }


def nginx_loaded(record: Json) -> str | None:
    """The digest of the files that Nginx was last seen to load; "" while a change is under way or
    was cut off, and when a certificate is another one by now; None where none was ever applied."""
    if not record:
        return None
    known = record.get("certificates")
    if not isinstance(known, dict):
        return ""
    same = all(sha256_or_none(path) == digest for path, digest in known.items())
    return (record.get("loaded") or "") if same else ""


def certificate_state(path: str) -> Json:
    text = text_or_none(path)
    if text is None:
        return None
    import _ssl  # not at the top: costs 10 ms of every snapshot of a host without a certificate

    # What ssl.SSLSocket.getpeercert() shows, from a file; CPython has had it since 2.6.
    decoded = _ssl._test_decode_cert(path)  # type: ignore[attr-defined]
    body = re.search(r"-----BEGIN CERTIFICATE-----(.*?)-----END", text, re.DOTALL)
    der = binascii.a2b_base64(body.group(1)) if body else b""
    names: dict[str, list[str]] = {"DNS": [], "IP Address": []}
    for kind, value in decoded.get("subjectAltName", ()):
        names.setdefault(kind, []).append(value)
    issuer = {key: value for part in decoded.get("issuer", ()) for key, value in part}
    return {
        "path": path,
        "not_before": decoded.get("notBefore"),
        "not_after": decoded.get("notAfter"),
        "sans": names["DNS"] + names["IP Address"],
        "issuer": issuer.get("commonName"),
        "serial": decoded.get("serialNumber"),
        "fingerprint": hashlib.sha256(der).hexdigest(),
    }


def address_text(raw: str) -> str:
    """/proc/net's hexadecimal address: 32-bit words in the machine's byte order (proc(5))."""
    import _socket  # the socket module on top of it costs 7 ms

    words = struct.unpack(f"!{len(raw) // 8}I", binascii.unhexlify(raw))
    packed = struct.pack(f"={len(words)}I", *words)
    return _socket.inet_ntop(_socket.AF_INET if len(words) == 1 else _socket.AF_INET6, packed)


def listeners_section() -> Json:
    found: dict[str, dict[str, Json]] = {}
    for protocol, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in (text_or_none("/proc/net/" + protocol) or "").splitlines()[1:]:
            fields = line.split()
            if fields[3] == state:
                address, _, port = fields[1].partition(":")
                found[fields[9]] = {
                    "proto": protocol,
                    "address": address_text(address),
                    "port": int(port, 16),
                    "pid": None,
                    "process": None,
                    "unit": None,
                }
    for inode, pid in socket_owners(set(found)).items():
        found[inode].update(pid=pid, process=text_or_none(f"/proc/{pid}/comm"), unit=unit_of(pid))
    return sorted(found.values(), key=lambda item: (item["port"], item["proto"], item["address"]))


def socket_owners(inodes: set[str]) -> dict[str, int]:
    """The lowest pid (the parent, mostly) that holds each socket; other users' only as root."""
    owners: dict[str, int] = {}
    deadline = time.monotonic() + INODE_SCAN_SECONDS
    for pid in sorted(int(name) for name in entries("/proc") if name.isdigit()):
        if len(owners) == len(inodes) or time.monotonic() > deadline:
            break
        try:
            for handle in os.scandir(f"/proc/{pid}/fd"):
                target = os.readlink(handle.path)
                if target.startswith("socket:[") and target[8:-1] in inodes:
                    owners.setdefault(target[8:-1], pid)
        except OSError:
            continue  # the process ended meanwhile, or is another user's and we are not root
    return owners


def unit_of(pid: int) -> str | None:
    for line in (text_or_none(f"/proc/{pid}/cgroup") or "").splitlines():
        if line.startswith("0::") or ":name=systemd:" in line:
            parts = [
                part for part in line.split("/") if part.endswith((".service", ".socket", ".scope"))
            ]
            if parts:
                return parts[-1]
    return None


def memory_section() -> Json:
    found = dict(line.split(":", 1) for line in read_text("/proc/meminfo").splitlines())
    return {
        "total_bytes": int(found["MemTotal"].split()[0]) * 1024,
        "available_bytes": int(found["MemAvailable"].split()[0]) * 1024,
    }


# --- JSON without the json module, for python3-minimal


def plain_from_json(text: str) -> Json:
    """JSON as json.dumps writes it, by way of Python's literals (ast is in python3-minimal)."""
    import ast  # only where json is missing

    words = {"true": "True", "false": "False", "null": "None"}
    tokens = r'"(?:[^"\\]|\\.)*"|true|false|null'
    try:
        return ast.literal_eval(
            re.sub(tokens, lambda match: words.get(match.group(), match.group()), text.strip())
        )
    except SyntaxError as error:
        raise ValueError(str(error)) from error


def plain_to_json(value: Json) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{plain_to_json(str(key))}: {plain_to_json(item)}" for key, item in value.items()
            )
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(plain_to_json(item) for item in value) + "]"
    return '"' + re.sub(r"[^ -!#-\[\]-~]", lambda match: escaped(match.group()), str(value)) + '"'


def escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


try:
    import json

    to_json: Callable[[Json], str] = json.dumps
    from_json: Callable[[str], Json] = json.loads
except ImportError:
    to_json, from_json = plain_to_json, plain_from_json


def guarded(section: Callable[[], Json]) -> Json:
    # Whatever fails in a section is a finding about the host: the others must still be read.
    try:
        return section()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def collect(request: dict[str, Any]) -> dict[str, Json]:
    request = dict(request)
    for key in ("packages", "files", "units", "engines", "users", "driver"):
        request.setdefault(key, [])
    request["llm_root"] = str(request.get("llm_root") or "/srv/llm").rstrip("/")
    request.setdefault("certificate", "/etc/llm/tls/server.crt")
    commands = start_commands(request)
    sections: dict[str, Callable[[], Json]] = {
        "listeners": listeners_section,  # first: the commands run meanwhile
        "users": lambda: users_section(request),
        "files": lambda: files_section(request),
        "sysctl": sysctl_section,
        "disk": lambda: disk_section(request),
        "state": lambda: state_section(request),
        "environments": lambda: environments_section(request),
        "models": lambda: models_section(request),
        "engines": lambda: engines_section(request),
        "gateway": lambda: gateway_section(request),
        "memory": memory_section,
        "cpus": lambda: len(os.sched_getaffinity(0)),
        "os": lambda: os_section(commands),
        "packages": lambda: packages_section(request, commands),
        "driver": lambda: driver_section(request, commands),
        "drop_ins": drop_ins_section,
        "units": lambda: units_section(request, commands),
    }
    return {"format": 1, **{name: guarded(section) for name, section in sections.items()}}


def main() -> int:
    text = sys.argv[1] if len(sys.argv) > 1 else sys.stdin.read()
    print(to_json(collect(from_json(text) if text.strip() else {})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
