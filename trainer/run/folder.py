"""The folder of a run: where everything goes, and writing it so that a crash or a full disk loses nothing.

runs/<name>-seed<seed>-<date>-<time>/
  config.yaml      the resolved configuration, enough to resume
  metrics.jsonl    one JSON object per logged step
  tensorboard/     the same numbers as TensorBoard events
  episodes/        sample episodes, readable (.txt) and complete (.jsonl)
  checkpoints/     see trainer.run.checkpoint
  learning_curve.png, summary.json
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

from roll_envs.errors import ConfigError, MissingExtraError, RollError
from roll_envs.types import Trajectory
from trainer.config import RunConfig
from trainer.config.load import dump_config, load_config
from trainer.rollout.records import episode_record, episode_text

__all__ = [
    "TEMPORARY_SUFFIX",
    "Interrupts",
    "RunFolder",
    "SyncedFile",
    "disk_errors",
    "read_metrics",
    "sync_folder",
    "write_atomic",
]

TEMPORARY_SUFFIX = ".unfinished"
"""Ends the name of a file that is being written; one that stays behind is of a killed process."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_CHUNK = 2**24
"""Bytes that are written and hashed at a time."""

MetricsRecord = dict[str, Any]


class RunFolder:
    """One run on disk. ``create`` makes a new folder, ``open`` takes one up again; close it, or use ``with``."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.config = config
        self.config_path = path / "config.yaml"
        self.metrics_path = path / "metrics.jsonl"
        self.tensorboard_path = path / "tensorboard"
        self.episodes_path = path / "episodes"
        self.checkpoints_path = path / "checkpoints"
        self.summary_path = path / "summary.json"
        self.curve_path = path / "learning_curve.png"
        self._writer: Any = None

    @classmethod
    def create(cls, config: RunConfig, output: str | os.PathLike[str] | None = None) -> Self:
        """Make a new folder below ``output`` (default: ``config.output``); an existing one is never reused."""
        parent = Path(output if output is not None else config.output)
        stem = f"{config.name}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        with disk_errors(parent / stem):
            parent.mkdir(parents=True, exist_ok=True)
            path, count = parent / stem, 1
            while True:
                try:
                    path.mkdir()
                    break
                except FileExistsError:
                    count += 1
                    path = parent / f"{stem}-{count}"
            folder = cls(path, config)
            for part in (folder.tensorboard_path, folder.episodes_path, folder.checkpoints_path):
                part.mkdir()
        write_atomic(folder.config_path, dump_config(config))
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Take up the run at ``path`` (its folder, or a checkpoint in it). Raises ConfigError when it is no run."""
        folder, absolute = Path(path), Path(os.path.abspath(path))
        if absolute.parent.name == "checkpoints":
            folder = absolute.parent.parent
        if not folder.is_dir():
            raise ConfigError(f"no run folder {str(path)!r}; check the path")
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"{str(path)!r} is not a run folder: it has no config.yaml; runs are made by roll-train")
        run = cls(folder, load_config(folder / "config.yaml"))
        with disk_errors(folder):
            for part in (run.tensorboard_path, run.episodes_path, run.checkpoints_path):
                part.mkdir(exist_ok=True)
            for part in (folder, run.episodes_path):
                for stale in part.glob(f".*{TEMPORARY_SUFFIX}"):
                    stale.unlink(missing_ok=True)
        return run

    def log(self, metrics: Mapping[str, float], *, step: int, phase: str = "train") -> None:
        """Append one record to metrics.jsonl (on disk when this returns) and to TensorBoard as ``phase/name``.

        A number that is not finite is stored as text ("nan"), because JSON has none. Raises RollError on a full disk;
        the records before stay whole.
        """
        record: MetricsRecord = {"phase": phase, "step": step, "time": time.time()}
        record.update({name: _finite(value) for name, value in metrics.items()})
        _append_line(self.metrics_path, json.dumps(record, ensure_ascii=False))
        self._to_tensorboard(record)

    def truncate_metrics(self, last_steps: Mapping[str, int]) -> int:
        """For a resume: drop the records of each named phase beyond its last step; returns how many were dropped.

        ``{"train": 20}`` keeps train steps up to 20 and other phases as they are. A line cut off by a crash is dropped
        too. The TensorBoard events are written anew from what is left.
        """
        kept, dropped = [], 0
        for line in _lines(self.metrics_path):
            record = _parse(line)
            if record is None or record["step"] > last_steps.get(record["phase"], record["step"]):
                dropped += 1
            else:
                kept.append(record)
        write_atomic(self.metrics_path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept))
        self._rewrite_tensorboard(kept)
        return dropped

    def read_metrics(self, phase: str | None = None) -> list[MetricsRecord]:
        """The records of ``phase`` (default: all), in the order logged."""
        return read_metrics(self.path, phase)

    def save_episodes(self, label: str, trajectories: Sequence[Trajectory]) -> Path:
        """Write sample episodes as ``episodes/<label>.txt`` and ``.jsonl``; returns the text file."""
        text = self.episodes_path / f"{label}.txt"
        records = (json.dumps(episode_record(t)) for t in trajectories)
        write_atomic(self.episodes_path / f"{label}.jsonl", "".join(line + "\n" for line in records))
        # A lone surrogate, which a model may well produce, becomes a question mark.
        write_atomic(text, "\n\n".join(episode_text(t) for t in trajectories).encode("utf-8", errors="replace"))
        return text

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_atomic(self.summary_path, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """The content of summary.json; None before there is one."""
        try:
            return dict(json.loads(self.summary_path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise RollError(f"{self.summary_path} cannot be read ({error}); remove it or start a new run") from error

    def close(self) -> None:
        """Flush and close the TensorBoard events; safe to call twice."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with disk_errors(self.tensorboard_path):
                writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _to_tensorboard(self, record: MetricsRecord) -> None:
        if self._writer is None:
            self._writer = _summary_writer(self.tensorboard_path)
        with disk_errors(self.tensorboard_path):
            for name, value in record.items():
                if name not in ("phase", "step", "time") and isinstance(value, int | float):
                    self._writer.add_scalar(f"{record['phase']}/{name}", value, record["step"], walltime=record["time"])

    def _rewrite_tensorboard(self, records: Sequence[MetricsRecord]) -> None:
        self.close()
        old = list(self.tensorboard_path.glob("events.out.tfevents.*"))
        for record in records:
            self._to_tensorboard(record)
        if self._writer is not None:
            self._writer.flush()
        with disk_errors(self.tensorboard_path):
            for path in old:
                path.unlink(missing_ok=True)


def read_metrics(path: str | os.PathLike[str], phase: str | None = None) -> list[MetricsRecord]:
    """The records of metrics.jsonl in the run folder ``path``; a line cut off by a crash is left out."""
    parsed = (_parse(line) for line in _lines(Path(path) / "metrics.jsonl"))
    return [record for record in parsed if record is not None and phase in (None, record["phase"])]


def _append_line(path: Path, line: str) -> None:
    data = (line + "\n").encode()
    with disk_errors(path), open(path, "ab+", buffering=0) as file:
        size = file.tell()
        if size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a line that a crash cut off
                data = b"\n" + data
        try:
            written = file.write(data)
            if written != len(data):
                file.write(data[written:])
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if line]
    except FileNotFoundError:
        return []


def _parse(line: str) -> MetricsRecord | None:
    try:
        record = json.loads(line)
        return record if isinstance(record["step"], int) and isinstance(record["phase"], str) else None
    except (ValueError, KeyError, TypeError):
        return None


def _finite(value: float) -> float | str:
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    return int(number) if isinstance(value, int) else number


def _summary_writer(path: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("TensorBoard logging", "train") from error
    with disk_errors(path):
        return SummaryWriter(str(path))


@contextlib.contextmanager
def disk_errors(path: str | os.PathLike[str], saved_before: str = "nothing saved before was touched") -> Iterator[None]:
    """Turn an OSError while writing ``path`` into a RollError that says what, where and what to do."""
    try:
        yield
    except OSError as error:
        raise RollError(_explain(Path(path), error, saved_before)) from error


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Replace the file by ``content`` in one step: whole new content or the old file, never a part.

    Text is written as UTF-8. A temporary file in the same folder is synced and renamed. Raises RollError when the disk
    is full or the folder cannot be written; the temporary file is then removed and the old file is as it was.
    """
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    with disk_errors(target):
        try:
            with SyncedFile(temporary) as file:
                file.write(data)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(target.parent)


class SyncedFile:
    """A new binary file, written from start to end and synced when it is closed, without a rename: for files of a
    folder that is itself renamed. Counts and hashes what is written. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._hash = hashlib.sha256()
        self._error: OSError | None = None
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of ``data``; nothing is copied or held back."""
        view = memoryview(data)
        while view:
            try:
                written = os.write(self._handle, view[:_CHUNK])
            except OSError as error:
                self._error = error
                raise
            self._hash.update(view[:written])
            self.size += written
            view = view[written:]
        return len(data)

    def flush(self) -> None:
        """Nothing is held back; for ``torch.save``."""

    @property
    def sha256(self) -> str:
        """Of what was written so far."""
        return self._hash.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if kind is None:
                os.fsync(self._handle)
        finally:
            os.close(self._handle)
        if self._error is not None and isinstance(error, Exception):
            raise self._error  # torch.save makes a RuntimeError of it


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _explain(path: Path, error: OSError, saved_before: str) -> str:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        free = ""
        with contextlib.suppress(OSError):
            free = f" ({shutil.disk_usage(path.parent).free / 1e6:.1f} MB free)"
        return (
            f"the disk is full{free}: could not write {path} ({reason}); {saved_before}. "
            "Free some space there, or choose another disk with --output DIR; "
            "a stopped run continues with: roll-train resume RUN"
        )
    if error.errno in _FORBIDDEN:
        return (
            f"may not write {path} ({reason}); {saved_before}. "
            "Change the permissions of the folder or choose another with --output DIR"
        )
    return f"could not write {path} ({reason}); {saved_before}. Check that the folder exists and can be written"


class Interrupts(contextlib.AbstractContextManager["Interrupts"]):
    """SIGINT and SIGTERM become ``KeyboardInterrupt``, at once outside of :meth:`whole`, after it inside.

    In another thread than the main one (a notebook's, a test's) signals are left as they are.
    """

    def __init__(self) -> None:
        self.interrupted_midway = False
        """Whether an interrupt ended the body of a :meth:`whole` half-way: what it changed must not be saved."""
        self._depth = 0
        self._pending = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth and not self._pending:
            self._pending = True
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Run the body to its end before an interrupt takes effect; a second interrupt does not wait. May be nested."""
        self._depth += 1
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted_midway = True
            raise
        finally:
            self._depth -= 1
        if self._pending and not self._depth:
            self._pending = False
            raise KeyboardInterrupt
