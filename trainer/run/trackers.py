"""Send a run's numbers and sample episodes to an experiment tracker, from what the run's folder holds.

It is done beside the training, by a command that reads what the run has written: a tracker that is slow, offline or
broken cannot touch the training, and a run of last week can be sent as well as one that goes on.
``RUN/trackers/<name>.json`` keeps the tracker's id of the run and what was sent, so that sending again, also after
``roll-train resume``, adds what is new.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from roll_envs.errors import MissingExtraError, RollError
from trainer.run.folder import RunFolder, disk_errors, read_metrics, write_atomic

__all__ = ["TRACKERS", "Home", "Sent", "Tracker", "send"]

_FOLLOW_S = 2.0
"""How often a run that goes on is looked at."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """Which run of which project a tracker is opened for."""

    project: str
    name: str
    """Name of the run: that of its folder."""
    id: str
    """What the tracker called the run the last time; empty the first time."""
    config: Mapping[str, Any]
    """Settings of the run as nested plain values."""
    logged: int
    """Records and tables that the tracker got before."""
    folder: Path | None
    """Where everything is written without the network; None: as the tracker's own settings say."""


class Tracker(Protocol):
    """One open run of a tracker."""

    id: str

    def log(self, phase: str, step: int, values: Mapping[str, float], at: float) -> None:
        """Finite numbers of a step of a phase, named ``phase/name``; ``at`` is when they were made, in seconds."""

    def episodes(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Sample episodes of ``step`` as rows with the same plain columns; ``episode`` is all of its text."""

    def close(self) -> None:
        """Write or send all that was logged."""


class _Wandb:
    """Weights & Biases. Each phase has its own axis, ``phase/step``; offline runs go up with ``wandb sync``."""

    def __init__(self, home: Home) -> None:
        import wandb

        self.id, self._wandb = home.id or secrets.token_hex(8), wandb
        place: dict[str, Any] = {} if home.folder is None else {"mode": "offline", "dir": str(home.folder)}
        quiet = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
        self._run = wandb.init(
            project=home.project,
            id=self.id,
            name=home.name,
            config=dict(home.config),
            resume="allow",
            settings=quiet,
            **place,
        )
        self._next = home.logged  # its own steps, which an offline run would begin at 0 again
        self._axes: set[str] = set()

    def log(self, phase: str, step: int, values: Mapping[str, float], at: float) -> None:
        if phase not in self._axes:
            self._axes.add(phase)
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")
        self._log({**values, f"{phase}/step": step})

    def episodes(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = list(rows[0])
        data = [[row[column] for column in columns] for row in rows]
        self._log({name: self._wandb.Table(columns=columns, data=data)})

    def close(self) -> None:
        self._run.finish()

    def _log(self, values: dict[str, Any]) -> None:
        self._run.log(values, step=self._next)
        self._next += 1


class _SwanLab:
    """SwanLab; offline runs go up with ``swanlab sync``. It has no tables: each row is a text."""

    def __init__(self, home: Home) -> None:
        import swanlab

        self.id, self._swanlab = home.id or secrets.token_hex(8), swanlab
        place: dict[str, Any] = {} if home.folder is None else {"mode": "offline", "logdir": str(home.folder)}
        swanlab.init(
            project=home.project,
            experiment_name=home.name,
            id=self.id,
            config=dict(home.config),
            resume="allow",
            **place,
        )

    def log(self, phase: str, step: int, values: Mapping[str, float], at: float) -> None:
        self._swanlab.log(dict(values), step=step)

    def episodes(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        texts = []
        for row in rows:
            caption = ", ".join(f"{key} {value}" for key, value in row.items() if key != "episode")
            texts.append(self._swanlab.Text(row["episode"], caption=caption))
        self._swanlab.log({name: texts}, step=step)

    def close(self) -> None:
        self._swanlab.finish()


class _MLflow:
    """MLflow; without the network in its folder layout, which ``mlflow ui --backend-store-uri`` shows."""

    def __init__(self, home: Home) -> None:
        if home.folder is not None:
            # Refused without it since MLflow 3.13, whose advice, a database, its small package cannot open.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        import mlflow

        self._mlflow = mlflow
        if home.folder is not None:
            mlflow.set_tracking_uri(home.folder.absolute().as_uri())
        mlflow.set_experiment(home.project)
        if home.id:
            run = mlflow.start_run(run_id=home.id)
        else:
            run = mlflow.start_run(run_name=home.name)
            mlflow.log_params(dict(_flat(home.config)))
        self.id = str(run.info.run_id)

    def log(self, phase: str, step: int, values: Mapping[str, float], at: float) -> None:
        self._mlflow.log_metrics(dict(values), step=step, timestamp=int(at * 1000))

    def episodes(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = {column: [row[column] for row in rows] for column in rows[0]}
        self._mlflow.log_table(columns, f"{name}.json")

    def close(self) -> None:
        self._mlflow.end_run()


class _Trackio:
    """trackio, which keeps its runs on this machine unless told otherwise; ``trackio show`` is its page."""

    def __init__(self, home: Home) -> None:
        if home.folder is not None:
            os.environ["TRACKIO_DIR"] = str(home.folder)  # read when it is imported
        import trackio

        self.id, self._trackio = home.name, trackio  # by which it finds the run again
        trackio.init(
            project=home.project,
            name=home.name,
            config=dict(home.config),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, phase: str, step: int, values: Mapping[str, float], at: float) -> None:
        self._trackio.log(dict(values), step=step)

    def episodes(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import pandas

        self._trackio.log({name: self._trackio.Table(dataframe=pandas.DataFrame(list(rows)))}, step=step)

    def close(self) -> None:
        self._trackio.finish()


TRACKERS: dict[str, Callable[[Home], Tracker]] = {
    "wandb": _Wandb,
    "swanlab": _SwanLab,
    "mlflow": _MLflow,
    "trackio": _Trackio,
}
"""Name -> what opens a run there. TensorBoard is not among them: each run writes its events as it goes."""


@dataclass
class Sent:
    """What a tracker has of a run."""

    project: str
    id: str = ""
    steps: dict[str, int] = field(default_factory=dict)
    """Phase -> its last step."""
    tables: list[str] = field(default_factory=list)
    count: int = 0
    """Records and tables."""


def send(
    path: str | os.PathLike[str],
    to: str,
    *,
    project: str | None = None,
    offline: bool = False,
    follow: bool = False,
    say: Callable[[str], None] = print,
) -> Sent:
    """Send what the run at ``path`` has logged since the last time to the tracker ``to``, and its sample episodes.

    ``project`` is "roll" where it is not named, or what it was the last time. ``offline`` writes to
    ``RUN/trackers/<to>/`` and uses no network. ``follow`` goes on until the run has written its summary.

    Raises:
        ConfigError: ``path`` is no run folder.
        MissingExtraError: The tracker's package is not installed.
        RollError: The tracker does not know ``to``, another project was used before, or the tracker failed, with its
            own words; what it had got before is noted, and not sent again.
    """
    if to not in TRACKERS:
        raise RollError(f"no tracker {to!r}; there are {', '.join(sorted(TRACKERS))}")
    with RunFolder.open(path) as folder:
        trackers = folder.path / "trackers"
        noted = trackers / f"{to}{'-offline' if offline else ''}.json"
        sent = _noted(noted) or Sent(project=project or "roll")
        if project not in (None, sent.project):
            raise RollError(f"this run was sent to the project {sent.project!r}; remove {noted} to send it anew")
        home = Home(
            project=sent.project,
            name=folder.path.absolute().name,
            id=sent.id,
            config=folder.config.model_dump(mode="json"),
            logged=sent.count,
            folder=trackers / to if offline else None,
        )
        with disk_errors(trackers):
            (home.folder or trackers).mkdir(parents=True, exist_ok=True)
        with _words(to):
            tracker = TRACKERS[to](home)
        sent.id = tracker.id
        try:
            seen: tuple[int, int] | None = None
            while True:
                # Looked at first, so that what was logged before the summary is sent.
                written = logged, ended = _written(folder.metrics_path), _written(folder.summary_path)
                if written != seen:
                    before, seen = sent.count, written
                    try:
                        with _words(to):
                            _send_new(folder, tracker, sent)
                    finally:
                        write_atomic(noted, json.dumps(vars(sent), indent=1) + "\n")
                    if sent.count > before:
                        say(f"{to}: {sent.count - before} records of {home.name} sent to {sent.project}")
                # A run that was resumed logs again after its summary. Clocks of files are coarse: both may be as old.
                if not follow or (ended and ended >= logged):
                    break
                time.sleep(_FOLLOW_S)
        finally:
            with _words(to):
                tracker.close()
    return sent


def _written(path: Path) -> int:
    """When the file was written last, in nanoseconds; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _send_new(folder: RunFolder, tracker: Tracker, sent: Sent) -> None:
    """Records and tables that are new; ``sent`` says at any moment what has gone out."""
    for record in read_metrics(folder.path):
        phase, step = record["phase"], record["step"]
        if step <= sent.steps.get(phase, -1):
            continue
        numbers = {
            f"{phase}/{name}": float(value)
            for name, value in record.items()
            if name not in ("phase", "step", "time") and isinstance(value, int | float)
        }
        tracker.log(phase, step, numbers, record["time"])
        sent.steps[phase] = step
        sent.count += 1
    for file in sorted(folder.episodes_path.glob("evaluation-step-*.jsonl")):
        if file.stem not in sent.tables:
            step = int(file.stem.rpartition("-")[2])
            rows = [_row(json.loads(line), step) for line in file.read_text(encoding="utf-8").splitlines()]
            if rows:
                tracker.episodes(file.stem, step, rows)
            sent.tables.append(file.stem)
            sent.count += 1


def _row(record: Mapping[str, Any], step: int) -> dict[str, Any]:
    """An episode in the columns that every tracker can show."""
    task, turns = record["task"], record["turns"]
    parts = [f"{turn['prompt_observation']}\n> {turn['text']}" for turn in turns]
    text = "\n\n".join([*parts, *(turn["observation"] for turn in turns[-1:])])
    return {
        "step": step,
        "task": f"{task['env_id']} {task['split']} {task['index']}",
        "outcome": record["outcome"],
        "success": record["success"],
        "return": record["return"],
        "turns": len(turns),
        "episode": text.encode("utf-8", errors="replace").decode(),  # a lone surrogate has no bytes to send
    }


def _noted(path: Path) -> Sent | None:
    if not path.exists():
        return None
    try:
        return Sent(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RollError(f"{path} cannot be read ({error}); remove it to send the run anew") from error


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


@contextlib.contextmanager
def _words(tracker: str) -> Iterator[None]:
    """Errors of a tracker as one message: they are the network's, the account's or the disk's."""
    try:
        yield
    except RollError:
        raise
    except ImportError as error:
        raise MissingExtraError(f"{tracker} ({error})", "trackers") from error
    except Exception as error:
        raise RollError(f"{tracker}: {error or type(error).__name__}; the run itself is untouched") from error
