"""Metrics of the service, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)

from roll_envs.sandbox import Isolation

LATENCY_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
WAIT_EDGES_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PAGE_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """Counters and histograms of one service, and those of its process; :meth:`watch` adds gauges."""

    def __init__(self) -> None:
        self.registry = to = CollectorRegistry()
        self.requests = Counter(
            "roll_sandbox_requests", "Answers by route and HTTP status.", ("route", "status"), registry=to
        )
        # Success, Failed, SandboxError, ok, error, timeout, ...
        self.outcomes = Counter(
            "roll_sandbox_outcomes", "What became of programs, by route.", ("route", "outcome"), registry=to
        )
        self.restarts = Counter("roll_sandbox_worker_restarts", "Workers that were replaced.", registry=to)
        self.cancelled = Counter(
            "roll_sandbox_cancelled", "Requests whose client went away before the answer.", registry=to
        )
        text = "Time from the request to the answer."
        self.latency = Histogram("roll_sandbox_request_seconds", text, ("route",), buckets=LATENCY_EDGES_S, registry=to)
        text = "Time in the queue of those who got a slot."
        self.wait = Histogram("roll_sandbox_wait_seconds", text, buckets=WAIT_EDGES_S, registry=to)
        self._isolation = Info("roll_sandbox_isolation", "What stands between programs and the host.", registry=to)
        ProcessCollector(registry=to)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a value as it is when the page is asked for."""
        Gauge(f"roll_sandbox_{name}", text, registry=self.registry).set_function(value)

    def show_isolation(self, tier: Isolation) -> None:
        shown = {"tier": tier.tier, "layers": ",".join(tier.layers), "missing": ",".join(tier.missing)}
        self._isolation.info(shown)

    def render(self) -> str:
        """The page of ``GET /metrics``."""
        return generate_latest(self.registry).decode()
