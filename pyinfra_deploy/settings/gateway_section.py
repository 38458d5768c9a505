"""The gateway's settings: the vhost, its certificate and limits, and how requests reach engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import field_validator

from pyinfra_deploy.settings.auth_section import Auth as Auth
from pyinfra_deploy.settings.gateway_service_section import (
    Admission,
    Affinity,
    Count,
    Health,
    Queue,
    StopSeconds,
    Tier,
)
from pyinfra_deploy.settings.kinds import (
    AbsolutePath,
    Burst,
    HostName,
    MailAddress,
    ModelName,
    Origin,
    ParameterName,
    PerMinute,
    Port,
    Seconds,
    Url,
    refuse,
)
from pyinfra_deploy.settings.section import LENIENT, Section, required, setting


class Tls(Section):
    """The gateway's certificate."""

    source: Literal["own_ca", "files", "acme"] = setting(
        "own_ca",
        "own_ca: a certificate of the inventory's own CA (inventories/NAME/ca.crt), made and "
        "renewed by the deploy. files: yours, which lie on the host. acme: of a public authority "
        "such as Let's Encrypt, got and renewed on the host by the distribution's certbot; "
        "server_name has to lead to the host, and http_port has to be 80. docs/nginx.md.",
        "own_ca",
    )
    certificate: AbsolutePath | None = setting(
        None,
        "With source: files, the certificate on the host, intermediates after it.",
        "/etc/ssl/llm/fullchain.pem",
    )
    key: AbsolutePath | None = setting(
        None, "With source: files, its key on the host.", "/etc/ssl/llm/key.pem"
    )
    acme_directory: Url = setting(
        "https://acme-v02.api.letsencrypt.org/directory",
        "With source: acme, the authority's directory.",
        "https://acme-staging-v02.api.letsencrypt.org/directory",
    )
    acme_email: MailAddress | None = setting(
        None,
        "With source: acme, where the authority may write to. null: it gets no address.",
        "ops@example.com",
    )
    acme_terms_accepted: bool = setting(
        False,
        "With source: acme, that you accept the authority's terms of service; certbot is not run "
        "without.",
        True,
    )
    acme_ca_file: AbsolutePath | None = setting(
        None,
        "With source: acme, file on the host with the authorities that the directory's own "
        "certificate may come from, for an ACME server of your own. null: the public ones.",
        "/etc/ssl/certs/corporate-ca.pem",
    )

    @field_validator("acme_directory")
    @classmethod
    def _https(cls, value: str) -> str:
        if not value.startswith("https://"):
            raise refuse("must begin with https:// (RFC 8555, 6.1).")
        return value


class RateLimit(Section):
    """Limits of each gateway host; beyond them clients get 429."""

    ip_per_minute: PerMinute = setting(600, "Requests a minute from one address.", 600)
    ip_burst: Burst = setting(120, "Requests beyond the rate that pass at once.", 120)
    key_per_minute: PerMinute = setting(600, "Requests a minute with one API key.", 600)
    key_burst: Burst = setting(120, "Requests beyond the rate that pass at once.", 120)


class Gateway(Section):
    """Nginx with TLS, API keys and limits in front of the engine."""

    server_name: HostName = required(
        "Host name clients use: of the vhost and in the certificate.", "llm.example.com"
    )
    mode: Literal["full", "direct"] = setting(
        "full",
        "full: Nginx passes requests to the gateway service, which knows keys with models, limits "
        "and tiers, checks prompts before they reach an engine, and spreads them over engines. "
        "direct: Nginx asks for the key and passes requests straight to the host's one engine. "
        "docs/gateway-service.md.",
        "full",
    )
    https_port: Port = setting(443, "Port of the API.", 443)
    http_port: Port = setting(80, "Port that only redirects to HTTPS.", 80)
    tls: Tls = setting(Tls(), "The certificate.", {"source": "own_ca"})
    rate_limit: RateLimit = setting(RateLimit(), "Limits.", {"ip_per_minute": 600})
    cors_origins: Annotated[tuple[Origin, ...], LENIENT] = setting(
        (), "Web pages that may call the API from a browser.", ["https://chat.example.com"]
    )
    read_timeout_seconds: Seconds = setting(
        600,
        "Longest silence of the engine within an answer: waiting in its queue and reading the "
        "prompt, for an answer that is not streamed the whole of it.",
        600,
    )
    max_body_mb: int | None = setting(
        None,
        "Largest request, in MB; above it clients get 413. null: 16, and more where "
        "engine.args.max-model-len is so long that its text may need more (32 bytes for a token).",
        16,
        ge=1,
        le=1_024,
    )
    auth: Auth = setting(Auth(), "Who decides about API keys.", {})
    tokenize: bool = setting(
        False, "Whether clients may use /tokenize, which shows how the model splits a text.", False
    )
    engine_port: Port = setting(
        8443,
        "Port at which a gpu host that is no gateway itself lets the inventory's gateways to its "
        "engine, by mutual TLS under the inventory's own CA. The same on all of these hosts.",
        8443,
    )
    aliases: dict[ModelName, ModelName] = setting(
        {},
        "Other names that clients may call a model by, each with the name that its engine serves "
        "(engine.served_model_name, or model.id).",
        {"gpt-4o": "Qwen/Qwen3-32B"},
    )
    admission: Admission = setting(Admission(), "What requests have to be.", {})
    tiers: Annotated[tuple[Tier, ...], LENIENT] = setting(
        (Tier(name="default"),),
        "Classes of keys. Where requests wait, they share the engines by weight.",
        [{"name": "interactive", "weight": 300}, {"name": "batch", "weight": 50}],
        min_length=1,
    )
    default_tier: ParameterName | None = setting(
        None, "Tier of keys that name none, or none of these. null: the first.", "interactive"
    )
    queue: Queue = setting(Queue(), "Requests that wait.", {"max_waiting": 256})
    max_concurrent: Count | None = setting(
        None,
        "Requests at one engine at once; the others wait in the gateway, where tiers count. null: "
        "engine.args.max-num-seqs, or 256.",
        256,
    )
    affinity: Affinity = setting(Affinity(), "Which engine.", {"prefix_bytes": 2048})
    health: Health = setting(Health(), "Engines that fail.", {"interval_seconds": 15})
    kv_cache_usage: bool = setting(
        False,
        "Whether answers say how full the engine's KV cache is: kv_cache_usage_percent in usage, "
        "and the header X-KV-Cache-Usage-Percent. false leaves answers untouched.",
        True,
    )
    revoked_streams: Literal["finish", "end"] = setting(
        "finish",
        "What becomes of answers that run when their key is revoked. The next request is refused "
        "in any case.",
        "end",
    )
    stop_seconds: StopSeconds = setting(
        120,
        "How long running answers may go on when the service is stopped, as by a reboot. A deploy "
        "hands over and cuts none.",
        120,
    )
    create_first_key: bool = setting(
        False,
        "Make an API key on the first deploy and write it, mode 0600, on the control machine.",
        False,
    )
    plaintext_ca_key: bool = setting(
        False,
        "Keep the key of the inventory's CA unencrypted (mode 0600). For a lab only.",
        False,
    )
