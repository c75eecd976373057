"""The built-in engine: continuous batching over a Hugging Face model, in a thread of this process.

Requests of all running episodes share forward passes: new prompts join at any pass, finished ones leave at once, and
nothing is run twice with the same weights (:mod:`trainer.engines.prefix_cache`). The engine has its own copy of the
weights, tagged with a version. It leaves out truncated sampling (top-p, top-k), which would bias the ratio of policies.
"""

from __future__ import annotations

import contextlib
import copy
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from roll_envs.errors import DeadlineExceededError, EngineError
from roll_envs.types import Completion, FinishReason, SamplingParams, VersionSpan
from trainer.engines import Capabilities, Engine, check_request
from trainer.engines.prefix_cache import CachedNetwork, OpenSequence
from trainer.model.forward import fitting
from trainer.model.network import LanguageModel, choose_device

_GATHER_S = 0.002
"""How long an idle engine lets further requests join before its first pass."""
DRAWN_AT_ONCE = 2**20
"""Probabilities that are worked on at once: few enough for the cache of a CPU."""


@dataclass(slots=True, eq=False)
class _Request:
    """A request from :meth:`HFEngine.submit` to its answer."""

    sampling: SamplingParams
    timeout_s: float
    deadline: float
    sequence: OpenSequence
    """The prompt and what was sampled."""
    future: Future[Completion] = field(default_factory=Future)
    draws: Sequence[float] = ()
    """For each id that it may sample a number from 0 to 1."""
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    in_spans: int = 0
    """How many of the sampled ids ``spans`` covers; 0 as long as one version sampled them all."""

    def end_span(self, version: int) -> None:
        """Note that ``version`` sampled the ids that no span covers yet."""
        new = len(self.logprobs) - self.in_spans
        if new:
            self.spans.append(VersionSpan(version, new))
            self.in_spans += new


