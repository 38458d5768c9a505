"""How large a request may be, where the settings leave it to the model's length."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyinfra_deploy.settings.schema import Settings

MIB = 1024 * 1024
# Room for a few images in any case; Nginx's own default is 1 MiB.
LEAST_MB = 16
MOST_MB = 1024
# Text as JSON: English has 4 to 5 characters a token, CJK escaped as \\uXXXX up to 12 bytes, and
# code has tokens of many spaces. What is larger than this cannot fit into the model.
BYTES_PER_TOKEN = 32


def max_body_mb(settings: Settings) -> int:
    """The largest request in MiB: as set, or by engine.args.max-model-len where it is known."""
    assert settings.gateway is not None
    if settings.gateway.max_body_mb is not None:
        return settings.gateway.max_body_mb
    return body_mb_of_length(settings)


def body_mb_of_length(settings: Settings) -> int:
    """The same where no setting says it; a host without engine.args knows of no length."""
    length = settings.engine.args.get("max-model-len")
    if not isinstance(length, int) or isinstance(length, bool):
        return LEAST_MB
    return min(MOST_MB, max(LEAST_MB, -(-length * BYTES_PER_TOKEN // MIB)))
