"""The folder of a run: where everything goes, and writing it so that a crash or a full disk loses nothing.

runs/<name>-seed<seed>-<date>-<time>/
  config.yaml      the resolved configuration, enough to resume
  metrics.jsonl    one JSON object per logged step
  tensorboard/     the same numbers as TensorBoard events
  episodes/        all episodes (stream.jsonl.gz), what was learnt of their tokens (learnt.jsonl), sample episodes
                   (.txt, .jsonl), failed attempts (failed.jsonl)
  checkpoints/     see trainer.run.checkpoint
  .lock            which process trains here
  learning_curve.png, summary.json
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import io
import itertools
import json
import math
import os
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from roll_envs.errors import ConfigError, MissingExtraError, RollError
from roll_envs.types import Trajectory
from trainer.config import RunConfig
from trainer.config.load import dump_config, load_config
from trainer.data.table import FloatArray
from trainer.rollout.records import episode_record, episode_text
from trainer.rollout.stream import RecordWriter, StepRecord

UNFINISHED = ".unfinished-"
"""Begins the name of a file or folder that is being written; one that stays behind is of a killed process."""

LEARNT = "learnt.jsonl"
LOCK = ".lock"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class RunFolder(contextlib.AbstractContextManager["RunFolder"]):
    """One run on disk. ``create`` makes a new folder, ``open`` takes one up again; close it, or use ``with``."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.config = config
        self.config_path = path / "config.yaml"
        self.metrics_path = path / "metrics.jsonl"
        self.tensorboard_path = path / "tensorboard"
        self.episodes_path = path / "episodes"
        self.stream_path = self.episodes_path / "stream.jsonl.gz"
        self.failed_path = self.episodes_path / "failed.jsonl"
        self.learnt_path = self.episodes_path / LEARNT
        self.checkpoints_path = path / "checkpoints"
        self.summary_path = path / "summary.json"
        self._events: io.FileIO | None = None
        self._stream: RecordWriter | None = None
        self._locked = False

    @classmethod
    def create(cls, config: RunConfig) -> Self:
        """Make a new folder below ``config.output``; an existing one is never reused."""
        first = Path(config.output) / f"{config.name}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        with disk_errors(first):
            for count in itertools.count(1):
                folder = cls(first if count == 1 else first.with_name(f"{first.name}-{count}"), config)
                with contextlib.suppress(FileExistsError):  # another run with this seed began in the same second
                    folder.path.mkdir(parents=True)
                    break
            for part in (folder.tensorboard_path, folder.episodes_path, folder.checkpoints_path):
                part.mkdir()
        write_atomic(folder.config_path, dump_config(config))
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The run at ``path`` (its folder, or a checkpoint in it), unchanged. Raises ConfigError when it is no run."""
        folder, absolute = Path(path), Path(os.path.abspath(path))
        # Absolute, because someone may stand in the folder of checkpoints and name one of them.
        if absolute.parent.name == "checkpoints":
            folder = absolute.parent.parent
        if not folder.is_dir():
            raise ConfigError(f"no run folder {str(path)!r}; check the path")
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"{str(path)!r} is not a run folder: it has no config.yaml; runs are made by roll-train")
        return cls(folder, load_config(folder / "config.yaml"))

    @contextlib.contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """Be the only one that trains in this folder; may be nested. The system frees the lock of a killed process.

        Raises RollError that names the process that trains here. Where the file system has no locks, ``say`` is told.
        """
        if self._locked:
            yield
            return
        with _lock(self.path, say):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def log(self, metrics: Mapping[str, float], *, step: int, phase: str = "train") -> None:
        """Append one record to metrics.jsonl (on disk when this returns) and to TensorBoard as ``phase/name``.

        A number that is not finite is stored as text ("nan"), because JSON has none. Raises RollError on a full disk;
        the records before stay whole.
        """
        record: dict[str, Any] = {"phase": phase, "step": step, "time": time.time()}
        record.update({name: _finite(value) for name, value in metrics.items()})
        _append(self.metrics_path, _line(record).encode())
        self._to_tensorboard(record)

    def record(self, record: StepRecord) -> None:
        """Append the episodes of a step to the stream. Raises RollError on a full disk; the records before stay."""
        with disk_errors(self.stream_path):
            self._stream = self._stream or RecordWriter(self.stream_path)
            self._stream.write(record)

    def record_failures(self, attempts: Iterable[Trajectory], *, step: int, phase: str) -> None:
        """Append a line for each failed attempt at an episode to ``episodes/failed.jsonl``. Raises RollError as
        :meth:`log` does."""
        for attempt in attempts:
            line = {"phase": phase, "step": step, **episode_record(attempt)}
            _append(self.failed_path, json.dumps(line).encode() + b"\n")

    def record_learnt(self, columns: Mapping[str, FloatArray], *, step: int, phase: str) -> None:
        """Append what the learner knew of each token that it was given at a step to ``episodes/learnt.jsonl``. Raises
        RollError as :meth:`log` does."""
        packed = {
            name: base64.b64encode(zlib.compress(column.astype("<f4").tobytes())).decode()
            for name, column in columns.items()
        }
        _append(self.learnt_path, json.dumps({"phase": phase, "step": step, "columns": packed}).encode() + b"\n")

    def rewind(self, last_steps: Mapping[str, int]) -> None:
        """For a resume: remove what a killed process left half-written, and drop the metrics and recorded episodes of
        each named phase beyond its last step, failed attempts too.

        ``{"train": 20}`` keeps train steps up to 20 and other phases as they are. A line cut off by a crash is dropped
        too. The TensorBoard events are written anew from what is left.
        """
        for part in (self.path, self.episodes_path, self.checkpoints_path):
            with disk_errors(part):
                part.mkdir(exist_ok=True)
            clean_unfinished(part)
        kept = [r for r in read_metrics(self.path) if r["step"] <= last_steps.get(r["phase"], r["step"])]
        write_atomic(self.metrics_path, "".join(_line(record) for record in kept))
        for path in (self.failed_path, self.learnt_path):
            if path.exists():
                with replacing(path) as shorter, shorter.open("w", encoding="utf-8") as file:
                    for each in _read_steps(path):  # one by one: a long run has gigabytes of them
                        if each["step"] <= last_steps.get(each["phase"], each["step"]):
                            file.write(json.dumps(each) + "\n")
        if self.stream_path.exists():
            with disk_errors(self.stream_path):
                self._stream = RecordWriter(self.stream_path)
                self._stream.rewind(last_steps)
        # TensorBoard's own purge knows one step for all phases, so its events are written anew.
        self.close()
        shutil.rmtree(self.tensorboard_path, ignore_errors=True)
        for record in kept:
            self._to_tensorboard(record)

    def save_episodes(self, label: str, trajectories: Sequence[Trajectory]) -> Path:
        """Write sample episodes as ``episodes/<label>.txt`` and ``.jsonl``; returns the text file."""
        text = self.episodes_path / f"{label}.txt"
        write_atomic(text.with_suffix(".jsonl"), "".join(json.dumps(episode_record(t)) + "\n" for t in trajectories))
        # A lone surrogate, which a model may well produce, becomes a question mark.
        write_atomic(text, "\n\n".join(episode_text(t) for t in trajectories).encode("utf-8", errors="replace"))
        return text

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_atomic(self.summary_path, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the TensorBoard events; safe to call twice."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def _to_tensorboard(self, record: dict[str, Any]) -> None:
        # Written here and at once: SummaryWriter does it in a thread, which prints a traceback where the disk is full.
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise MissingExtraError("TensorBoard logging", "train") from error
        phase, step, at = record["phase"], record["step"], record["time"]
        values = [
            Summary.Value(tag=f"{phase}/{name}", simple_value=value)
            for name, value in record.items()
            if name not in ("phase", "step", "time") and isinstance(value, int | float)
        ]
        events = [Event(wall_time=at, step=step, summary=Summary(value=values))]
        with disk_errors(self.tensorboard_path):
            if self._events is None:
                self.tensorboard_path.mkdir(exist_ok=True)
                name = f"events.out.tfevents.{int(at):010d}.{socket.gethostname()}.{os.getpid()}"
                self._events = open(self.tensorboard_path / name, "ab", buffering=0)  # noqa: SIM115
            if not self._events.seek(0, os.SEEK_END):
                events.insert(0, Event(wall_time=at, file_version="brain.Event:2"))
            packed = io.BytesIO()
            for event in events:
                RecordWriter(packed).write(event.SerializeToString())
            _write(self._events, packed.getvalue())


_LOCKS: set[int] = set()
"""The open files of the locks that this process holds."""


@contextlib.contextmanager
def _lock(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    path = folder / LOCK
    with disk_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _LOCKS.add(handle)
    try:
        # On NFS Linux asks the server, so that it holds between machines; but not where the folder is mounted with
        # nolock or local_lock. The file stays: another process may have opened it, and would lock one without a name.
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                holder = os.pread(handle, 300, 0).decode("utf-8", "replace").strip() or "another process"
                raise RollError(
                    f"{holder} trains in {folder}; wait until it ends, or stop it (on SIGINT it saves a checkpoint)"
                ) from None
            say(
                f"{path} cannot be locked ({error.strerror}): nothing will stop a second process from training in this "
                "folder. Start none."
            )
        with contextlib.suppress(OSError):  # a full disk; it is for people alone
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        if handle in _LOCKS:  # not in a child
            _LOCKS.remove(handle)
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _leave_locks() -> None:
    """In a child made by ``os.fork``, which would hold a lock for as long as it lives."""
    while _LOCKS:
        os.close(_LOCKS.pop())


os.register_at_fork(after_in_child=_leave_locks)


def read_metrics(path: str | os.PathLike[str], phase: str | None = None) -> list[dict[str, Any]]:
    """The records of metrics.jsonl in the run folder ``path`` (default: of all phases), in the order logged; a line cut
    off by a crash is left out."""
    return [record for record in _read_steps(Path(path) / "metrics.jsonl") if phase in (None, record["phase"])]


def read_learnt(path: str | os.PathLike[str], step: int) -> dict[str, FloatArray]:
    """What the learner knew of each token [N] of a training step of the run ``path``, in the order of its table: the
    advantage and its own log-prob (NaN where it was not run). Empty where the run did not record it."""
    file, begin = Path(path) / "episodes" / LEARNT, json.dumps({"phase": "train", "step": step})[:-1].encode() + b","
    with contextlib.suppress(OSError, ValueError, LookupError, zlib.error), file.open("rb") as lines:
        packed: Mapping[str, str] = json.loads(next((line for line in lines if line.startswith(begin)), b"{}"))[
            "columns"
        ]
        return {
            name: np.frombuffer(zlib.decompress(base64.b64decode(text)), "<f4").astype(np.float64)
            for name, text in packed.items()
        }
    return {}


def _read_steps(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file, each an object with the step and the phase that it is of."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            record = None
            with contextlib.suppress(ValueError):
                record = json.loads(line)
            if (
                isinstance(record, dict)
                and isinstance(record.get("step"), int)
                and isinstance(record.get("phase"), str)
            ):
                yield record


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _append(path: Path, data: bytes) -> None:
    """Append a line to a file: all of it, or nothing where the disk is full."""
    # Without a buffer, which would write what is left of a failed line when it is closed.
    with disk_errors(path), open(path, "ab+", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a line that a crash cut off
                data = b"\n" + data
        _write(file, data)


def _write(file: io.FileIO, data: bytes) -> None:
    """Append to a file without a buffer: all of it, or nothing where the disk is full."""
    size = file.seek(0, os.SEEK_END)
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(size)
        raise


def _finite(value: float) -> float | str:
    number = float(value)  # of numpy and torch too, which json does not know
    if not math.isfinite(number):
        return str(number)
    return int(number) if isinstance(value, int) else number


@contextlib.contextmanager
def disk_errors(path: str | os.PathLike[str], saved_before: str = "nothing saved before was touched") -> Iterator[None]:
    """Turn an OSError while writing ``path`` into a RollError that says what, where and what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch.save raises a RuntimeError of its own where the file it writes to raised an OSError
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise RollError(_explain(Path(path), cause, saved_before)) from error


