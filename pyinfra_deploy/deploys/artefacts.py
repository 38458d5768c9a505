"""What the control machine brings along: rendered units, locks, keys, the CA. Read once a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from cryptography import x509

from pyinfra_deploy.keys import ca, keyfile
from pyinfra_deploy.keys.errors import KeysError
from pyinfra_deploy.operations import packing
from pyinfra_deploy.operations.model_source import locked_model
from pyinfra_deploy.planning.artefacts import Artefacts
from pyinfra_deploy.planning.gateway_config import shape_of
from pyinfra_deploy.planning.model_supply import NOT_LOCKED
from pyinfra_deploy.planning.wanted import (
    BUILD_USER,
    ENGINE_USER,
    GATEWAY_USER,
    SOCKET_GROUP,
    TOKEN_CREDENTIAL,
    ManagedFile,
)
from pyinfra_deploy.settings import Fleet, Settings, load_fleet
from pyinfra_deploy.settings.mutual_tls import MutualTls, common_name, from_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNIT_TEMPLATES = packing.ROOT / "templates" / "units"
UV_LOCK = "locks/tools/uv.txt"
MODELSCOPE_LOCK = "locks/tools/modelscope.txt"
GATEWAY_LOCK = "locks/gateway.txt"


def artefacts_for(fleet: Mapping[str, Any], settings: Settings) -> Artefacts:
    """Everything on this machine that the plan of a host with these settings compares with."""
    directory, root = Path(fleet["directory"]), Path(fleet["root"])
    conda = settings.runtime.conda if settings.runtime else None
    model = locked_model(settings.model, root) if settings.model else NOT_LOCKED
    return Artefacts(
        program_digest=packing.host_program_digest(),
        units=units_of(settings, tuple(fleet.get("engines") or ())),
        uv_lock=packing.lock_text(UV_LOCK),
        modelscope_lock=packing.lock_text(MODELSCOPE_LOCK),
        gateway_lock=packing.lock_text(GATEWAY_LOCK),
        gateway_sources=packing.gateway_sources(),
        runtime_lock=packing.lock_text(settings.runtime.lock, root) if settings.runtime else "",
        keys_serial=_keys_serial(directory),
        ca_subject=_ca_subject(directory),
        now=datetime.now(UTC),
        limited_keys=_limited_keys(directory),
        conda_lock=packing.lock_text(conda.lock, root) if conda else "",
        model=model,
        fan_out=model.lock is not None and int(fleet.get("sharing") or 0) > 1,
        engines=tuple(fleet.get("engines") or ()),
        mutual_tls=from_data(fleet),
    )


def units_of(settings: Settings, engines: Sequence[Any] = ()) -> dict[str, ManagedFile]:
    """Every unit of ours as these settings render it, by the unit's name. engines: of other hosts
    behind this gateway (settings/remote_engines.py)."""
    device = settings.runtime.device if settings.runtime else "cpu"
    gateway = settings.gateway
    return _rendered_units(
        settings.llm_root, device, settings.gpu_host.open_files, settings.engine.drain_seconds,
        settings.engine.name, shape_of(settings, engines) if gateway else "full",
        gateway.stop_seconds if gateway else 0,
    )  # fmt: skip


@cache
def _rendered_units(
    llm_root: str,
    device: str,
    open_files: int,
    drain_seconds: int,
    engine_name: str,
    gateway_shape: str,
    gateway_stop_seconds: int,
) -> dict[str, ManagedFile]:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(UNIT_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - unit files, whose values the schema has checked
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    units = {}
    for template in sorted(UNIT_TEMPLATES.glob("*.j2")):
        name = template.name.removesuffix(".j2")
        text = environment.get_template(template.name).render(
            llm_root=llm_root,
            device=device,
            open_files=open_files,
            drain_seconds=drain_seconds,
            engine_name=engine_name,
            gateway_shape=gateway_shape,
            gateway_stop_seconds=gateway_stop_seconds,
            users={"build": BUILD_USER},
            hub_token_file=f"/etc/llm/credentials/{TOKEN_CREDENTIAL}",
            engine_user=ENGINE_USER,
            gateway_user=GATEWAY_USER,
            socket_group=SOCKET_GROUP,
        )
        units[name] = ManagedFile(f"/etc/systemd/system/{name}", text)
    return units


@cache
def _keys_serial(directory: Path) -> int:
    return keyfile.read(directory / "keys.json").serial


@cache
def _limited_keys(directory: Path) -> tuple[str, ...]:
    keys = keyfile.read(directory / "keys.json").keys
    return tuple(
        key.name
        for key in keys
        if key.models or key.requests_per_minute or key.tokens_per_minute or key.tier
    )


@cache
def _ca_subject(directory: Path) -> str | None:
    """The CA's common name; None before the inventory has one."""
    path = directory / "ca.crt"
    if not path.exists():
        return None
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(names[0].value) if names else None


@cache
def _fleet(name: str, root: str) -> Fleet:
    return load_fleet(name, Path(root))


def fleet_of(data: Mapping[str, Any]) -> Fleet:
    """The whole fleet that a host's data belongs to, read again only by steps that change keys."""
    return _fleet(data["name"], data["root"])


@cache
def signing_problem(name: str, root: str) -> KeysError | None:
    """Why no certificate could be signed with the inventory's CA; None when one could."""
    try:
        ca.check_signing(_fleet(name, root))
    except KeysError as error:
        return error
    return None


def keys_document(data: Mapping[str, Any]) -> dict[str, Any]:
    """The digests to push. Makes the inventory's first key where the settings ask for one."""
    fleet = fleet_of(data)
    keyfile.ensure_first_key(fleet)
    current = keyfile.read(keyfile.keys_path(fleet))
    return keyfile.to_document(current.serial, current.keys)


@dataclass(frozen=True)
class Signer:
    """Signs a host's requests with the inventory's CA, which is made when there is none."""

    data: Mapping[str, Any]
    server_name: str

    def sign(self, request: str) -> tuple[str, str]:
        """(certificate chain, CA certificate), PEM."""
        authority = ca.ensure_ca(fleet_of(self.data))
        chain = ca.sign_leaf(authority, request.encode(), [self.server_name], [])
        return chain, authority.certificate_path.read_text()


@dataclass(frozen=True)
class HostSigner:
    """Signs what a host shows to other hosts, with the inventory's CA."""

    data: Mapping[str, Any]

    @property
    def identity(self) -> MutualTls:
        return from_data(self.data)

    def sign(self, request: str) -> tuple[str, str]:
        """(certificate, CA certificate), PEM."""
        authority = ca.ensure_ca(fleet_of(self.data))
        identity = self.identity
        chain = ca.sign_leaf(
            authority,
            request.encode(),
            [identity.name],
            for_client=identity.role == "gateway",
            subject=common_name(identity.name),
        )
        return chain, authority.certificate_path.read_text()
