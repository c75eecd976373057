"""The built-in engine: continuous batching over a Hugging Face model, in a thread of this process.

Requests of all running episodes share forward passes: new prompts join at any pass, finished rows leave at once. A
prompt that continues what a slot already holds (the next turn of the same episode) only pays for its new tokens. The
engine has its own copy of the weights, tagged with a version. It leaves out truncated sampling (top-p, top-k), which
would bias the ratio of policies.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field

import numpy as np
import torch

from roll_envs.errors import DeadlineExceededError, EngineError
from roll_envs.types import Completion, FinishReason, SamplingParams
from trainer.engines.slots import SlotCache
from trainer.model import LanguageModel

__all__ = ["HFEngine"]

_GATHER_S = 0.002
"""How long an idle engine lets further requests join before its first pass."""


@dataclass(slots=True, eq=False)
class _Request:
    prompt: tuple[int, ...]
    sampling: SamplingParams
    future: Future[Completion]
    timeout_s: float
    deadline: float
    draws: np.ndarray
    stop_ids: frozenset[int]
    slot: int = -1
    version: int = 0
    """Weight version when it was admitted: the oldest that sampled any of its ids."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class HFEngine:
    """A :class:`roll_envs.policy.Policy` over a causal language model.

    ``max_running`` requests share one pass; the others queue. ``max_tokens`` bounds prompt + completion. Sampling is
    a function of (weights, prompt, ``sampling.seed``): it does not depend on which requests share the pass, up to the
    rounding of the matrix products.
    """

    def __init__(self, model: LanguageModel, *, max_running: int = 128, max_tokens: int = 1024) -> None:
        network = copy.deepcopy(model.network).eval().requires_grad_(False)
        self._network = network
        self._device = next(network.parameters()).device
        self._max_tokens = max_tokens
        self._cache = SlotCache(network.config, max_running, 64, next(network.parameters()).dtype, self._device)
        self._held: dict[tuple[int, ...], int] = {}  # token ids whose keys and values a free slot holds
        self._free: set[int] = set(range(max_running))
        self._vocabulary = int(network.get_input_embeddings().num_embeddings)
        self._queue: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._version = 0
        self._paused = False
        self._closed = False
        self._intruders = 0  # other threads that want to come in between two passes
        self._fault: BaseException | None = None
        self._wake = threading.Condition()
        self._pass_lock = threading.Lock()
        self.passes = 0
        self.tokens_computed = 0
        self._thread = threading.Thread(target=self._loop, name="hf-engine", daemon=True)
        self._thread.start()

    # -- the contract ------------------------------------------------------------------------------------------------

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float) -> Completion:
        """Sample a continuation; blocks the calling thread.

        Raises :class:`DeadlineExceededError` after ``timeout_s`` and :class:`EngineError` when the engine is closed
        or broken, or the request does not fit.
        """
        future = self.submit(prompt_ids, sampling, timeout_s=timeout_s)
        try:
            return future.result(timeout=timeout_s)
        except FutureTimeoutError:
            raise DeadlineExceededError("the engine's answer", timeout_s) from None

    def submit(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float) -> Future[Completion]:
        """Queue a request and return at once; the future holds the completion or the error."""
        prompt = tuple(prompt_ids)
        if not prompt:
            raise EngineError("the prompt is empty; a request needs at least one token id")
        if not 0 <= min(prompt) <= max(prompt) < self._vocabulary:
            raise EngineError(
                f"the prompt has token ids from {min(prompt)} to {max(prompt)}; the model knows 0 to "
                f"{self._vocabulary - 1}. Prompt and model must use the same tokenizer"
            )
        if sampling.max_new_tokens < 1 or not 0 <= sampling.temperature < math.inf:
            raise EngineError(
                f"max_new_tokens {sampling.max_new_tokens}, temperature {sampling.temperature}: "
                "allowed are 1 or more, and 0 or more"
            )
        if len(prompt) + sampling.max_new_tokens > self._max_tokens:
            raise EngineError(
                f"prompt of {len(prompt)} tokens + max_new_tokens {sampling.max_new_tokens} exceed "
                f"engine.max_tokens {self._max_tokens}; raise it or shorten the prompt"
            )
        generator = np.random.Generator(np.random.Philox(key=sampling.seed))
        request = _Request(
            prompt=prompt,
            sampling=sampling,
            future=Future(),
            timeout_s=timeout_s,
            deadline=time.monotonic() + timeout_s,
            draws=generator.random(sampling.max_new_tokens),
            stop_ids=frozenset(sampling.stop_ids),
        )
        with self._wake:
            self._raise_if_unusable()
            self._queue.append(request)
            self._wake.notify()
        return request.future

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Take new weights between two passes; running requests go on with them, caches of old ones are dropped.

        A completion that several versions sampled carries the oldest of them.
        """
        with self._between_passes():
            self._raise_if_unusable()
            self._network.load_state_dict(weights)
            self._version = version
            self._held.clear()

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
        with self._between_passes(), self._wake:
            for request in [*self._running, *self._queue]:
                self._finish(request, "abort")
            self._running.clear()
            self._queue.clear()

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._version

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
        """Come in between two passes. The loop lets others go first: a lock alone would not, it is not fair."""
        with self._wake:
            self._intruders += 1
        try:
            with self._pass_lock:
                yield
        finally:
            with self._wake:
                self._intruders -= 1
                self._wake.notify()

    def _raise_if_unusable(self) -> None:
        if self._fault is not None:
            raise EngineError(f"the engine stopped: {type(self._fault).__name__}: {self._fault}") from self._fault
        if self._closed:
            raise EngineError("the engine is closed")

    def _loop(self) -> None:
        try:
            with torch.inference_mode():
                while self._wait_for_work():
                    with self._pass_lock:
                        if self._paused or self._closed:
                            continue
                        self._admit()
                        if self._running:
                            self._decode()
        except BaseException as error:  # every waiting episode must learn of it
            with self._wake:
                self._fault = error
                waiting = [*self._running, *self._queue]
                self._running.clear()
                self._queue.clear()
            for request in waiting:
                if not request.future.done():
                    request.future.set_exception(EngineError(f"the engine stopped: {type(error).__name__}: {error}"))

    def _wait_for_work(self) -> bool:
        """Block until there is something to do; ``False`` once closed."""
        with self._wake:
            idle = not self._running
            while not self._closed and (self._paused or self._intruders or not (self._queue or self._running)):
                self._wake.wait()
            seen = 0
            while idle and not self._closed and seen < len(self._queue) < len(self._free):
                seen = len(self._queue)
                self._wake.wait(timeout=_GATHER_S)
            return not self._closed

    def _admit(self) -> None:
        """Give queued requests a slot and run their prompts."""
        admitted: list[tuple[_Request, int]] = []
        now = time.monotonic()
        with self._wake:
            while self._queue and self._free:
                request = self._queue.popleft()
                if request.deadline < now:
                    self._expire(request)
                    continue
                self._running.append(request)
                request.version = self._version
                admitted.append((request, self._take_slot(request)))
        if not admitted:
            return
        # Requests with the same prompt (the start of a group, a state met by several of its episodes) share one run.
        first: dict[tuple[int, ...], int] = {}
        leaders: list[tuple[_Request, int]] = []
        for request, kept in admitted:
            if first.setdefault(request.prompt, len(leaders)) == len(leaders):
                leaders.append((request, kept))
        requests = [r for r, _ in admitted]
        sources = [first[r.prompt] for r in requests]
        logits = self._forward(
            [r.slot for r, _ in leaders],
            [r.prompt[kept:] for r, kept in leaders],
            [kept for _, kept in leaders],
        )
        if len(leaders) < len(requests):
            pairs = [(leaders[s][0].slot, r.slot) for s, r in zip(sources, requests, strict=True)]
            copies = [pair for pair in pairs if pair[0] != pair[1]]
            self._cache.copy(copies, max(len(r.prompt) for r in requests))
        self._sample(requests, logits[torch.tensor(sources, device=self._device)])

    def _take_slot(self, request: _Request) -> int:
        """Choose a free slot; returns how many leading tokens of the prompt it holds already."""
        slot, kept = -1, 0
        for length in sorted({len(held) for held in self._held}, reverse=True):
            # At least one token must be run, to have logits.
            if length < len(request.prompt) and request.prompt[:length] in self._held:
                slot, kept = self._held.pop(request.prompt[:length]), length
                break
        else:
            unused = self._free.difference(self._held.values())
            slot = min(unused) if unused else self._held.pop(next(iter(self._held)))  # the oldest
        self._free.remove(slot)
        request.slot = slot
        return kept

    def _decode(self) -> None:
        """One token for every running row."""
        rows = self._running
        lengths = [len(r.prompt) + len(r.ids) - 1 for r in rows]
        logits = self._forward([r.slot for r in rows], [(r.ids[-1],) for r in rows], lengths)
        self._sample(rows, logits)

    def _forward(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], offsets: Sequence[int]) -> torch.Tensor:
        """Logits [N, V] after the last of the new ``tokens`` of each row, which start at place ``offsets``."""
        counts = np.fromiter((len(t) for t in tokens), dtype=np.int64, count=len(tokens))
        width = int(counts.max())
        starts = np.asarray(offsets, dtype=np.int64)
        ids = np.zeros((len(tokens), width), dtype=np.int64)
        steps = np.arange(width)
        ids[steps < counts[:, None]] = np.concatenate([np.asarray(t, dtype=np.int64) for t in tokens])
        places_np = starts[:, None] + steps
        visible = int((starts + counts).max())
        # A padded step writes behind its row's end, where nothing reads it before it is overwritten.
        visible = max(visible, int(places_np.max()) + 1)
        places = torch.from_numpy(places_np).to(self._device)
        self._cache.begin(torch.tensor(slots, device=self._device), places, visible)
        mask = torch.arange(visible, device=self._device)[None, None, :] <= places[:, :, None]
        hidden = self._network.base_model(
            input_ids=torch.from_numpy(ids).to(self._device),
            attention_mask=mask[:, None],
            position_ids=places,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        last = hidden[torch.arange(len(tokens)), torch.from_numpy(counts - 1).to(self._device)]
        self.passes += 1
        self.tokens_computed += int(counts.sum())
        return self._network.lm_head(last)  # type: ignore[no-any-return]

    def _sample(self, rows: Sequence[_Request], logits: torch.Tensor) -> None:
        """Draw one id per row by inverting its cumulative distribution, and let finished rows go."""
        temperature = torch.tensor([r.sampling.temperature for r in rows], dtype=torch.float64, device=logits.device)
        greedy = temperature == 0
        logp = (logits.double() / torch.where(greedy, 1.0, temperature)[:, None]).log_softmax(-1)
        draws = torch.tensor([r.draws[len(r.ids)] for r in rows], dtype=torch.float64, device=logits.device)
        cumulative = logp.exp().cumsum(-1)
        drawn = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True)[:, 0]
        ids = torch.where(greedy, logp.argmax(-1), drawn.clamp(max=logp.shape[-1] - 1))
        chosen = logp.gather(1, ids[:, None])[:, 0].tolist()
        for request, token, logprob in zip(rows, ids.tolist(), chosen, strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
        still = []
        now = time.monotonic()
        for request in self._running:
            if request.logprobs and not math.isfinite(request.logprobs[-1]):
                reason = f"the model's logits are not finite (weight version {self._version})"
                self._release(request, EngineError(reason), hold=False)
            elif request.ids and request.ids[-1] in request.stop_ids:
                self._finish(request, "stop")
            elif len(request.ids) >= request.sampling.max_new_tokens:
                self._finish(request, "length")
            elif request.deadline < now:
                self._expire(request)
            else:
                still.append(request)
        self._running = still

    def _finish(self, request: _Request, reason: FinishReason) -> None:
        completion = Completion(
            ids=tuple(request.ids),
            logprobs=tuple(request.logprobs),
            finish=reason,
            weight_version=request.version if request.ids else self._version,
        )
        self._release(request, completion, hold=reason != "abort")

    def _expire(self, request: _Request) -> None:
        self._release(request, DeadlineExceededError("the engine's answer", request.timeout_s), hold=False)

    def _release(self, request: _Request, result: Completion | Exception, *, hold: bool) -> None:
        """Free the slot of a request and answer it; ``hold`` keeps what the slot holds for the next turn."""
        if request.slot >= 0:
            # Keys and values of older weights are of no use. The last sampled token was not run through the model
            # yet: the slot holds what stands before it.
            if hold and request.version == self._version:
                self._held[(request.prompt + tuple(request.ids))[:-1]] = request.slot
            self._free.add(request.slot)
            request.slot = -1
        if request.future.done():
            return
        if isinstance(result, Completion):
            request.future.set_result(result)
        else:
            request.future.set_exception(result)