@contextlib.contextmanager
def replacing(target: Path, saved_before: str = "nothing saved before was touched") -> Iterator[Path]:
    """A path beside ``target`` for a new file or folder, which is synced and renamed to ``target`` when the body ends:
    there is the whole new content or the old one, never a part.

    Raises RollError when the disk is full or cannot be written. Whatever ends the body early, what it wrote is removed
    and ``target`` is as it was.
    """
    temporary = target.with_name(f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}-{target.name}")
    try:
        with disk_errors(target, saved_before):
            yield temporary
            # Contents before the name: after a power cut a file that has its name must not be empty.
            for path in (*temporary.rglob("*"), temporary):
                _sync(path)
            os.replace(temporary, target)
            _sync(target.parent)
    except BaseException:
        _remove(temporary)
        raise


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Replace the file by ``content`` in one step, as :func:`replacing` does; text is written as UTF-8."""
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def clean_unfinished(folder: Path) -> None:
    """Remove what a killed process left half-written in ``folder``. Not while another process writes there."""
    for path in folder.glob(f"{UNFINISHED}*"):
        _remove(path)


def _sync(path: Path) -> None:
    """Bring a file to the disk; and the names in a folder, where the file system can."""
    folder = path.is_dir()
    with contextlib.suppress(OSError) if folder else contextlib.nullcontext():
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _explain(path: Path, error: OSError, saved_before: str) -> str:
    what, advice = "could not write", "Check that the folder exists and can be written"
    if error.errno in _FULL:
        free = ""
        with contextlib.suppress(OSError):
            megabytes = shutil.disk_usage(path.parent).free / 1e6
            other = "; a quota, a limit on file sizes or the number of files may be reached" if megabytes > 10 else ""
            free = f" ({megabytes:.1f} MB free{other})"
        what = f"the disk is full{free}: could not write"
        advice = (
            "Free some space there, or choose another disk with --output DIR; "
            "a stopped run continues with: roll-train resume RUN"
        )
    elif error.errno in _FORBIDDEN:
        what = "may not write"
        advice = "Change the permissions of the folder or choose another with --output DIR"
    return f"{what} {path} ({error.strerror or error}); {saved_before}. {advice}"
