"""The stream of a run's episodes: one file that is only appended to, compact and loss-free, with an index beside it.

The file is a gzip member for each training step or evaluation, one after the other, so that ``zcat`` reads it. A member
is lines of JSON: a header (format, phase, step, ...), then each group, greedy episode and cancelled group. What follows
from what stands before it in the line is not repeated:

- ``shown``, the observation that a turn answers, is left out where it is the one after the turn before;
- ``same`` is how many ids the prompt shares with the prompt and completion before; ``prompt`` has those after them;
- the first turn of an episode is told in the same way from the first turn of the episode before it in the group;
- log-probabilities are base64 of little-endian floats, of four bytes each where that is exact.

The index has a line for each member. It only saves time: what it lacks is found in the file. A member that a killed
process left half-written is ignored by readers and cut off by the next writer.
"""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from roll_envs.errors import RollError
from roll_envs.types import Completion, Group, Outcome, Task, Trajectory, Turn, VersionSpan
from trainer.rollout.records import jsonable

FORMAT = 1
_GZIP = zlib.MAX_WBITS | 16
_LEVEL = 3
"""Of gzip; level 6 takes up to half as long again, for three percent fewer bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """The episodes of a training step or an evaluation."""

    phase: str
    """``train`` or ``evaluation``."""
    step: int
    """Training steps done when it was over."""
    version: int
    """Of the weights that these episodes were played for, or trained first."""
    groups: tuple[Group, ...]
    """Everything that was played."""
    kept: tuple[Group, ...] = ()
    """What the step learnt from: episodes of ``groups``."""
    greedy: tuple[Trajectory, ...] = ()
    """The greedy episode of each kept group's task; empty where none was asked for."""
    cancelled: tuple[Group, ...] = ()
    """Groups that the step did not wait for; their tasks are played again."""
    planned_steps: int | None = None
    """Training steps of the whole run as it was planned then, which learning rates follow; None where it is unknown."""

    @property
    def episodes(self) -> tuple[Trajectory, ...]:
        """Every episode; greedy ones and those of cancelled groups follow."""
        return (*episodes_of(self.groups), *self.greedy, *episodes_of(self.cancelled))

    @property
    def greedy_returns(self) -> tuple[float | None, ...]:
        """Of the greedy episodes; None where one failed."""
        return tuple(episode.total_reward if episode.scored else None for episode in self.greedy)


def episodes_of(groups: Iterable[Group]) -> Iterator[Trajectory]:
    """The episodes of groups, in order."""
    return (trajectory for group in groups for trajectory in group.trajectories)


class Member(NamedTuple):
    """A line of the index: where a step's record is."""

    phase: str
    step: int
    episodes: int
    offset: int
    length: int
    crc: int
    """As in the member's own trailer."""

    @property
    def end(self) -> int:
        return self.offset + self.length


class RecordReader:
    """The records in the file at ``path``, also while a run writes it. No file is an empty one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members = tuple(_members(path))
        self.cut = _size(path) - _end(self.members)
        """Bytes at the end that are no whole record."""

    def read(self, member: Member) -> StepRecord:
        """Raises :class:`RollError` for a member that is damaged or of another format."""
        try:
            with self.path.open("rb") as file:
                file.seek(member.offset)
                lines = [json.loads(line) for line in zlib.decompress(file.read(member.length), _GZIP).splitlines()]
            if lines[0]["format"] == FORMAT:
                return _read_record(lines)
        except (OSError, zlib.error, ValueError, LookupError, TypeError) as error:
            raise RollError(
                f"{self.path}: the record of {member.phase} step {member.step} (at byte {member.offset}) cannot be "
                f"read ({type(error).__name__}: {error}); the others can"
            ) from error
        raise RollError(f"{self.path} has format {lines[0]['format']!r}; this release reads {FORMAT}")

    def find(self, phase: str, step: int | None = None) -> StepRecord:
        """The record of a step, the last one where ``step`` is None. Raises :class:`RollError` naming those there."""
        steps = {member.step: member for member in self.members if member.phase == phase}
        if not steps or (step is not None and step not in steps):
            wanted, known = phase if step is None else f"{phase} step {step}", list(map(str, steps))
            listed = ", ".join(known if len(known) <= 8 else [*known[:4], "...", *known[-3:]])
            there = f"steps {listed}" if steps else "none: the key `records` says what is recorded"
            raise RollError(f"no record of {wanted} in {self.path}; there are {there}")
        return self.read(steps[max(steps) if step is None else step])


class RecordWriter:
    """Appends records to the file at ``path``, which one process writes at a time; an unfinished end is cut off.

    Whatever raises an OSError, a full disk for one, leaves the records before as they were.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.members = list(_members(path))
        self.cut = _size(path) - _end(self.members)
        """Bytes at the end that were cut off."""
        self._indexed = self._index_size = 0
        self._keep(self.members)

    def write(self, record: StepRecord) -> Member:
        """Append a record; it is in the file when this returns."""
        packer, offset = zlib.compressobj(_LEVEL, wbits=_GZIP), _end(self.members)
        data = b"".join([*map(packer.compress, _lines(record)), packer.flush()])
        crc = int.from_bytes(data[-8:-4], "little")
        member = Member(record.phase, record.step, len(record.episodes), offset, len(data), crc)
        _put(self._path, offset, data)
        self.members.append(member)
        self._put_index()
        return member

    def rewind(self, last_steps: Mapping[str, int]) -> None:
        """Cut the file before the first record beyond the last step of its phase."""
        beyond = (i for i, m in enumerate(self.members) if m.step > last_steps.get(m.phase, m.step))
        self._keep(self.members[: next(beyond, len(self.members))])

    def _keep(self, members: list[Member]) -> None:
        self.members, self._indexed, self._index_size = members, 0, 0
        if self._path.exists():
            _put(self._path, _end(self.members), b"")
            self._put_index()

    def _put_index(self) -> None:
        """Append what the index lacks, also what there was no room for before."""
        lines = [json.dumps(member._asdict()).encode() + b"\n" for member in self.members[self._indexed :]]
        data = b"".join(lines)
        with contextlib.suppress(OSError):  # a reader finds what the index lacks
            _put(_index_path(self._path), self._index_size, data)
            self._indexed, self._index_size = len(self.members), self._index_size + len(data)


