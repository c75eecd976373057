"""What the page shows: a row for each recorded episode, and a group of episodes in full.

Rows are read from the stream of records as it grows, each member once. A run that was taken up again from an earlier
checkpoint has cut its stream: the rows begin anew then, under another ``generation``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from roll_envs import env_registry
from roll_envs.errors import ConfigError, RollError
from roll_envs.types import Task, Trajectory, Turn
from trainer.data.table import FloatArray, sequences_of
from trainer.rollout.records import episode_record, jsonable
from trainer.rollout.stream import Member, RecordReader, StepRecord, episodes_of
from trainer.run.folder import read_learnt, read_metrics

COLUMNS = (
    "member", "place", "group", "phase", "step", "version", "env", "split", "index", "seed", "attempt", "role",
    "outcome", "success", "return", "turns", "tokens", "invalid", "reason",
)  # fmt: skip
"""Of a row: ``member`` is the record in the stream, ``place`` the episode in it and ``group`` its group."""

Decode = Callable[[Sequence[int]], str]


class Episodes:
    """The recorded episodes of a run's folder, or of a stream of records alone. Methods may be called from several
    threads. Raises :class:`ConfigError` where there is neither."""

    def __init__(self, path: Path) -> None:
        self.run = path if path.is_dir() else None
        self.stream = path / "episodes" / "stream.jsonl.gz" if path.is_dir() else path
        if self.run is not None and not (path / "config.yaml").is_file():
            raise ConfigError(f"{str(path)!r} is not a run folder: it has no config.yaml; runs are made by roll-train")
        if self.run is None and not path.is_file():
            raise ConfigError(f"there is no run folder or stream of records {str(path)!r}; check the path")
        self.name = (self.run or self.stream).absolute().name
        self.generation = 0
        self._rows: list[list[Any]] = []
        self._members: list[Member] = []
        self._damaged: list[str] = []
        self._last: tuple[Member, StepRecord, _Known] | None = None
        self._lock = threading.Lock()

    def rows(self, first: int, generation: int, *, seconds: float = 0.5) -> dict[str, Any]:
        """The rows from ``first`` on (all of them for another ``generation``), after reading on for ``seconds``."""
        with self._lock:
            members = RecordReader(self.stream).members if self.stream.exists() else ()
            if members[: len(self._members)] != tuple(self._members):
                self.generation += 1
                self._rows, self._members, self._damaged = [], [], []
            until = time.monotonic() + seconds
            for number in range(len(self._members), len(members)):
                self._rows += self._read_rows(number, members[number])
                self._members.append(members[number])
                if time.monotonic() > until:
                    break
            return {
                "generation": self.generation,
                "columns": COLUMNS,
                "rows": self._rows[first if generation == self.generation else 0 :],
                "read": len(self._members),
                "members": len(members),
                "damaged": self._damaged,
            }

    def _read_rows(self, number: int, member: Member) -> Iterator[list[Any]]:
        try:
            record = RecordReader(self.stream).read(member)
        except RollError as error:
            self._damaged.append(str(error))
            return
        for place, (group, role, episode) in enumerate(_listed(record)):
            task, tokens = episode.task, sum(len(turn.completion.ids) for turn in episode.turns)
            invalid = sum(not turn.info.get("action_is_valid", True) for turn in episode.turns)
            yield [
                number, place, group, record.phase, record.step, record.version, task.env_id, task.split, task.index,
                task.seed, episode.member, role, episode.outcome.kind, episode.success,
                jsonable(episode.total_reward), len(episode.turns), tokens, invalid, episode.outcome.reason[:200],
            ]  # fmt: skip

    def group(self, member: int, group: int, decode: Decode | None) -> dict[str, Any]:
        """The episodes of a group in full. Raises :class:`RollError` for one that is not there, or is damaged."""
        record, known = self._opened(member)
        found = []
        for place, (number, role, episode) in enumerate(_listed(record)):
            if number == group:
                shown = {"place": place, "role": role, **episode_record(episode)}
                draw = self._drawn(episode.task)
                shown["drawing"] = draw(episode.turns[-1].observation) if episode.turns else None
                for index, (turn, each) in enumerate(zip(episode.turns, shown["turns"], strict=True)):
                    del each["prompt_ids"], each["completion_ids"], each["logprobs"]
                    each["tokens"] = _tokens(turn, known.of(episode, index), decode)
                    each["prompt"] = decode(turn.prompt_ids) if decode else None
                    each["prompt_tokens"] = len(turn.prompt_ids)
                    each["drawing"] = draw(turn.prompt_observation)
                found.append(shown)
        if not found:
            raise RollError(f"record {member} has no group {group}")
        return {"episodes": found}

    def _drawn(self, task: Task) -> Callable[[str], str | None]:
        """What draws observations of a task's environment; nothing where it is not installed here, or fails at it."""
        draw = None
        with contextlib.suppress(RollError):
            draw = env_registry.drawing(task.env_id, task.kwargs)

        def drawn(observation: str) -> str | None:
            try:
                return None if draw is None else draw(observation)
            except Exception:  # code of an environment; the text is there all the same
                return None

        return drawn

    def _opened(self, number: int) -> tuple[StepRecord, _Known]:
        """A record and what was learnt of it; the last one that was asked for is at hand."""
        members = RecordReader(self.stream).members
        if not 0 <= number < len(members):
            raise RollError(f"there is no record {number}; the stream has {len(members)}")
        member = members[number]
        last = self._last
        if last is None or last[0] != member:
            record = RecordReader(self.stream).read(member)
            columns = read_learnt(self.run, record.step) if self.run and record.phase == "train" else {}
            self._last = last = (member, record, _Known(record, columns))
        return last[1:]

    def curves(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; none for a stream alone."""
        return read_metrics(self.run) if self.run is not None else []


def _listed(record: StepRecord) -> Iterator[tuple[int, str, Trajectory]]:
    """The number of its group, its role and each episode: in the order of :attr:`StepRecord.episodes`."""
    kept = {id(episode) for episode in episodes_of(record.kept)}
    number = itertools.count()
    for group in record.groups:
        place = next(number)
        for episode in group.trajectories:
            yield place, "trained" if id(episode) in kept else "played", episode
    for episode in record.greedy:
        yield next(number), "greedy", episode
    for group in record.cancelled:
        place = next(number)
        for episode in group.trajectories:
            yield place, "cancelled", episode


class _Known:
    """What the learner knew of the tokens of a training step, where the run has noted it."""

    def __init__(self, record: StepRecord, columns: dict[str, FloatArray]) -> None:
        self._columns = columns
        self._groups = {id(episode): i for i, group in enumerate(record.kept) for episode in group.trajectories}
        self._lines: dict[tuple[int, int, int], list[int]] = {}
        """Of each group, member and turn: its lines in the columns, which are in the order of the step's table."""
        line = 0
        for sequence in sequences_of(record.kept) if columns else ():
            for turn, sampled in zip(sequence.turns, sequence.mask, strict=True):
                if sampled:
                    self._lines.setdefault((sequence.group, sequence.member, turn), []).append(line)
                    line += 1
        if any(len(column) != line for column in columns.values()):  # of another recording of the step
            self._lines = {}

    def of(self, episode: Trajectory, turn: int) -> dict[str, list[Any]]:
        """The columns of a turn's sampled tokens; empty where nothing was noted."""
        lines = self._lines.get((self._groups.get(id(episode), -1), episode.member, turn), [])
        return {name: [jsonable(float(column[line])) for line in lines] for name, column in self._columns.items()}


def _tokens(turn: Turn, known: dict[str, list[Any]], decode: Decode | None) -> list[dict[str, Any]]:
    """Each sampled token: its id, text, log-prob under the sampler, weight version and what the learner knew."""
    said = turn.completion
    versions = [span.version for span in said.spans for _ in range(span.tokens)]
    versions += [said.weight_version] * (len(said.ids) - len(versions))
    return [
        {
            "id": token,
            "text": decode([token]) if decode else None,
            "logprob": jsonable(logprob),
            "version": version,
            **{name: column[place] for name, column in known.items() if place < len(column)},
        }
        for place, (token, logprob, version) in enumerate(zip(said.ids, said.logprobs, versions, strict=True))
    ]


def decoder(run: Path | None) -> Decode | None:
    """The text of ids by the run's own tokenizer; None where there is none at hand."""
    if run is None:
        return None
    with contextlib.suppress(RollError, OSError, ImportError):
        from trainer.config.load import load_config
        from trainer.model.network import load_tokenizer

        path = load_config(run / "config.yaml").model.path
        tokenizer = load_tokenizer(run / "model" if path is None else Path(path))
        return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
    return None


def as_json(value: Any) -> str:
    """JSON that any page takes, whatever a model or an environment has written (numbers that are none as text)."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(jsonable(value))
