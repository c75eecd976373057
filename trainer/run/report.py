"""What a person sees of a run: plan, progress with the time left, tables, episodes, and where things are.

On a terminal there are progress bars; elsewhere (a pipe, a log file) plain lines about every ten seconds.
"""

from __future__ import annotations

import abc
import contextlib
import io
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from roll_envs.types import Trajectory
from trainer.rollout.records import episode_board, episode_headline
from trainer.run.plan import Plan
from trainer.run.results import PhaseResult

__all__ = ["PhaseProgress", "Report", "duration_words"]


class Report:
    """Prints for people. ``Report.silent()`` prints nothing, for tests and for use as a library."""

    def __init__(self, console: Console | None = None, *, interval_s: float = 10.0) -> None:
        self.console = console or _console()
        self.interval_s = interval_s
        """Seconds between plain progress lines."""

    @classmethod
    def silent(cls) -> Self:
        """A report that goes nowhere."""
        return cls(Console(file=io.StringIO(), force_terminal=False))

    def say(self, text: str = "") -> None:
        """One plain line or paragraph; nothing in it is taken as markup."""
        self.console.print(Text(text), soft_wrap=True)

    def print_plan(self, plan: Plan) -> None:
        """What is about to happen, in a few lines."""
        self._heading(f"{plan.name} · seed {plan.seed}")
        facts = Table.grid(padding=(0, 2))
        for label, words in (
            ("environment", plan.env),
            ("model", plan.model),
            ("learning", plan.algorithm),
            ("files", plan.folder),
        ):
            facts.add_row(Text(label, style="dim"), Text(words))
        self.console.print(facts)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("Phase")
        table.add_column("", justify="right")
        table.add_column("Episodes", justify="right")
        timed = any(phase.seconds is not None for phase in plan.phases)
        if timed:
            table.add_column("About", justify="right")
        table.add_column("Each")
        for phase in plan.phases:
            when = [duration_words(phase.seconds) if phase.seconds is not None else ""] if timed else []
            table.add_row(phase.name, f"{phase.steps} {phase.unit}", f"{phase.episodes:,}", *when, Text(phase.detail))
        self.console.print(table)
        if plan.seconds is not None:
            self.say(f"About {duration_words(plan.seconds)} in all.")

    @contextlib.contextmanager
    def phase(self, name: str, total: int) -> Iterator[PhaseProgress]:
        """Progress of one phase of ``total`` steps: ``with report.phase("training", 60) as p: p.advance(loss=0.1)``."""
        live = self.console.is_terminal and not self.console.is_dumb_terminal
        progress: PhaseProgress = _Bar(self.console, name, total) if live else _Lines(self, name, total)
        with progress:
            yield progress

    def print_evaluation_table(self, phases: Sequence[PhaseResult]) -> None:
        """The held-out evaluation at each point of the run, and the change from the first to the last."""
        table = Table(title="Held-out evaluation", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("Phase")
        for name in ("Success", "95% interval", "Turns", "Valid actions", "Return", "Tasks", "Seconds"):
            table.add_column(name, justify="right")
        for p in phases:
            table.add_row(
                Text(p.name),
                f"{p.success:.3f}",
                f"{p.interval_low:.3f}-{p.interval_high:.3f}",
                f"{p.turns:.2f}",
                f"{p.valid_action_rate:.3f}",
                f"{p.mean_return:.3f}",
                str(p.tasks),
                f"{p.seconds:.1f}",
            )
        self.console.print(table)
        if len(phases) > 1:
            first, last = phases[0], phases[-1]
            apart = first.interval_high < last.interval_low or last.interval_high < first.interval_low
            words = "the intervals do not overlap" if apart else "the intervals overlap"
            self.say(f"Success {first.success:.3f} -> {last.success:.3f} ({words}).")
        for p in phases:
            if p.failed:
                self.say(f"{p.name}: {p.failed} episodes failed for reasons of ours and count nowhere above.")

    def print_episode(self, title: str, trajectory: Trajectory) -> None:
        """One episode, its turns side by side."""
        self._heading(title)
        self.say(episode_headline(trajectory))
        self.say()
        for line in episode_board(trajectory, width=min(self.console.width, 120)):
            self.console.print(Text(line), no_wrap=True, crop=True, overflow="ellipsis")

    def print_closing(self, folder: str, *, seconds: float | None = None, finished: bool = True) -> None:
        """Where the run is, how to look at it and how to go on."""
        took = f" after {duration_words(seconds)}" if seconds is not None else ""
        self._heading(f"{'Done' if finished else 'Stopped'}{took}")
        quoted = shlex.quote(folder)
        rows = [
            ("run folder", folder),
            ("look", f"tensorboard --logdir {shlex.quote(f'{folder}/tensorboard')}"),
            ("evaluate", f"roll-eval {quoted}"),
            ("train on" if finished else "go on", f"roll-train resume {quoted}" + (" --steps N" if finished else "")),
        ]
        for label, words in rows:
            self.say(f"  {label:<12}{words}")

    def _heading(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(text, style="bold"))


class PhaseProgress(contextlib.AbstractContextManager["PhaseProgress"], abc.ABC):
    """Progress of one phase; made by :meth:`Report.phase`."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = total
        self.done = 0

    def advance(self, amount: int = 1, /, **numbers: float) -> None:
        """``amount`` steps are done; ``numbers`` are shown beside the bar."""
        self.done += amount
        self.show(" · ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in numbers.items()))

    @abc.abstractmethod
    def show(self, words: str) -> None:
        """Show the present state with ``words``."""


class _Bar(PhaseProgress):
    def __init__(self, console: Console, name: str, total: int) -> None:
        super().__init__(name, total)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            # Of a narrow terminal the numbers give way first.
            TextColumn(
                "{task.fields[numbers]}",
                markup=False,
                style="dim",
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            expand=True,
            console=console,
            speed_estimate_period=60.0,
        )
        self._task: TaskID = self._progress.add_task(f"{name:<14}", total=total, numbers="")

    def show(self, words: str) -> None:
        self._progress.update(self._task, completed=self.done, numbers=words)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class _Lines(PhaseProgress):
    def __init__(self, report: Report, name: str, total: int) -> None:
        super().__init__(name, total)
        self._report = report
        self._started = self._printed = time.monotonic()
        self._words = ""

    def show(self, words: str) -> None:
        self._words = words
        now = time.monotonic()
        if now - self._printed >= self._report.interval_s and self.done < self.total:
            self._printed = now
            spent = now - self._started
            left = spent / max(1, self.done) * (self.total - self.done)
            self._print(f"{duration_words(spent)}, about {duration_words(left)} left")

    def __enter__(self) -> Self:
        self._started = self._printed = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._print(duration_words(time.monotonic() - self._started) + ("" if kind is None else ", stopped"))

    def _print(self, timing: str) -> None:
        numbers = f" · {self._words}" if self._words else ""
        self._report.say(f"{self.name}: {self.done}/{self.total} · {timing}{numbers}")


def duration_words(seconds: float) -> str:
    """``7.4`` -> ``7 s``, ``83`` -> ``1 min 23 s``, ``7500`` -> ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _console() -> Console:
    # A log file has no width of its own; 100 columns keep tables and boards whole.
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=100)


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
