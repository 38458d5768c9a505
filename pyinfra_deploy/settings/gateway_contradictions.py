"""Settings of the gateway service that are each right and wrong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyinfra_deploy.settings.gateway_section import Gateway
    from pyinfra_deploy.settings.schema import Settings

# key path, message, fix
Contradiction = tuple[tuple[str, ...], str, str]

# What only the service heeds.
OF_FULL_MODE = (
    *("aliases", "admission", "tiers", "default_tier", "queue", "max_concurrent", "affinity"),
    *("health", "kv_cache_usage", "revoked_streams", "stop_seconds"),
)
MAX_TOKENS_NAMES = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def service_contradictions(settings: Settings, groups: frozenset[str]) -> Iterator[Contradiction]:
    """groups: all of the host."""
    gateway = settings.gateway
    if gateway is None:
        return
    if gateway.mode == "direct":
        yield from _direct(gateway, groups)
        return
    yield from _aliases(settings, gateway, groups)
    yield from _tiers(gateway)
    yield from _maxima(gateway)
    health = gateway.health
    if health.open_seconds > health.max_open_seconds:
        yield (
            ("gateway", "health", "open_seconds"),
            f"gateway.health.open_seconds ({health.open_seconds}) is longer than "
            f"gateway.health.max_open_seconds ({health.max_open_seconds}).",
            "make it shorter, or the other longer.",
        )
    if gateway.revoked_streams == "end" and gateway.auth.url is not None:
        yield (
            ("gateway", "revoked_streams"),
            "is end, and gateway.auth.url decides about keys: it is asked before an answer, and "
            "tells nobody when it withdraws one.",
            "write finish, or leave it out.",
        )


def _direct(gateway: Gateway, groups: frozenset[str]) -> Iterator[Contradiction]:
    if "gateway" in groups and "gpu" not in groups:
        yield (
            ("gateway", "mode"),
            "is direct, and the host is in the group gateway but not in gpu: its Nginx would have "
            "no engine.",
            "write mode: full, or put the host into both groups.",
        )
    fields = type(gateway).model_fields
    for name in OF_FULL_MODE:
        if getattr(gateway, name) != fields[name].default:
            yield (
                ("gateway", name),
                f"gateway.{name} is set, and with gateway.mode: direct nobody heeds it.",
                "write mode: full, or remove it.",
            )


def _aliases(
    settings: Settings, gateway: Gateway, groups: frozenset[str]
) -> Iterator[Contradiction]:
    """Of a gateway in front of other hosts the models are known to the whole inventory alone
    (remote_engines.py)."""
    own = settings.served_model_name if "gpu" in groups and settings.model else None
    for alias, model in gateway.aliases.items():
        if alias in (model, own):
            yield (
                ("gateway", "aliases", alias),
                f"{alias} is itself the name of a model.",
                "choose another name, or remove it.",
            )


def _tiers(gateway: Gateway) -> Iterator[Contradiction]:
    names = [tier.name for tier in gateway.tiers]
    for name in _twice(names):
        yield ("gateway", "tiers"), f"names the tier {name} twice.", "name each tier once."
    if gateway.default_tier is not None and gateway.default_tier not in names:
        yield (
            ("gateway", "default_tier"),
            f"{gateway.default_tier} is none of gateway.tiers ({', '.join(names)}).",
            "name one of them, or add it to gateway.tiers.",
        )


def _maxima(gateway: Gateway) -> Iterator[Contradiction]:
    names = [maximum.parameter for maximum in gateway.admission.maxima]
    for name in _twice(names):
        yield (
            ("gateway", "admission", "maxima"),
            f"names the parameter {name} twice.",
            "name each parameter once.",
        )
    allowed = gateway.admission.allowed_parameters
    for name in names if allowed is not None else ():
        meant = MAX_TOKENS_NAMES if name == "max_tokens" else (name,)
        if not set(meant) & set(allowed or ()):
            yield (
                ("gateway", "admission", "maxima"),
                f"limits {name}, which gateway.admission.allowed_parameters does not allow at all.",
                "add it there, or remove its maximum.",
            )


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
