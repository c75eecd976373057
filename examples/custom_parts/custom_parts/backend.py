"""A learner backend: the plain PyTorch one, with the speed of every optimiser step among its metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from trainer.config.parts import BACKENDS
from trainer.learner import BackendPart, Learner, TorchSettings


class TimedSettings(TorchSettings):
    """Keys of the section ``learner`` that this backend reads: PyTorch's and one of its own."""

    warn_s: float = Field(60.0, gt=0)
    """Optimiser steps that take longer are counted in learner/slow_steps."""


class TimedLearner:
    """Passes everything on to ``inner``."""

    def __init__(self, inner: Learner, warn_s: float) -> None:
        self._inner, self._warn_s = inner, warn_s

    def step(self, batches: Sequence[Any], denominators: Any, *, lr: float, on_policy: bool = False) -> Any:
        started = time.monotonic()
        metrics, before = self._inner.step(batches, denominators, lr=lr, on_policy=on_policy)
        seconds = time.monotonic() - started
        own = {"learner/step_s": seconds, "learner/slow_steps": float(seconds > self._warn_s)}
        return {**metrics, **own}, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def make_timed(model: Any, *, settings: TimedSettings, **arguments: Any) -> Learner:
    """The PyTorch learner, timed."""
    plain = TorchSettings(**settings.model_dump(exclude={"warn_s"}))
    return TimedLearner(BACKENDS.find("torch").make(model, settings=plain, **arguments), settings.warn_s)  # type: ignore[return-value]


TIMED = BackendPart(make=make_timed, settings=TimedSettings)
