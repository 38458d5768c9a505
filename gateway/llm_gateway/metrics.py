"""What the service counts, for Prometheus. Labels are ids, names of the configuration and statuses.

Never a key's secret, nothing out of a prompt, and no name that a client made up: what is not
configured is counted under an empty model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .breaker import STATES

if TYPE_CHECKING:
    from .dispatch import Dispatcher

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_FIRST_BYTE = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)
_GAP = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2.5, 5, 15, 60)
_QUEUED = (0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60)
_OWN = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1)


class Metrics:
    """All series of one process. Durations in seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "llm_gateway_requests",
            "Requests by the answer's status; 499: the client left before it had one.",
            ("path", "model", "tier", "status"),
            registry=self.registry,
        )
        self.refusals = Counter(
            "llm_gateway_refusals",
            "Requests that this service refused, by its error code.",
            ("code",),
            registry=self.registry,
        )
        self.tokens = Counter(
            "llm_gateway_tokens",
            "Tokens as the engine counted them (of answers that broke off: events).",
            ("model", "key_id", "kind"),
            registry=self.registry,
        )
        self.first_byte = Histogram(
            "llm_gateway_first_byte_seconds",
            "From the request's last byte to the answer's first: queues, prefill and all.",
            ("model", "tier"),
            buckets=_FIRST_BYTE,
            registry=self.registry,
        )
        self.gaps = Histogram(
            "llm_gateway_chunk_gap_seconds",
            "Between two chunks of a stream, as they came from the engine.",
            ("model",),
            buckets=_GAP,
            registry=self.registry,
        )
        self.queued = Histogram(
            "llm_gateway_queue_seconds",
            "How long a request waited for a slot of an engine.",
            ("tier",),
            buckets=_QUEUED,
            registry=self.registry,
        )
        self.own = Histogram(
            "llm_gateway_own_seconds",
            "Time of this service itself per request before the engine has it: without queue, "
            "without the engine's tokenizer.",
            buckets=_OWN,
            registry=self.registry,
        )
        self.failovers = Counter(
            "llm_gateway_failovers",
            "Requests sent again because an engine failed before the first byte.",
            ("backend", "reason"),
            registry=self.registry,
        )
        self.aborts = Counter(
            "llm_gateway_aborts",
            "Answers that ended early: client_gone, engine_lost, engine_silent, stopping.",
            ("reason",),
            registry=self.registry,
        )
        self.uncounted = Counter(
            "llm_gateway_uncounted_prompts",
            "Prompts admitted although the engine's tokenizer gave no count.",
            registry=self.registry,
        )
        self._waiting = Gauge(
            "llm_gateway_waiting", "Requests that wait now.", ("tier",), registry=self.registry
        )
        self._outstanding = Gauge(
            "llm_gateway_outstanding",
            "Requests at an engine now.",
            ("backend",),
            registry=self.registry,
        )
        self._draining = Gauge(
            "llm_gateway_backend_draining",
            "1 while an engine gets no new request because it drains.",
            ("backend",),
            registry=self.registry,
        )
        self._breaker = Gauge(
            "llm_gateway_breaker_state",
            "1 for the state that an engine's circuit breaker is in.",
            ("backend", "state"),
            registry=self.registry,
        )

    def text(self, dispatcher: Dispatcher | None) -> bytes:
        """The exposition format. What is a state is read now; names that are gone disappear."""
        for gauge in (self._waiting, self._outstanding, self._draining, self._breaker):
            gauge.clear()
        if dispatcher is not None:
            for tier, size in dispatcher.waiting().items():
                self._waiting.labels(tier).set(size)
            for name, backend in dispatcher.backends.items():
                self._outstanding.labels(name).set(backend.outstanding)
                self._draining.labels(name).set(backend.draining)
                state = backend.breaker.state()
                for one in STATES:
                    self._breaker.labels(name, one).set(one == state)
        return generate_latest(self.registry)