class HFEngine(Engine):
    """A :class:`roll_envs.policy.Policy` over a causal language model.

    ``max_running`` requests share one pass; the others queue. ``max_tokens`` bounds prompt + completion. Sampling is
    a function of (weights, prompt, ``sampling.seed``): it does not depend on which requests share the pass, up to the
    rounding of the matrix products.
    """

    capabilities = Capabilities(
        logprobs=True, updates_in_flight=True, version_spans=True, prefix_cache=True, pause=True, abort=True
    )

    def __init__(
        self, model: LanguageModel, *, max_running: int = 128, max_tokens: int = 1024, device: str = "auto"
    ) -> None:
        network = copy.deepcopy(model.network).eval().requires_grad_(False).to(choose_device(device))
        self._network = CachedNetwork(network, max_running)
        self._max_tokens, self._max_running = max_tokens, max_running
        self._bits = np.random.Philox(key=0)
        self._generator, self._bits_state = np.random.Generator(self._bits), self._bits.state
        self._queue: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._paused = False
        self._closed = False
        self._visitors = 0  # other threads that wait for their turn between two passes
        self._fault: BaseException | None = None
        self._wake = threading.Condition()
        self._pass_lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="hf-engine", daemon=True)
        self._thread.start()

    # -- the contract ------------------------------------------------------------------------------------------------

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        """Queue a request and return at once; the future holds the completion or the error."""
        vocabulary = self._network.vocabulary
        prompt = check_request(prompt_ids, sampling, vocabulary=vocabulary, max_tokens=self._max_tokens)
        request = _Request(sampling, timeout_s, time.monotonic() + timeout_s, OpenSequence(prompt))
        with self._wake:
            self._raise_if_unusable()
            self._queue.append(request)
            self._wake.notify()
        return request.future

    def update_weights(self, source: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take new weights between two passes.

        Running requests go on with them, and their next log-probs are those of the new weights. What was run for them
        is not run again: they keep the keys and values that older weights made, which no other request reads. After an
        update that fails all go on with the weights of before, which the machine's memory keeps meanwhile.
        """
        with self._between_passes():
            with self._wake:
                self._raise_if_unusable()
            own = self._network.network.state_dict(keep_vars=True)
            before: list[tuple[torch.Tensor, torch.Tensor]] = []
            try:
                for name, value in fitting(self._network.network, source, "the update", error=EngineError):
                    before.append((own[name], own[name].to("cpu", copy=True)))
                    own[name].copy_(value)
            except BaseException:
                for weight, old in reversed(before):
                    weight.copy_(old)
                raise
            for request in self._running:
                request.end_span(self.version)
            self._network.forget([request.sequence for request in self._running])
            self.version = version

    def pause(self) -> None:
        """Stop between two passes; requests are kept."""
        with self._wake:
            self._paused = True
        with self._between_passes():
            return

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        with self._wake:
            self._paused = False
            self._wake.notify()

    def abort(self) -> None:
        """End every queued and running request with ``finish="abort"``, keeping what was sampled so far."""
        with self._between_passes():
            for request in self._take_all():
                self._finish(request, "abort")

    def health(self) -> None:
        """Raise :class:`EngineError` when the engine cannot answer."""
        with self._wake:
            self._raise_if_unusable()

    def close(self) -> None:
        """Abort everything and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self.abort()
        self._thread.join(timeout=10)

    # -- the loop ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _between_passes(self) -> Iterator[None]:
        """Run between two passes. The loop lets waiting threads go first: a lock alone is not fair."""
        with self._wake:
            self._visitors += 1
        try:
            with self._pass_lock:
                yield
        finally:
            with self._wake:
                self._visitors -= 1
                self._wake.notify()

    def _loop(self) -> None:
        try:
            with torch.inference_mode():
                while self._wait_for_work():
                    with self._pass_lock:
                        if self._paused or self._closed:
                            continue
                        self._admit()
                        if self._running:
                            self._sample()
        except BaseException as error:  # every waiting episode must learn of it
            self._fault = error
            self._fail_all(EngineError(f"the engine stopped: {type(error).__name__}: {error}"))

    def _take_all(self) -> list[_Request]:
        """All requests, which are then to be answered."""
        with self._wake:
            waiting = [*self._running, *self._queue]
            self._running.clear()
            self._queue.clear()
        return waiting

    def _fail_all(self, error: EngineError) -> None:
        for request in self._take_all():
            self._release(request, error)

    def _raise_if_unusable(self) -> None:
        if self._fault is not None:
            raise EngineError(f"the engine stopped: {type(self._fault).__name__}: {self._fault}") from self._fault
        if self._closed:
            raise EngineError("the engine is closed")

    def _wait_for_work(self) -> bool:
        """Block until there is something to do; ``False`` once closed."""
        with self._wake:
            idle = not self._running
            while not self._closed and (self._paused or self._visitors or not (self._queue or self._running)):
                self._wake.wait()
        seen = 0
        while idle and not self._closed and seen < len(self._queue) < self._max_running:
            seen = len(self._queue)
            time.sleep(_GATHER_S)  # not a wait for the condition, which every request would wake
        return not self._closed

    def _admit(self) -> None:
        """Let queued requests run, as many as there is room for."""
        with self._wake:
            room = self._max_running - len(self._running)
            taken = [self._queue.popleft() for _ in range(min(room, len(self._queue)))]
            self._running += taken
        now = time.monotonic()
        for request in taken:
            if request.deadline < now or request.future.cancelled():
                self._running.remove(request)
                self._expire(request)
            else:
                self._network.open(request.sequence)
                request.draws = self._draw(request.sampling)

    def _draw(self, sampling: SamplingParams) -> Sequence[float]:
        """A number from 0 to 1 for each id: those of a fresh ``Philox(key=seed)``, which would take longer to make."""
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._bits_state["state"]["key"][:] = seed % 2**64, seed >> 64
        self._bits.state = self._bits_state
        return list(self._generator.random(sampling.max_new_tokens))

    def _sample(self) -> None:
        """Sample one id for every running request, and answer those that are finished."""
        drawn = self._next_ids(self._running)
        still, now = [], time.monotonic()
        for request, (token, logprob) in zip(self._running, drawn, strict=True):
            request.logprobs.append(logprob)
            request.sequence.ids.append(token)
            if not math.isfinite(logprob):
                reason = f"the model's logits are not finite (weight version {self.version})"
                self._release(request, EngineError(reason))
            elif token in request.sampling.stop_ids:
                self._finish(request, "stop")
            elif len(request.logprobs) >= request.sampling.max_new_tokens:
                self._finish(request, "length")
            elif request.deadline < now:
                self._expire(request)
            elif len(request.logprobs) % 8 == 0 and request.future.cancelled():  # asking takes a lock: not every time
                self._finish(request, "abort")
            else:
                self._network.extend(request.sequence)
                still.append(request)
        self._running = still

    def _next_ids(self, requests: Sequence[_Request]) -> Iterable[tuple[int, float]]:
        """For each of ``requests`` an id and its log-prob."""
        logits, sources = self._network.logits([request.sequence for request in requests])
        # Requests that share logits and temperature draw from one distribution: with a vocabulary of 50,000 it takes as
        # long to make as a token takes in a model of 100 million parameters.
        temperatures = np.array([request.sampling.temperature for request in requests])
        pairs, kind, counts = np.unique(sources + 1j * temperatures, return_inverse=True, return_counts=True)
        column = np.empty_like(kind)
        column[kind.argsort(kind="stable")] = np.arange(len(kind)) - np.repeat(counts.cumsum() - counts, counts)
        uniform = np.zeros((len(pairs), counts.max()))
        uniform[kind, column] = [request.draws[len(request.logprobs)] for request in requests]
        tensor = partial(torch.tensor, device=logits.device)
        rows = len(pairs) if logits.is_cuda else max(1, DRAWN_AT_ONCE // logits.shape[1])
        parts = [slice(start, start + rows) for start in range(0, len(pairs), rows)]
        drawn = [
            choose_ids(
                logits.index_select(0, tensor(pairs[part].real, dtype=torch.long)),
                tensor(pairs[part].imag),
                tensor(uniform[part]),
            )
            for part in parts
        ]
        ids, logprobs = (torch.cat(part).numpy(force=True)[kind, column] for part in zip(*drawn, strict=True))
        return zip(ids.tolist(), logprobs.tolist(), strict=True)

    def _finish(self, request: _Request, reason: FinishReason) -> None:
        request.end_span(self.version)
        completion = Completion(
            ids=tuple(request.sequence.ids[len(request.sequence.ids) - len(request.logprobs) :]),
            logprobs=tuple(request.logprobs),
            finish=reason,
            weight_version=min((span.version for span in request.spans), default=self.version),
            spans=tuple(request.spans) if len(request.spans) > 1 else (),  # one span is made by Completion itself
        )
        self._release(request, completion)

    def _expire(self, request: _Request) -> None:
        self._release(request, DeadlineExceededError(self.answer_name, request.timeout_s))

    def _release(self, request: _Request, result: Completion | Exception) -> None:
        self._network.close(request.sequence)
        with contextlib.suppress(InvalidStateError):  # the caller cancelled it
            if isinstance(result, Completion):
                request.future.set_result(result)
            else:
                request.future.set_exception(result)


def choose_ids(
    logits: torch.Tensor, temperatures: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and their log-probs [U, K]: from each of the ``logits`` [U, V] at its one of ``temperatures`` [U], an id for
    each of the ``uniform`` numbers [U, K] from 0 to 1. In float64: the inverse of a cumulative distribution of many
    small probabilities needs it."""
    greedy = temperatures == 0
    logp = (logits.double() / torch.where(greedy, 1.0, temperatures)[:, None]).log_softmax(-1)
    cumulative = logp.exp().cumsum(-1)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    ids = torch.where(greedy[:, None], logp.argmax(-1)[:, None], drawn.clamp(max=logp.shape[-1] - 1))
    return ids, logp.gather(1, ids)
