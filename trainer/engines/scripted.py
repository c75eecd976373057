"""The engine ``scripted``: answers without a model, with latencies and faults to order.

For tests of what drives an engine (schedulers, retries, deadlines, updates), and for measuring it: thousands of
requests may wait, and none costs a thread. What comes of a request follows from ``engine.seed``, the seed of its
sampling and how often it was asked, not from the order of requests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from roll_envs.errors import EngineError
from roll_envs.settings import Settings
from roll_envs.testing.fakes import AnswerTimer
from roll_envs.types import Completion, FinishReason, SamplingParams, VersionSpan
from trainer.engines import Capabilities, Engine, EnginePart, check_request

if TYPE_CHECKING:
    import torch

    from trainer.model.network import LanguageModel


class ScriptedSettings(Settings):
    """Settings of the scripted engine."""

    seed: int = Field(0, ge=0)
    """Seed of answers, latencies and faults."""
    answers: list[str] = Field(default_factory=list)
    """Texts to answer with, each as often as another; none: random ids."""
    answer_tokens: int | None = Field(None, ge=1)
    """Median length of random answers; null: as long as a request allows."""
    answer_sigma: float = Field(0.0, ge=0)
    """Deviation of the logarithm of that length; 0: all are equally long."""
    logprob: float = Field(-0.5, le=0)
    """Log-probability of every id."""
    latency_s: float = Field(0.0, ge=0)
    """Median time until the first token."""
    latency_sigma: float = Field(0.0, ge=0)
    """Deviation of the logarithm of that time (lognormal: 1 has a long tail); 0: always the same."""
    token_s: float = Field(0.0, ge=0)
    """Time per token after that."""
    error_rate: float = Field(0.0, ge=0, le=1)
    """Share of requests that end with an error."""
    hang_rate: float = Field(0.0, ge=0, le=1)
    """Share of requests that are never answered, so that they end at their deadlines."""
    garbage_rate: float = Field(0.0, ge=0, le=1)
    """Share of requests that are answered with random ids, special ones too, up to the longest answer."""
    dies_after: int | None = Field(None, ge=0)
    """Requests after which the engine dies for good; null: never."""

    @model_validator(mode="after")
    def _rates_are_shares(self) -> Self:
        total = self.error_rate + self.hang_rate + self.garbage_rate
        if total > 1:
            raise ValueError(f"error_rate, hang_rate and garbage_rate add up to {total:g}; allowed: 1 at most")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What comes of a request."""

    ids: tuple[int, ...]
    finish: FinishReason
    first: float
    """When its first token is begun, by the monotonic clock."""
    error: str = ""