# -- the file and its index --------------------------------------------------------------------------------------------


def _index_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.index")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _end(members: Sequence[Member]) -> int:
    return members[-1].end if members else 0


def _members(path: Path) -> Iterator[Member]:
    """The whole members of a stream: as the index says for as long as it is right, then as they are found."""
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for member in _indexed(_index_path(path), file, _size(path)):
            yield member
            end = member.end
        while found := _scan(file, end):
            yield found
            end = found.end


def _indexed(path: Path, file: IO[bytes], size: int) -> Iterator[Member]:
    end = 0
    with contextlib.suppress(OSError, ValueError, TypeError), path.open("rb") as index:
        for line in index:
            member = Member(**json.loads(line))
            file.seek(member.end - 8)
            if member.offset != end or member.end > size or file.read(4) != member.crc.to_bytes(4, "little"):
                return
            yield member
            end = member.end


def _scan(file: IO[bytes], offset: int) -> Member | None:
    """The member that begins at ``offset``; None where there is none, or not all of it."""
    file.seek(offset)
    unpacker, head, taken = zlib.decompressobj(_GZIP), b"", 0
    try:
        while not unpacker.eof:
            if not (chunk := file.read(1 << 20)):
                return None
            text, taken = unpacker.decompress(chunk), taken + len(chunk)
            head = head if b"\n" in head else head + text
        length = taken - len(unpacker.unused_data)
        header = json.loads(head.partition(b"\n")[0])
        file.seek(offset + length - 8)
        crc = int.from_bytes(file.read(4), "little")
        return Member(header["phase"], header["step"], header["episodes"], offset, length, crc)
    except (zlib.error, ValueError, LookupError, TypeError):
        return None


def _put(path: Path, offset: int, data: bytes) -> None:
    """Cut a file off at ``offset`` and append ``data``: all of it, or nothing."""
    with open(path, "ab", buffering=0) as file:
        if file.tell() < offset:
            raise OSError(f"it has {file.tell()} bytes, and had {offset}: another process has changed it")
        file.truncate(offset)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(offset)
            raise


# -- records as lines --------------------------------------------------------------------------------------------------


_AS_THEY_ARE = ("text", "observation", "reward", "info", "timings")
"""Fields of a turn that are stored as they are."""


class _Seen(NamedTuple):
    """What a turn is told from: the observation and the ids before it."""

    observation: str = ""
    ids: tuple[int, ...] = ()


def _lines(record: StepRecord) -> Iterator[bytes]:
    places = {_key(group.task): place for place, group in enumerate(record.groups)}
    kept = []
    for group in record.kept:
        place = places[_key(group.task)]
        played = record.groups[place].trajectories
        kept.append([place, [played.index(trajectory) for trajectory in group.trajectories]])
    header = {"format": FORMAT, "phase": record.phase, "step": record.step, "version": record.version}
    header |= {"planned_steps": record.planned_steps} if record.planned_steps is not None else {}
    header |= {"cancelled": len(record.cancelled)} if record.cancelled else {}
    yield _line({**header, "episodes": len(record.episodes), "groups": len(record.groups), "kept": kept})
    greedy = (Group(task=t.task, trajectories=(t,)) for t in record.greedy)
    for group in (*record.groups, *greedy, *record.cancelled):
        start, episodes = _Seen(), []
        for trajectory in group.trajectories:
            episodes.append(_write_episode(trajectory, group.task, start))
            start = _start(trajectory, start)
        yield _line({"task": _plain(group.task), "episodes": episodes})


