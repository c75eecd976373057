"""The built-in engine: continuous batching over a Hugging Face model, in a thread of this process.

Requests of all running episodes share forward passes: new prompts join at any pass, finished rows leave at once. A
prompt that begins like one that was run before (the next turn of an episode, a state that another episode met, the same
rules) only pays for what is new in it. The engine has its own copy of the weights, tagged with a version. It leaves out
truncated sampling (top-p, top-k), which would bias the ratio of policies.
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
from trainer.engines.held_tokens import HeldTokens
from trainer.engines.slots import SlotCache
from trainer.model.network import LanguageModel, load_weights

__all__ = ["HFEngine"]

_GATHER_S = 0.002
"""How long an idle engine lets further requests join before its first pass."""
_LEAST_SHARED = 8
"""A beginning of fewer tokens than this is run again rather than copied."""
_PASS_WORK = 2e9
"""What a pass costs beside its tokens, in multiplications: prompts are padded to one length where that costs less."""


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
        self._held = HeldTokens()  # token ids whose keys and values a slot holds
        self._free = dict.fromkeys(range(max_running))  # the one that was left first comes first
        self._pass_tokens = _PASS_WORK / sum(p.numel() for p in network.parameters())
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
            load_weights(self._network, weights.items(), "the update")
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
        admitted: list[_Request] = []
        now = time.monotonic()
        with self._wake:
            while self._queue and len(admitted) < len(self._free):
                request = self._queue.popleft()
                if request.deadline < now:
                    self._expire(request)
                    continue
                request.version = self._version
                admitted.append(request)
            self._running.extend(admitted)
        if not admitted:
            return
        # Requests with the same prompt (the start of a group, a state met by several of its episodes) share one run.
        first: dict[tuple[int, ...], int] = {}
        leaders: list[_Request] = []
        for request in admitted:
            if first.setdefault(request.prompt, len(leaders)) == len(leaders):
                leaders.append(request)
        sources = [first[request.prompt] for request in admitted]
        kept, copies = [], []
        for request in leaders:
            shared, source = self._take_slot(request)
            kept.append(shared)
            if source is not None:
                copies.append((source, request.slot))
        if copies:
            self._cache.copy(copies, max(kept))
        logits = self._prefill(leaders, kept)
        for request in leaders:
            self._held.put(request.slot, request.prompt)
        homes = [leaders[s].slot for s in sources]  # a leader that ends with this token leaves its slot
        self._sample(admitted, logits, sources)
        followers = [(home, r) for home, r in zip(homes, admitted, strict=True) if r.slot < 0 and not r.future.done()]
        for _, request in followers:
            self._take_unused_slot(request)
        if followers:
            self._cache.copy([(home, r.slot) for home, r in followers], max(len(r.prompt) for _, r in followers))

    def _prefill(self, requests: Sequence[_Request], kept: Sequence[int]) -> torch.Tensor:
        """Logits [N, V] after the prompts, of which the slots hold the first ``kept`` tokens."""
        parts = _alike([len(r.prompt) - k for r, k in zip(requests, kept, strict=True)], self._pass_tokens)
        results = [
            self._forward(
                [requests[i].slot for i in part],
                [requests[i].prompt[kept[i] :] for i in part],
                [kept[i] for i in part],
            )
            for part in parts
        ]
        order = torch.tensor([i for part in parts for i in part], device=self._device)
        return torch.cat(results)[order.argsort()]

    def _take_slot(self, request: _Request) -> tuple[int, int | None]:
        """Choose a free slot; returns how many leading tokens of the prompt are known, and the slot to copy them from
        unless it is this one."""
        source, shared = self._held.longest(request.prompt)
        if shared < _LEAST_SHARED:
            self._take_unused_slot(request)
            return 0, None
        kept = min(shared, len(request.prompt) - 1)  # at least one token must be run, to have logits
        if source in self._free and shared == len(self._held.ids(source)):
            del self._free[source]
            request.slot = source
            return kept, None
        self._take_unused_slot(request)
        return kept, None if source == request.slot else source

    def _take_unused_slot(self, request: _Request) -> None:
        """Take a free slot that holds nothing, else the one that was left first."""
        slot = next((s for s in self._free if s not in self._held), next(iter(self._free)))
        del self._free[slot]
        self._held.drop(slot)
        request.slot = slot

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
        # A row that is over repeats its last token in its place: no place is read or written that no row asked for.
        steps = np.minimum(np.arange(width), counts[:, None] - 1)
        flat = np.concatenate([np.asarray(t, dtype=np.int64) for t in tokens])
        ids = flat[(np.cumsum(counts) - counts)[:, None] + steps]
        visible = int((starts + counts).max())
        places = torch.from_numpy(starts[:, None] + steps).to(self._device)
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

    def _sample(self, rows: Sequence[_Request], logits: torch.Tensor, sources: Sequence[int] | None = None) -> None:
        """Draw one id per row by inverting its cumulative distribution, and let finished rows go; ``sources`` says
        which of the ``logits`` [U, V] are a row's, in order when left out."""
        temperatures = [row.sampling.temperature for row in rows]
        # Which distribution a row draws from, and its place among those that do: what several draw from is made once.
        which, column = np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64)
        if sources is not None:
            made: dict[tuple[int, float], int] = {}
            which = np.array([made.setdefault(key, len(made)) for key in zip(sources, temperatures, strict=True)])
            order = which.argsort(kind="stable")
            column[order] = np.arange(len(rows)) - np.searchsorted(which[order], which[order])
            logits = logits[torch.tensor([source for source, _ in made], device=logits.device)]
            temperatures = [temperature for _, temperature in made]
        uniform = np.zeros((len(temperatures), int(column.max()) + 1))
        uniform[which, column] = [row.draws[len(row.ids)] for row in rows]
        temperature = torch.tensor(temperatures, dtype=torch.float64, device=logits.device)
        greedy = temperature == 0
        logp = (logits.double() / torch.where(greedy, 1.0, temperature)[:, None]).log_softmax(-1)
        cumulative = logp.exp().cumsum(-1)
        draws = torch.from_numpy(uniform).to(logits.device)
        drawn = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)
        ids = torch.where(greedy[:, None], logp.argmax(-1)[:, None], drawn.clamp(max=logp.shape[-1] - 1))
        chosen = logp.gather(1, ids)
        tokens, logprobs = (x.numpy(force=True)[which, column].tolist() for x in (ids, chosen))
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
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
            ids = (request.prompt + tuple(request.ids))[:-1]
            self._held.drop(request.slot)
            if hold and request.version == self._version and not self._held.has(ids):
                self._held.put(request.slot, ids)
            self._free[request.slot] = None
            request.slot = -1
        if request.future.done():
            return
        if isinstance(result, Completion):
            request.future.set_result(result)
        else:
            request.future.set_exception(result)


def _alike(sizes: Sequence[int], least: float) -> list[list[int]]:
    """Indices of ``sizes`` in parts, largest first: parted where this saves ``least`` of padding or more.

    Sizes 1, 9, 8, 1 with 10: [1, 2], [0, 3].
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    parts = [order[:1]]
    for place, i in enumerate(order[1:], 1):
        if (sizes[parts[-1][0]] - sizes[i]) * (len(order) - place) >= least:
            parts.append([])
        parts[-1].append(i)
    return parts
