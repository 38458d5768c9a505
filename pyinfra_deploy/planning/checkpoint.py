"""The files of a checkpoint, before any of them is downloaded: what the safetensors index names and
what the hub's listing says they weigh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyinfra_deploy.planning.config_fields import Fields, shown
from pyinfra_deploy.planning.finding import Finding
from pyinfra_deploy.planning.model_shape import Weights

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX = "model.safetensors.index.json"
LISTING = "the hub's listing"
# Files hold a header beside the tensors (kilobytes); more apart than this and one of both is wrong.
_AGREE = 0.02
_PULL_AGAIN = "pull the model again, or take another revision; the index and its files belong "


@dataclass(frozen=True)
class Checkpoint:
    """weights: None where neither the index nor the listing says how much there is."""

    weights: Weights | None
    findings: tuple[Finding, ...] = ()


def read_checkpoint(index: object, listing: object, host: str) -> Checkpoint:
    """The size of the weights, and whether index and listing belong together.

    index: the parsed model.safetensors.index.json. listing: what a hub or a lock says of the
    repository's files: a mapping of path to bytes, or a list (also under Data.Files, siblings or
    files) of entries with Path, path or rfilename and Size or size. Either may be None.
    """
    findings: list[Finding] = []
    total, shards = _index(index, host, findings)
    sizes = read_listing(listing, host, findings)
    listed = _listed(shards, sizes, host, findings)
    if total is not None and listed is not None and abs(total - listed) > _AGREE * listed:
        findings.append(
            Finding(
                id="model.sizes-disagree",
                severity="warn",
                host=host,
                subject=INDEX,
                message="the index and the hub's listing disagree about the size of the weights; "
                "the plan takes the listing's.",
                fix="compare both with the model's page; one of them is of another revision.",
                evidence=f"index total_size {total}, files {listed} bytes",
            )
        )
        total = None
    if total is not None:
        return Checkpoint(Weights(total, "index", shards), tuple(findings))
    if listed is not None:
        return Checkpoint(Weights(listed, "listing", shards), tuple(findings))
    return Checkpoint(None, tuple(findings))


def read_listing(listing: object, host: str, findings: list[Finding]) -> dict[str, int]:
    """Path -> bytes. Entries without a size (directories) are left out."""
    if listing is None:
        return {}
    if isinstance(listing, dict) and all(isinstance(size, int) for size in listing.values()):
        entries: list[object] = [{"path": path, "size": size} for path, size in listing.items()]
    else:
        found = _entries(listing)
        if found is None:
            findings.append(_unreadable(LISTING, listing, host))
            return {}
        entries = found
    sizes: dict[str, int] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            findings.append(_unreadable(LISTING, entry, host))
            continue
        fields = Fields(entry, host, LISTING, "", findings)
        path = fields.text("Path", "path", "rfilename", "Name", "name")
        size = fields.count("Size", "size", least=0)
        if path is not None and size is not None:
            sizes[path] = size
    return sizes


def _entries(listing: object) -> list[object] | None:
    if isinstance(listing, list):
        return listing
    if isinstance(listing, dict):
        for key in ("Data", "Files", "siblings", "files"):
            if key in listing:
                return _entries(listing[key])
    return None


def _index(index: object, host: str, findings: list[Finding]) -> tuple[int | None, tuple[str, ...]]:
    if index is None:
        return None, ()
    if not isinstance(index, dict):
        findings.append(_unreadable(INDEX, index, host))
        return None, ()
    fields = Fields(index, host, INDEX, "", findings)
    metadata = fields.inside("metadata")
    total = metadata.count("total_size") if metadata is not None else None
    names = fields.inside("weight_map")
    if names is None:
        findings.append(_unreadable(INDEX, "no weight_map", host))
        return total, ()
    shards = sorted({name for name in names.values.values() if isinstance(name, str)})
    if any(not isinstance(name, str) for name in names.values.values()):
        findings.append(_unreadable(INDEX, "a weight_map entry that is no file name", host))
    outside = [name for name in shards if leaves_directory(name)]
    if outside:
        findings.append(_outside(outside, host))
    return total, tuple(name for name in shards if not leaves_directory(name))


def leaves_directory(name: str) -> bool:
    """Whether a file name of an index would be looked for outside the model's directory."""
    parts = name.replace("\\", "/").split("/")
    return (
        name.startswith(("/", "\\"))
        or ".." in parts
        or ":" in parts[0]
        or "\0" in name
        or not name.strip()
    )


def _listed(
    shards: tuple[str, ...], sizes: Mapping[str, int], host: str, findings: list[Finding]
) -> int | None:
    """Bytes of the weight files. Where the index names none, what vLLM would load: every
    safetensors file but Mistral's consolidated copy of the same tensors."""
    if not sizes:
        return None
    if shards:
        missing = [name for name in shards if name not in sizes]
        if missing:
            findings.append(_missing(missing, len(shards), host))
            return None
        return sum(sizes[name] for name in shards)
    files = {
        path: size
        for path, size in sizes.items()
        if path.endswith(".safetensors") and "/" not in path
    }
    plain = {path: size for path, size in files.items() if not path.startswith("consolidated")}
    return sum((plain or files).values()) or None


def _outside(names: list[str], host: str) -> Finding:
    return Finding(
        id="model.index-outside-directory",
        severity="refuse",
        host=host,
        subject=INDEX,
        message="the index names files outside the model's directory.",
        fix="do not use this repository: an index that leaves its directory is broken or hostile.",
        evidence=", ".join(shown(name) for name in names[:3]),
    )


def _missing(names: list[str], count: int, host: str) -> Finding:
    return Finding(
        id="model.shard-missing",
        severity="refuse",
        host=host,
        subject=INDEX,
        message=f"{len(names)} of the {count} files that the index names are not in the "
        "repository: vLLM would stop with 'Weight files referenced in index but missing'.",
        fix=_PULL_AGAIN + "to one commit.",
        evidence=", ".join(shown(name) for name in names[:3]),
        source="seen with vLLM 0.32.0",
    )


def _unreadable(subject: str, found: Any, host: str) -> Finding:
    return Finding(
        id="model.file-unreadable",
        severity="warn",
        host=host,
        subject=subject,
        message=f"{subject} is not in a form this version understands, so it was left out.",
        fix="compare the file with the hub's; the plan estimates the weights without it.",
        evidence=shown(found),
    )
