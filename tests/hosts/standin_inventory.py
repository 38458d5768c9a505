"""A checkout for tests: the project's files, an inventory of its own, the stand-in engine."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import yaml

from lab.inventory import ssh_arguments
from lab.layout import current_layout
from lab.plan import ADMIN_USER, address_of
from tests.hosts import pyinfra_run
from tests.hosts.lab_session import DEBIAN12, DEBIAN13, FIRST_MODEL, HUB_ADDRESS, SECOND_MODEL
from tests.hosts.pyinfra_run import BIN, REPOSITORY, Ran, Running
from tests.hosts.service import Service
from tests.standin import wheel

if TYPE_CHECKING:
    from pathlib import Path

NAME = "standin"
# A model for each host, so that a fault of the hub can be one host's alone.
MODELS = {DEBIAN12: FIRST_MODEL, DEBIAN13: SECOND_MODEL}
SHARED = ("deploy.py", "ansible.cfg", "pyinfra_deploy", "files", "templates", "locks", "gateway",
          "tests")  # fmt: skip
SETTINGS: dict[str, Any] = {
    "llm_root": "/srv/llm",
    "gpu_host": {"max_map_count": 1048576, "open_files": 524288},
    "runtime": {
        "vllm": "0.32.0",
        "lock": wheel.LOCK,
        "device": "cpu",
        "installer": "uv",
        "find_links": [f"http://{HUB_ADDRESS}/wheels/"],
    },
    "model": {
        "endpoint": f"http://{HUB_ADDRESS}",
        "stall_timeout_seconds": 30,
        "file_timeout_seconds": 60,
        # The stand-in has no transformers either; what is examined is in test_97.
        "fitness": "off",
    },
    "engine": {
        "name": "main",
        "args": {"max-model-len": 1024},
        "start_timeout_seconds": 30,
        "stall_timeout_seconds": 10,
        "drain_seconds": 20,
        # The stand-in has no torch; what is proven has stand-ins of its own (test_55).
        "proof": "off",
    },
    "gateway": {
        "server_name": "standin.fleet.internal",
        "create_first_key": True,
        "plaintext_ca_key": True,
        # The stand-in has no /tokenize: the answer to a prompt that is too long is the real
        # engine's to show (test_65).
        "admission": {"count_tokens": False},
        "rate_limit": {
            "ip_per_minute": 600,
            "ip_burst": 60,
            "key_per_minute": 600,
            "key_burst": 60,
        },
    },
}


def python_of(host: str) -> str:
    """Debian's own Python: the lab's gpuN run Debian 12, its tN Debian 13."""
    return "3.11" if host.startswith("gpu") else "3.13"


def lock_file(model_id: str) -> str:
    """What settings name as model.lock, once this session has made it: the lab's hub makes its
    models on this machine."""
    return f"models-of-this-session/{model_id.replace('/', '--')}.json"


class Checkout:
    """A directory that is to pyinfra and fleet what the repository is.

    locked: whether write() names the models' locks. Where it is False, the hub's listing counts.
    """

    def __init__(self, root: Path, *, restored: bool = False) -> None:
        """restored: its inventory and settings are there already."""
        self.root = root
        # What write() writes without changes. A test that has deployed something else for good
        # puts it here, so that those after it need not go back.
        self.base = copy.deepcopy(SETTINGS)
        self.locked = True
        for directory in ("group_vars", f"inventories/{NAME}"):
            (root / directory).mkdir(parents=True, exist_ok=True)
        for name in SHARED:
            if not (root / name).exists():
                (root / name).symlink_to(REPOSITORY / name)
        (root / "inventories" / f"{NAME}.py").write_text(
            (REPOSITORY / "inventories" / "lab.py").read_text()
        )
        if not restored:
            self.write()
            self._lock_models()

    def _lock_models(self) -> None:
        made = pyinfra_run.run([str(BIN / "fleet"), "model", "lock", NAME], root=self.root)
        assert made.returncode == 0, made.stdout + made.stderr

    @property
    def inventory(self) -> Path:
        return self.root / "inventories" / NAME

    def write(
        self,
        *hosts: str,
        host_variables: dict[str, dict[str, Any]] | None = None,
        members: dict[str, tuple[str, ...]] | None = None,
        **changes: dict[str, Any],
    ) -> None:
        """Write hosts (default: both) and settings; `changes` are laid over `base`, by section.

        members: of the groups gpu and gateway, where not all hosts are in both.
        """
        names = hosts or (DEBIAN12, DEBIAN13)
        extra = host_variables or {}
        layout = current_layout()
        settings = copy.deepcopy(self.base)
        for section, values in changes.items():
            settings[section].update(values)
        own = {
            name: {
                "ansible_host": address_of(name),
                "runtime": {**settings["runtime"], "python": python_of(name)},
                "model": self._model(settings["model"], MODELS.get(name, FIRST_MODEL)),
                **extra.get(name, {}),
            }
            for name in names
        }
        group: dict[str, Any] = {
            "hosts": own,
            "vars": {
                "ansible_user": ADMIN_USER,
                "ansible_become": True,
                "ansible_ssh_private_key_file": str(layout.admin_key),
                "ansible_ssh_common_args": ssh_arguments(layout),
            },
        }
        roles: dict[str, Any] = {
            role: {"hosts": {name: {} for name in (members or {}).get(role, names)}}
            for role in ("gpu", "gateway")
        }
        children = {NAME: group, **roles}
        hosts_file = {"all": {"children": children}}
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump(hosts_file, sort_keys=False))
        own_sections = ("runtime", "model")
        shared = {key: value for key, value in settings.items() if key not in own_sections}
        (self.root / "group_vars" / f"{NAME}.yml").write_text(
            yaml.safe_dump(shared, sort_keys=False)
        )

    def _model(self, settings: dict[str, Any], model_id: str) -> dict[str, Any]:
        lock = {"lock": lock_file(model_id)} if self.locked else {}
        return {**settings, "id": model_id, **lock}

    def start(self, *options: str) -> Running:
        """The deploy in the background."""
        return pyinfra_run.start(self.root, f"inventories/{NAME}.py", *options)

    def deploy(self, *options: str) -> Ran:
        return self.start(*options).finish()

    def service(self, host: str) -> Service:
        """The host's service with the inventory's first key."""
        return Service(
            host=host,
            server_name=SETTINGS["gateway"]["server_name"],
            ca=self.inventory / "ca.crt",
            key=(self.inventory / "first-key.txt").read_text().strip(),
            model=MODELS[host],
        )
