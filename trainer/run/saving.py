"""Saves the checkpoints of a run: as the learner's place asks, by this process or by its ranks, and beside the training
where ``checkpoint.asynchronous`` says so. Puts what they hold back.

One checkpoint is written at a time. An error of one that is written in the background is raised at the next save, or at
the end of the run; every earlier checkpoint is then still there.
"""

from __future__ import annotations

import contextlib
import copy
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from roll_envs.errors import CheckpointError
from trainer.algorithms.shaping import AlgorithmState
from trainer.cluster.learner_ranks import LearnerRanks
from trainer.config.schema import CheckpointConfig
from trainer.learner import Critic, Learner
from trainer.learner.snapshot import kept_state
from trainer.model.network import WeightSource
from trainer.run.checkpoint import CheckpointState, Shares, prepare, restore_random, save_checkpoint
from trainer.run.folder import UNFINISHED, disk_errors
from trainer.run.update import StepParts


class Saver(contextlib.AbstractContextManager["Saver"]):
    """Leaving it waits for what is being written."""

    def __init__(self, folder: Path, settings: CheckpointConfig, ranks: LearnerRanks) -> None:
        """Checkpoints are in ``folder``."""
        self._folder, self._settings, self._ranks = folder, settings, ranks
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()
        self._error: Exception | None = None
        self._seconds = 0.0

    def save(self, state: CheckpointState, optimized: Mapping[str, Learner | Critic]) -> None:
        """Save ``state`` and what the optimisers of ``optimized`` know. When this returns, weights and optimisers may
        change. Raises :class:`RollError` where this checkpoint, or the one before, could not be written."""
        started = time.monotonic()
        try:
            self.wait()
            prepare(self._folder)
            networks = ["model", *state.others]
            snapshot = self._ranks.snapshot(self._folder, networks, [*optimized])
            shares = None
            if snapshot is not None:
                state = replace(state, optimizer=snapshot.states)
                folder = self._folder / f"{UNFINISHED}shares-{secrets.token_hex(4)}"
                with disk_errors(folder, "every earlier checkpoint is still there"):
                    folder.mkdir()
                shares = Shares(folder=folder, wait=partial(snapshot.wait, folder, self._given_up))
                snapshot.write(folder)
            else:
                state = replace(state, optimizer={name: part.optimizer_state() for name, part in optimized.items()})
                if self._settings.asynchronous:
                    state = _copied(state)
            if self._settings.asynchronous:
                state = replace(state, progress=copy.deepcopy(dict(state.progress)))
                self._thread = threading.Thread(
                    target=self._write_beside, args=(state, shares), name="checkpoint", daemon=True
                )
                self._thread.start()
            else:
                self._write(state, shares)
        finally:
            self._seconds += time.monotonic() - started

    def wait(self) -> None:
        """Wait for the checkpoint that is being written. Raises :class:`RollError` where it could not be."""
        if self._thread is not None:
            try:
                self._thread.join()
            except BaseException:  # a second Ctrl-C
                self._given_up.set()
                raise
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def take_seconds(self) -> float:
        """How long saving has held the training up since this was asked before."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _write(self, state: CheckpointState, shares: Shares | None) -> None:
        settings = self._settings
        try:
            save_checkpoint(self._folder, state, keep=settings.keep, keep_best=settings.keep_best, shares=shares)
        finally:
            if shares is not None:
                shutil.rmtree(shares.folder, ignore_errors=True)

    def _write_beside(self, state: CheckpointState, shares: Shares | None) -> None:
        try:
            self._write(state, shares)
        except Exception as error:  # raised in the thread of the run
            self._error = error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with noting(error) if isinstance(error, Exception) else contextlib.nullcontext():
            self.wait()


def load_parts(parts: StepParts, state: CheckpointState, ranks: LearnerRanks | None = None) -> StepParts:
    """``parts`` that were made of a checkpoint's weights, with what it saved beside them; random states are put back
    too.

    Raises :class:`CheckpointError` where they are others than those that were saved.
    """
    for name in parts.others:
        if name not in state.others:
            raise CheckpointError(
                f"the checkpoint has no {name}, which the configuration asks for; resume with the advantage.name, "
                "loss.kl_coef and reward.kl_coef it was saved with"
            )
    try:
        if ranks is None or state.files is None or not ranks.restore(state.files, [*parts.others], [*parts.optimized]):
            for name, trained in parts.optimized.items():
                trained.load_optimizer_state(state.optimizer[name])
            for name, part in parts.others.items():
                part.load_weights(state.others[name]())
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint does not fit the configuration's optimiser: {error}") from error
    try:
        remembered = AlgorithmState.from_dict(state.progress["algorithm"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint does not say what the algorithm remembers ({error})") from error
    restore_random(state.random)
    return replace(parts, state=remembered)


@contextlib.contextmanager
def noting(first: Exception) -> Iterator[None]:
    """Save what can be saved after the error ``first``: it stays the one to show, with a note where the body fails."""
    try:
        yield
    except Exception as error:
        if error is not first:  # lost ranks raise the same again
            first.add_note(f"a checkpoint could not be saved: {error}")


def _copied(state: CheckpointState) -> CheckpointState:
    """``state`` with tensors of its own."""

    def held(source: WeightSource) -> WeightSource:
        tensors = [(name, tensor.detach().to("cpu", copy=True)) for name, tensor in source()]
        return lambda: iter(tensors)

    return replace(
        state,
        model=held(state.model),
        others={name: held(source) for name, source in state.others.items()},
        optimizer=kept_state(dict(state.optimizer), lambda _: True),
    )
