"""Metrics of the service in the text format 0.0.4 of Prometheus."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxes.service.pool import Pool

LATENCY_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
WAIT_EDGES_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """A histogram with fixed bucket edges."""

    def __init__(self, edges: Iterable[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count ``value``."""
        # "le" includes the edge, so a value on an edge belongs to that bucket.
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """The lines of one series: cumulative counts, sum, count."""
        below = 0
        for edge, count in zip((*(f"{e:g}" for e in self.edges), "+Inf"), self.counts, strict=True):
            below += count
            yield f"{name}_bucket{_labels({**labels, 'le': edge})} {below}"
        yield f"{name}_sum{_labels(labels)} {self.total:.6f}"
        yield f"{name}_count{_labels(labels)} {below}"


class Metrics:
    """Counters and histograms; used on the event loop only."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """(route, HTTP status) -> answers."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """(route, outcome) -> answers with a verdict: Success, Failed, SandboxError, ok, error, timeout, ..."""
        self.restarts = 0
        """Workers that were replaced."""
        self.cancelled = 0
        """Requests whose client went away."""
        self._latency: dict[str, Histogram] = {}
        self._wait = Histogram(WAIT_EDGES_S)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.requests[route, str(status)] += 1
        self._latency.setdefault(route, Histogram(LATENCY_EDGES_S)).observe(seconds)

    def observe_wait(self, seconds: float) -> None:
        """Count the wait for a slot."""
        self._wait.observe(seconds)

    def render(self, pool: Pool, *, sessions: int, draining: bool) -> str:
        """The page of ``GET /metrics``; the gauges are of ``pool`` and the arguments."""
        lines: list[str] = []

        def add(name: str, kind: str, text: str, series: Iterable[str]) -> None:
            lines.extend([f"# HELP roll_sandbox_{name} {text}", f"# TYPE roll_sandbox_{name} {kind}", *series])

        def single(name: str, kind: str, text: str, value: float) -> None:
            add(name, kind, text, [f"roll_sandbox_{name} {value:g}"])

        counted = sorted(self.requests.items())
        requests = [
            f"roll_sandbox_requests_total{_labels({'route': r, 'status': s})} {count}" for (r, s), count in counted
        ]
        add("requests_total", "counter", "Answers by route and HTTP status.", requests)
        judged = sorted(self.outcomes.items())
        outcomes = [
            f"roll_sandbox_outcomes_total{_labels({'route': r, 'outcome': o})} {count}" for (r, o), count in judged
        ]
        add("outcomes_total", "counter", "What became of programs, by route.", outcomes)
        name = "request_seconds"
        series = [
            line
            for route, histogram in sorted(self._latency.items())
            for line in histogram.lines(f"roll_sandbox_{name}", {"route": route})
        ]
        add(name, "histogram", "Time from the request to the answer.", series)
        waits = self._wait.lines("roll_sandbox_wait_seconds", {})
        add("wait_seconds", "histogram", "Time in the queue of those who got a slot.", waits)
        single("worker_restarts_total", "counter", "Workers that were replaced.", self.restarts)
        single("cancelled_total", "counter", "Requests whose client went away before the answer.", self.cancelled)
        single("queue_length", "gauge", "Requests that wait for a slot.", pool.waiting)
        single("running", "gauge", "Slots in use.", pool.running)
        single("slots", "gauge", "Slots in all.", pool.slots)
        single("workers_alive", "gauge", "Workers that can be used.", pool.alive)
        single("sessions_open", "gauge", "Open sessions.", sessions)
        single("draining", "gauge", "1 while the service finishes its work before it stops.", float(draining))
        tier = pool.isolation
        if tier is not None:
            shown = {"tier": tier.tier, "layers": ",".join(tier.layers), "missing": ",".join(tier.missing)}
            text = "What stands between programs and the host."
            add("isolation_info", "gauge", text, [f"roll_sandbox_isolation_info{_labels(shown)} 1"])
        resident = _resident_bytes()
        if resident is not None:
            single("resident_memory_bytes", "gauge", "Memory of the service's own process.", resident)
        return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    # As the text format prescribes for the values of labels.
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident_bytes() -> int | None:
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