class ScriptedEngine(Engine):
    """A :class:`roll_envs.policy.Policy` that answers as its settings order. Weights are checked and counted."""

    answer_name = "the scripted engine's answer"
    capabilities = Capabilities(logprobs=True, updates_in_flight=True, version_spans=True, abort=True)

    def __init__(
        self,
        settings: ScriptedSettings,
        *,
        vocabulary: int,
        answers: Sequence[Sequence[int]] = (),
        check: Callable[[Iterable[tuple[str, torch.Tensor]]], None] | None = None,
        max_tokens: int = 1024,
    ) -> None:
        """``answers`` are ids without a stop id; ``check`` reads the stream of an update and raises what is wrong."""
        self._settings, self._vocabulary, self._max_tokens = settings, vocabulary, max_tokens
        self._answers, self._check = [tuple(answer) for answer in answers], check
        self.requests = 0
        """Requests that were taken."""
        self.updates = 0
        """Updates that were taken."""
        self._changes: list[tuple[float, int]] = [(0.0, 0)]  # when which version came
        self._asked: Counter[int] = Counter()
        self._problem = ""
        self._dead = self._closed = False
        self._pending: dict[Future[Completion], _Plan] = {}
        self._lock = threading.RLock()
        self._timer = AnswerTimer(self.answer_name)

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        """Take a request; without a latency it is answered when this returns."""
        check_request(prompt_ids, sampling, vocabulary=self._vocabulary, max_tokens=self._max_tokens)
        with self._lock:
            if self.requests == self._settings.dies_after and not self._dead:
                self._dead = True
                self._fail(f"the scripted engine died after {self.requests} requests, as engine.dies_after says")
            self._raise_if_unusable()
            key = self.requests if sampling.seed is None else sampling.seed
            self.requests += 1
            self._asked[key] += 1
            plan, delay_s = self._plan(sampling, [self._settings.seed, key, self._asked[key]])
            future = self._timer.answer(lambda: self._completion(plan), delay_s, timeout_s)
            self._pending[future] = plan
        future.add_done_callback(self._forget)
        return future

    def update_weights(self, source: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Check names and shapes, where the engine knows a model. Running requests go on with the new weights."""
        self._raise_if_unusable()
        if self._check is not None:
            self._check(source)
        else:
            for _ in source:
                pass
        with self._lock:
            self._changes.append((time.monotonic(), version))
            self.version = version
            self.updates += 1

    def abort(self) -> None:
        """End every request with ``finish="abort"``, keeping what was sampled so far."""
        now = time.monotonic()
        with self._lock:
            pending = list(self._pending.items())
        for future, plan in pending:
            with contextlib.suppress(InvalidStateError):
                future.set_result(self._completion(plan, until=now))

    def health(self) -> None:
        """Raise :class:`EngineError` when the engine cannot answer."""
        with self._lock:
            self._raise_if_unusable()

    def close(self) -> None:
        """End every request with :class:`EngineError`."""
        with self._lock:
            self._closed = True
        self._fail("the engine is closed")

    # -- what comes of a request -------------------------------------------------------------------------------------

    def _plan(self, sampling: SamplingParams, identity: Sequence[int]) -> tuple[_Plan, float]:
        """What comes of a request, and after how many seconds."""
        settings, rng = self._settings, np.random.default_rng(identity)
        fault = rng.random()
        first_s = settings.latency_s * float(np.exp(settings.latency_sigma * rng.standard_normal()))
        first = time.monotonic() + first_s
        errors, hangs = settings.error_rate, settings.error_rate + settings.hang_rate
        if fault < errors:
            return _Plan(
                (), "abort", first, error="an error of the scripted engine, as engine.error_rate says"
            ), first_s
        if fault < hangs:
            return _Plan((), "abort", first), float("inf")
        most, stops = sampling.max_new_tokens, sampling.stop_ids
        if fault < hangs + settings.garbage_rate:
            garbage = rng.integers(self._vocabulary, size=most).tolist()
            end = next((place for place, i in enumerate(garbage, 1) if i in stops), most)
            ids = tuple(garbage[:end])
        elif self._answers:
            ids = (*self._answers[int(rng.integers(len(self._answers)))], *stops[:1])[:most]
        else:
            ids = self._random(rng, most, stops)
        finish: FinishReason = "length" if len(ids) == most and ids[-1] not in stops else "stop"
        return _Plan(ids, finish, first), first_s + settings.token_s * len(ids)

    def _random(self, rng: np.random.Generator, most: int, stops: Sequence[int]) -> tuple[int, ...]:
        """Ids without a stop id but the last, which an answer has that is shorter than allowed."""
        median, sigma = self._settings.answer_tokens or most, self._settings.answer_sigma
        length = min(most, max(1, round(median * float(np.exp(sigma * rng.standard_normal())))))
        ids = [int(i) for i in rng.integers(self._vocabulary, size=length)]
        ids = [next(j for j in range(i, i + len(stops) + 1) if j % self._vocabulary not in stops) for i in ids]
        ids = [i % self._vocabulary for i in ids]
        return tuple(ids) if length == most else (*ids[:-1], *stops[:1])

    def _completion(self, plan: _Plan, *, until: float | None = None) -> Completion:
        """The answer, or what was sampled of it ``until`` that time."""
        if plan.error and until is None:
            raise EngineError(plan.error)
        times = plan.first + self._settings.token_s * np.arange(1, len(plan.ids) + 1)
        ids = plan.ids if until is None else plan.ids[: int((times <= until).sum())]
        changes = self._changes
        places = np.searchsorted([when for when, _ in changes], times[: len(ids)], side="right") - 1
        runs = [(changes[place][1], len(list(same))) for place, same in groupby(places.tolist())]
        return Completion(
            ids=ids,
            logprobs=(self._settings.logprob,) * len(ids),
            finish=plan.finish if until is None else "abort",
            weight_version=min((version for version, _ in runs), default=self.version),
            spans=tuple(VersionSpan(*run) for run in runs),
        )

    # -- small things ------------------------------------------------------------------------------------------------

    def _forget(self, future: Future[Completion]) -> None:
        with self._lock:
            self._pending.pop(future, None)

    def _fail(self, problem: str) -> None:
        """Answer nothing from now on, and end what is asked."""
        with self._lock:
            self._problem = problem
            pending = list(self._pending)
        for future in pending:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(EngineError(problem))

    def _raise_if_unusable(self) -> None:
        if self._problem:
            raise EngineError(self._problem)


def _make(model: LanguageModel | Path, settings: ScriptedSettings, *, max_tokens: int, device: str) -> Engine:
    from trainer.engines.sent_weights import skeleton_of
    from trainer.model.forward import load_weights
    from trainer.model.network import load_model

    loaded = load_model(model) if isinstance(model, Path) else model
    skeleton: Any = skeleton_of(loaded.network)  # has no memory: weights that are copied there are only checked
    return ScriptedEngine(
        settings,
        vocabulary=loaded.network.config.vocab_size,
        answers=[loaded.tokenizer(text, add_special_tokens=False)["input_ids"] for text in settings.answers],
        check=lambda source: load_weights(skeleton, source, "the update", error=EngineError),
        max_tokens=max_tokens,
    )


SCRIPTED = EnginePart(settings=ScriptedSettings, make=_make)
"""A fake with latencies and faults to order."""
