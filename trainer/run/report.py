"""What a person sees of a run: the plan, progress with the time left, tables, episodes, and where things are.

The plan follows from the configuration alone, so that ``--dry-run`` loads no torch. On a terminal there are progress
bars; elsewhere (a pipe, a log file) plain lines about every ten seconds.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from roll_envs.types import Trajectory
from trainer.cluster import manager_words, rank_words
from trainer.config import ModelConfig, RolloutConfig, RunConfig
from trainer.rollout.records import episode_board, episode_headline
from trainer.run.explain import unread
from trainer.run.picture import picture, seats, worth_showing

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.cluster.seats import Placement
    from trainer.run.evaluate import PhaseResult
    from trainer.run.memory_plan import MemoryPlan

VOCABULARY = 261
"""Tokens of the built-in tokenizer without the words of an environment."""

_PLAIN: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False}
"""How tables look."""

_NOTABLE = 0.2
"""A run that takes less of a device's free memory gets no table of it."""

_EVALUATION_COLUMNS = {
    "Success": "{0.success:.3f}",
    "95% interval": "{0.interval_low:.3f}-{0.interval_high:.3f}",
    "Turns": "{0.turns:.2f}",
    "Valid actions": "{0.valid_action_rate:.3f}",
    "Return": "{0.mean_return:.3f}",
    "Tasks": "{0.tasks}",
    "Seconds": "{0.seconds:.1f}",
}
"""Headings of the table of evaluations, and how a :class:`PhaseResult` is shown below them."""


class PlannedPhase(NamedTuple):
    """One phase: how many steps of which kind, and how many episodes in all."""

    name: str
    steps: int
    unit: str
    episodes: int
    detail: str


def planned_phases(config: RunConfig) -> list[PlannedPhase]:
    """What a run is about to do; phases of no steps are left out."""
    rollout, evaluation, warm = config.rollout, config.evaluation, config.warm_start
    held_out = config.evaluation_episodes
    # The evaluation after the last step is the one after training.
    during = (config.steps - 1) // evaluation.every if evaluation.every and config.steps else 0
    updates = config.learner.minibatches * config.learner.epochs
    teacher = (
        f"episodes of the model {warm.teacher.get('model', 'of the teacher')}; those that succeed are learnt from"
        if warm.teacher
        else f"episodes of a teacher that plays the oracle's action {warm.oracle_share:.0%} of the time"
        f"{'' if warm.learn_random else '; its random actions are not learnt'}"
    )
    learning = (
        f"{rollout.groups_per_step} tasks x {rollout.group_size} episodes, "
        f"{updates} optimiser step{'' if updates == 1 else 's'} each"
    )
    # name, steps, unit, episodes, detail
    phases = [
        ("warm start", warm.steps, "steps", warm.steps * warm.episodes_per_step, f"{warm.episodes_per_step} {teacher}"),
        ("evaluation before", 1, "evaluation", held_out, f"{held_out} held-out tasks"),
        ("training", config.steps, "steps", config.steps * rollout.groups_per_step * rollout.group_size, learning),
        ("evaluation during", during, "evaluations", during * held_out, f"every {evaluation.every} steps"),
        ("evaluation after", min(1, config.steps), "evaluation", held_out, "the same tasks"),
    ]
    return [PlannedPhase(*phase) for phase in phases if phase[1]]


def estimate_parameters(model: ModelConfig, vocabulary: int = VOCABULARY) -> int:
    """Parameters of the small model with tied embeddings: width 96, 3 layers, ratio 3 -> 385,152."""
    width, asks, shared = model.hidden_size, *(n * model.width_of_heads for n in (model.heads, model.shared_heads))
    # Attention has four matrices (qwen2: biases of three), the MLP three, and each layer two norms.
    biases = asks + 2 * shared if model.architecture == "qwen2" else 0
    layer = 2 * width * (asks + shared) + 3 * width * int(width * model.mlp_ratio) + 2 * width + biases
    return vocabulary * width + model.layers * layer + width