def _read_record(lines: Sequence[Mapping[str, Any]]) -> StepRecord:
    header, groups = lines[0], []
    for line in lines[1:]:
        task, start = Task(**line["task"]), _Seen()
        episodes: list[Trajectory] = []
        for episode in line["episodes"]:
            episodes.append(_read_episode(episode, task, start))
            start = _start(episodes[-1], start)
        groups.append(Group(task=task, trajectories=tuple(episodes)))
    played, others = groups[: header["groups"]], groups[header["groups"] :]
    count = len(others) - header.get("cancelled", 0)
    greedy, cancelled = others[:count], others[count:]
    kept = [replace(played[i], trajectories=tuple(played[i].trajectories[j] for j in js)) for i, js in header["kept"]]
    return StepRecord(
        phase=header["phase"],
        step=header["step"],
        version=header["version"],
        groups=tuple(played),
        kept=tuple(kept),
        greedy=tuple(group.trajectories[0] for group in greedy),
        cancelled=tuple(cancelled),
        planned_steps=header.get("planned_steps"),
    )


def _key(task: Task) -> tuple[str, str, int, int]:
    return task.env_id, task.split, task.index, task.seed


def _start(trajectory: Trajectory, before: _Seen) -> _Seen:
    """What the next episode of the group is told from."""
    if not trajectory.turns:
        return before
    return _Seen(trajectory.turns[0].prompt_observation, trajectory.turns[0].prompt_ids)


def _write_episode(trajectory: Trajectory, task: Task, seen: _Seen) -> dict[str, Any]:
    written: dict[str, Any] = {"member": trajectory.member, "outcome": _plain(trajectory.outcome), "turns": []}
    if trajectory.attempts > 1:
        written["attempts"] = trajectory.attempts
    if trajectory.task != task:
        written["task"] = _plain(trajectory.task)
    if trajectory.failed_attempts:
        written["failed_attempts"] = [_write_episode(attempt, task, seen) for attempt in trajectory.failed_attempts]
    for turn in trajectory.turns:
        written["turns"].append(_write_turn(turn, seen))
        seen = _after(turn)
    return written


def _read_episode(written: Mapping[str, Any], task: Task, seen: _Seen) -> Trajectory:
    turns, start = list[Turn](), seen
    for turn in written["turns"]:
        turns.append(_read_turn(turn, seen))
        seen = _after(turns[-1])
    return Trajectory(
        task=Task(**written["task"]) if "task" in written else task,
        member=written["member"],
        turns=tuple(turns),
        outcome=Outcome(**written["outcome"]),
        attempts=written.get("attempts", 1),
        failed_attempts=tuple(_read_episode(attempt, task, start) for attempt in written.get("failed_attempts", ())),
    )


def _after(turn: Turn) -> _Seen:
    return _Seen(turn.observation, (*turn.prompt_ids, *turn.completion.ids))


def _write_turn(turn: Turn, seen: _Seen) -> dict[str, Any]:
    said, same = turn.completion, _common(turn.prompt_ids, seen.ids)
    written: dict[str, Any] = {
        "same": same,
        "prompt": turn.prompt_ids[same:],
        "ids": said.ids,
        "logprobs": _packed(said.logprobs),
        "finish": said.finish,
        "version": said.weight_version,
        **{name: getattr(turn, name) for name in _AS_THEY_ARE},
    }
    if turn.prompt_observation != seen.observation:
        written["shown"] = turn.prompt_observation
    if len(said.spans) > 1:
        written["spans"] = said.spans
    written.update({name: True for name in ("terminated", "truncated") if getattr(turn, name)})
    return written


def _read_turn(written: Mapping[str, Any], seen: _Seen) -> Turn:
    said = Completion(
        ids=tuple(written["ids"]),
        logprobs=_unpacked(written["logprobs"]),
        finish=written["finish"],
        weight_version=written["version"],
        spans=tuple(VersionSpan(*span) for span in written.get("spans", ())),
    )
    return Turn(
        prompt_ids=(*seen.ids[: written["same"]], *written["prompt"]),
        completion=said,
        prompt_observation=written.get("shown", seen.observation),
        terminated=written.get("terminated", False),
        truncated=written.get("truncated", False),
        **{name: written[name] for name in _AS_THEY_ARE},
    )


def _plain(value: Task | Outcome) -> dict[str, Any]:
    """Its fields that are not at their defaults."""
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many ids two tuples begin with alike."""
    most = min(len(first), len(second))
    if first[:most] == second[:most]:
        return most
    return next(i for i in range(most) if first[i] != second[i])


def _packed(values: Sequence[float]) -> str:
    exact = np.asarray(values, dtype="<f8")
    with np.errstate(over="ignore"):
        short = exact.astype("<f4")
    kind, array = ("f4", short) if np.array_equal(short, exact) else ("f8", exact)
    return kind + base64.b64encode(array.tobytes()).decode()


def _unpacked(text: str) -> tuple[float, ...]:
    return tuple(np.frombuffer(base64.b64decode(text[2:]), dtype="<" + text[:2]).tolist())


def _line(value: Mapping[str, Any]) -> bytes:
    """A line of JSON. A lone surrogate, which a model may well produce, stays what it is; what JSON has no form for (an
    array in an environment's info) becomes the nearest that has one."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=jsonable)
    except (TypeError, ValueError, RecursionError):  # keys that are no texts; loops, great depth, very long numbers
        text = json.dumps(jsonable(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"
