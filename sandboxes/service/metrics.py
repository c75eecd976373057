"""Metrics of the service in the text format 0.0.4 of Prometheus."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
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
            yield _line(f"{name}_bucket", below, {**labels, "le": edge})
        yield _line(f"{name}_sum", f"{self.total:.6f}", labels)
        yield _line(f"{name}_count", below, labels)


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
        self.wait = Histogram(WAIT_EDGES_S)
        self._latency: defaultdict[str, Histogram] = defaultdict(partial(Histogram, LATENCY_EDGES_S))

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.requests[route, str(status)] += 1
        self._latency[route].observe(seconds)

    def render(self, pool: Pool, *, sessions: int, draining: bool) -> str:
        """The page of ``GET /metrics``; the gauges are of ``pool`` and the arguments."""
        lines: list[str] = []

        def add(name: str, kind: str, text: str, series: Iterable[str]) -> None:
            lines.extend([f"# HELP {name} {text}", f"# TYPE {name} {kind}", *series])

        for name, label, counted, text in (
            ("requests", "status", self.requests, "Answers by route and HTTP status."),
            ("outcomes", "outcome", self.outcomes, "What became of programs, by route."),
        ):
            name = f"roll_sandbox_{name}_total"
            pairs = sorted(counted.items())
            add(name, "counter", text, [_line(name, n, {"route": route, label: word}) for (route, word), n in pairs])
        name = "roll_sandbox_request_seconds"
        latencies = [
            line for route, each in sorted(self._latency.items()) for line in each.lines(name, {"route": route})
        ]
        add(name, "histogram", "Time from the request to the answer.", latencies)
        name = "roll_sandbox_wait_seconds"
        add(name, "histogram", "Time in the queue of those who got a slot.", self.wait.lines(name, {}))
        for name, value, text in (
            ("worker_restarts_total", self.restarts, "Workers that were replaced."),
            ("cancelled_total", self.cancelled, "Requests whose client went away before the answer."),
            ("queue_length", pool.waiting, "Requests that wait for a slot."),
            ("running", pool.running, "Slots in use."),
            ("slots", pool.slots, "Slots in all."),
            ("workers_alive", pool.alive, "Workers that can be used."),
            ("sessions_open", sessions, "Open sessions."),
            ("draining", int(draining), "1 while the service finishes its work before it stops."),
            ("resident_memory_bytes", _resident_bytes(), "Memory of the service's own process."),
        ):
            name = f"roll_sandbox_{name}"
            if value is not None:
                add(name, "counter" if name.endswith("_total") else "gauge", text, [_line(name, f"{value:g}")])
        tier = pool.isolation
        if tier is not None:
            name = "roll_sandbox_isolation_info"
            shown = {"tier": tier.tier, "layers": ",".join(tier.layers), "missing": ",".join(tier.missing)}
            add(name, "gauge", "What stands between programs and the host.", [_line(name, 1, shown)])
        return "\n".join(lines) + "\n"


def _line(name: str, value: object, labels: Mapping[str, str] | None = None) -> str:
    shown = ",".join(f'{label}="{_escape(text)}"' for label, text in (labels or {}).items())
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escape(value: str) -> str:
    # As the text format prescribes for the values of labels.
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident_bytes() -> int | None:
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