class _Spared:
    """A text file for a console. What cannot be written to it (the disk of a log is full, the terminal or the reader of
    a pipe is gone) is lost, and the run goes on."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


class Report:
    """Prints for people. ``Report.silent()`` prints nothing, for tests and for use as a library. ``spare``: what cannot
    be written is lost, and no error."""

    def __init__(self, console: Console | None = None, *, interval_s: float = 10.0, spare: bool = False) -> None:
        # A log file has no width of its own; 100 columns keep tables and boards whole.
        # The stdout of this moment, which stays the report's own when what environments print goes elsewhere.
        out: Any = _Spared(sys.stdout) if spare else sys.stdout
        self.console = console or Console(file=out, highlight=False, width=None if out.isatty() else 100)
        self.interval_s = interval_s
        """Seconds between plain progress lines."""

    @classmethod
    def silent(cls) -> Self:
        """A report that goes nowhere."""
        return cls(Console(file=io.StringIO(), force_terminal=False))

    def say(self, text: str = "") -> None:
        """One plain line or paragraph; nothing in it is taken as markup."""
        self.console.print(Text(text), soft_wrap=True)

    def print_plan(self, config: RunConfig, *, folder: str | None = None, parameters: int | None = None) -> None:
        """What is about to happen, in a few lines. ``parameters`` (counted) replaces the estimate."""
        self._heading(f"{config.name} · seed {config.seed}")
        facts = {
            "environment": _environment_words(config),
            "episodes": _mode_words(config.rollout),
            "workers": manager_words(config.rollout, config.placement.environments.cpus),
            "learner": rank_words(config),
            "model": _model_words(config.model, parameters),
            "learning": _algorithm_words(config),
            "not read": "; ".join(f"{key} ({why})" for key, why in unread(config).items()),
            "files": folder or f"{config.output}/{config.name}-seed{config.seed}-<date>-<time>",
        }
        grid = Table.grid(padding=(0, 2))
        for label, words in facts.items():
            if words:
                grid.add_row(Text(label, style="dim"), Text(words))
        self.console.print(grid)
        table = Table("Phase", Column("", justify="right"), Column("Episodes", justify="right"), "Each", **_PLAIN)
        for phase in planned_phases(config):
            table.add_row(phase.name, f"{phase.steps} {phase.unit}", f"{phase.episodes:,}", Text(phase.detail))
        self.console.print(table)

    def print_memory(self, plan: MemoryPlan, warnings: Sequence[str] = ()) -> None:
        """What takes memory, where that is a good part of what there is; else how little it is in a line."""
        for device in plan.items:
            when, size = plan.peak(device)
            words = f"{device}: about {size / 2**30:.1f} GiB at most ({when}), {plan.free[device] / 2**30:.1f} GiB free"
            if size < _NOTABLE * plan.free[device]:
                self.say(f"memory of {words}")
                continue
            self._heading(f"Memory of {words}")
            table = Table("", "", Column("GiB", justify="right"), "When", "Smaller by", **_PLAIN)
            for item in plan.items[device]:
                keys = Text(", ".join(item.keys[:2]), style="dim")
                table.add_row(item.owner, Text(item.what), f"{item.bytes / 2**30:.2f}", item.when, keys)
            self.console.print(table)
        for warning in warnings:
            self.say(warning)

    def print_placement(
        self, config: RunConfig, placement: Placement, *, gpus_of_node: int | None = None, always: bool = False
    ) -> None:
        """Who sits where, where more than one process or device takes part, or ``always``."""
        found = seats(config, placement)
        if always or worth_showing(found):
            self._heading("Who sits where")
            self.console.print(picture(found, gpus_of_node=gpus_of_node))
            if placement.words:
                self.say(f"{placement.words[0].upper()}{placement.words[1:]}.")

    @contextlib.contextmanager
    def phase(self, name: str, total: int, done: int = 0) -> Iterator[PhaseProgress]:
        """Progress of one phase of ``total`` steps: ``with report.phase("training", 60) as p: p.advance(loss=0.1)``;
        ``done`` of them were taken before."""
        numbers = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # of a narrow terminal they give way first
        # Where it is disabled it counts all the same, and lines are printed instead.
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False, style="dim", table_column=numbers),
            expand=True,
            console=self.console,
            speed_estimate_period=60.0,
            disable=not self.console.is_terminal or self.console.is_dumb_terminal,
        )
        progress = PhaseProgress(self, bar, name, total, done)
        ended = ", stopped"
        with bar:
            try:
                yield progress
                ended = ""
            finally:
                progress.print_line(ended)

    def print_evaluation_table(self, phases: Sequence[PhaseResult]) -> None:
        """The held-out evaluation at each point of the run, and the change from the first to the last."""
        table = Table(Column("Phase", overflow="fold"), title="Held-out evaluation", title_justify="left", **_PLAIN)
        named = Counter(p.name for p in phases)  # a resumed run has been evaluated after training more than once
        for heading in _EVALUATION_COLUMNS:
            table.add_column(heading, justify="right")
        for p in phases:
            name = f"{p.name}, step {p.step}" if named[p.name] > 1 else p.name
            for row, label in ((p, name), *((part, f"  {part.name}") for part in p.environments)):
                shown = (each.format(row) if row.tasks else "-" for each in _EVALUATION_COLUMNS.values())
                table.add_row(Text(label), *shown)
        self.console.print(table)
        if len(phases) > 1 and phases[0].tasks and phases[-1].tasks:
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

    def print_before_and_after(self, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> None:
        """The same held-out task before and after training: the first one lost before and won after, if there is one.

        ``before`` is empty where a resumed run evaluated it in an earlier process.
        """
        if after and not before:
            self.print_episode("An episode after training", after[0])
        elif after:
            gained = [i for i, (b, a) in enumerate(zip(before, after, strict=True)) if a.success and not b.success]
            chosen, why = (gained[0], "the first task lost before and won after") if gained else (0, "the first task")
            self.print_episode(f"Held-out task {chosen} before training ({why})", before[chosen])
            self.print_episode(f"Held-out task {chosen} after training", after[chosen])

    def print_closing(self, folder: str, *, finished: bool = True, set_aside: Sequence[Path] = ()) -> None:
        """Where the run is, how to look at it and how to go on; and which checkpoints it leaves ``set_aside``."""
        self._heading("Done" if finished else "Stopped")
        quoted = shlex.quote(folder)
        self.say(f"  run folder  {folder}")
        self.say(f"  look        roll-envs view {quoted}")
        self.say(f"  curves      tensorboard --logdir {shlex.quote(f'{folder}/tensorboard')}")
        self.say(f"  evaluate    roll-eval {quoted}")
        resume = f"roll-train resume {quoted}"
        self.say(f"  train on    {resume} --steps N" if finished else f"  go on       {resume}")
        if set_aside:
            size = sum(file.stat().st_size for path in set_aside for file in path.iterdir())
            names = ", ".join(path.name for path in set_aside)
            self.say(f"  set aside   {names} in checkpoints/: {size / 1e6:,.1f} MB; remove what you do not need")

    def _heading(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(text, style="bold"))


class PhaseProgress:
    """Progress of one phase; made by :meth:`Report.phase`."""

    def __init__(self, report: Report, bar: Progress, name: str, total: int, done: int) -> None:
        self.name, self.total, self.done, self._done_before = name, total, done, done
        self._report, self._bar, self._numbers = report, bar, ""
        self._task = bar.add_task(f"{name:<14}", total=total, completed=done, numbers="")
        self._started = self._printed = time.monotonic()

    def advance(self, amount: int = 1, /, **numbers: float) -> None:
        """``amount`` steps are done; ``numbers`` are shown beside the bar."""
        self.done += amount
        self._numbers = " · ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in numbers.items())
        self._bar.update(self._task, completed=self.done, numbers=self._numbers)
        now = time.monotonic()
        if now - self._printed >= self._report.interval_s and self.done < self.total:
            self._printed = now
            # What a resumed run had done before took none of this time.
            left = (now - self._started) / max(1, self.done - self._done_before) * (self.total - self.done)
            self.print_line(f", about {duration_words(left)} left")

    def print_line(self, rest: str) -> None:
        """How far the phase is, the time it took and ``rest`` as a plain line; nothing where there is a bar."""
        if self._bar.disable:
            numbers = f" · {self._numbers}" if self._numbers else ""
            spent = duration_words(time.monotonic() - self._started)
            self._report.say(f"{self.name}: {self.done}/{self.total} · {spent}{rest}{numbers}")


def duration_words(seconds: float) -> str:
    """``7.4`` -> ``7 s``, ``83`` -> ``1 min 23 s``, ``7500`` -> ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _model_words(model: ModelConfig, parameters: int | None) -> str:
    counted = f"about {estimate_parameters(model) / 1e6:.2f} M" if parameters is None else f"{parameters:,}"
    if model.path is not None:
        return model.path if parameters is None else f"{model.path}, {counted} parameters"
    return f"{model.architecture} built here, {counted} parameters ({model.layers} layers, width {model.hidden_size})"


def _environment_words(config: RunConfig) -> str:
    """The environment and its arguments; of a mix one a line, with names and shares."""
    total = sum(env.weight for env in config.environments)
    lines = []
    for env in config.environments:
        kwargs = ", ".join(f"{key}={value!r}" for key, value in env.kwargs.items())
        share = f"{env.short_name}, {env.weight / total:.0%}: " if config.envs else ""
        lines.append(share + env.id + (f" ({kwargs})" if kwargs else ""))
    return "\n".join(lines)


def _mode_words(config: RolloutConfig) -> str:
    """How playing and learning share time, for people; nothing where they take turns."""
    late = f"of at most {config.max_staleness} step{'' if config.max_staleness == 1 else 's'} ago"
    words = {
        "sync": f"{config.redundancy} groups more than needed, late ones in rounds of their own",
        "overlap": f"beside learning, with weights {late}",
        "async": f"beside learning, with weights {late} that change in mid-episode",
    }
    return words[config.mode] if config.redundancy or config.mode != "sync" else ""


def _algorithm_words(config: RunConfig) -> str:
    context = {"everything": "all turns in the prompt", "last": f"last {config.context.turns} turns in the prompt"}.get(
        config.context.kind, f"prompts by {config.context.function}"
    )
    return (
        f"{config.advantage.name} advantages, {config.loss.name} loss, learning rate {config.optimizer.lr:g}, "
        f"temperature {config.sampling.temperature:g}, {context}"
    )
