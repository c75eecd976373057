"""The vLLM engine: requests by its token-in-token-out route, weights by its weight-transfer API.

The server is a process of this engine, started again with the current weights when it dies, or one that somebody else
runs. After each update a probe compares the server's log-probabilities with those of the weights that were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from roll_envs.errors import DeadlineExceededError, EngineError
from roll_envs.types import Completion, FinishReason, SamplingParams, VersionSpan
from trainer.engines import Capabilities, Engine
from trainer.engines.sent_weights import SentWeights, skeleton_of
from trainer.engines.server import ServerClient, ServerFaultError, ServerProcess
from trainer.engines.vllm import VLLMSettings
from trainer.model.network import LanguageModel, weights_of

__all__ = ["VLLMEngine", "read_completion"]

T = TypeVar("T")

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
_RESTARTS = 3
"""So many starts in a row without an answer in between, and the engine gives up."""
_LONGEST_PAUSE_S = 2.0
"""Between two tries of a request."""
_PROBE_TOKENS, _PROBED_TOKENS = 40, 8
"""Of the probe's prompt (more than one block of the prefix cache, so that old blocks would show), and its answer."""


class VLLMEngine(Engine):
    """A :class:`roll_envs.policy.Policy` over a vLLM server."""

    capabilities = Capabilities(
        logprobs=True, updates_in_flight=True, version_spans=True, prefix_cache=True, pause=True, abort=True
    )

    def __init__(
        self, model: LanguageModel, settings: VLLMSettings, *, url: str, max_tokens: int, process: ServerProcess | None
    ) -> None:
        """Bring the server at ``url`` up (``process`` starts it; None: it runs) and give it the weights of ``model``.

        Raises :class:`EngineError` when it does not come up, or does not answer as the model does.
        """
        self._settings, self._max_tokens, self._process = settings, max_tokens, process
        self._vocabulary: int = model.network.config.vocab_size
        self._skeleton = skeleton_of(model.network)
        self._name = secrets.token_hex(4)  # so that weights of another trainer are told from ours
        self._incomplete = ""  # why the weights are those of no version, after an update that failed
        self._fault = ""  # why the engine gave up
        self._restarts = 0  # in a row, without an answer in between
        self._aborts = 0  # how often everything was aborted
        self._paused = self._unproved = self._closed = False
        self._asking: set[object] = set()  # a mark for each request at the server
        self._slots = asyncio.Semaphore(settings.max_running)
        self._control = asyncio.Lock()  # updates, pauses and starts, one after the other
        self._revival: asyncio.Task[None] | None = None
        self._weights, self._label = self._read(weights_of(model.network)), self._label_of(0)
        self._client = ServerClient(url)
        try:
            self._wait(self._start())
        except BaseException:
            self.close()
            raise

    # -- the contract ------------------------------------------------------------------------------------------------

    def submit(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float) -> Future[Completion]:
        """Send a request, or let it wait for its turn; returns at once."""
        prompt = tuple(prompt_ids)
        if not prompt:
            raise EngineError("the prompt is empty; a request needs at least one token id")
        if not 0 <= min(prompt) <= max(prompt) < self._vocabulary:
            raise EngineError(
                f"the prompt has token ids from {min(prompt)} to {max(prompt)}; the model knows 0 to "
                f"{self._vocabulary - 1}. Prompt and model must use the same tokenizer"
            )
        if len(prompt) + sampling.max_new_tokens > self._max_tokens:
            raise EngineError(
                f"prompt of {len(prompt)} tokens + max_new_tokens {sampling.max_new_tokens} exceed "
                f"engine.max_tokens {self._max_tokens}; raise it or shorten the prompt"
            )
        self._raise_if_unusable()
        return self._client.start(self._answer(prompt, sampling, timeout_s))

    def update_weights(self, source: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Pause, replace the weights, forget what old ones computed, go on.

        Running requests go on with the new weights, and their prompts and what they sampled so far are run again.
        """
        self._raise_if_unusable(updating=True)
        try:
            weights = self._read(source)
            self._wait(self._update(weights, version))
        except BaseException as error:
            self._incomplete = f"the update to weight version {version} failed and must be repeated: {error}"
            self._wait(self._let_go())
            raise
        self.version, self._incomplete = version, ""

    def pause(self) -> None:
        """Stop sampling; the server keeps the requests."""
        self._wait(self._pause())

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._wait(self._resume())

    def abort(self) -> None:
        """End every request with ``finish="abort"``, keeping what was sampled so far."""
        self._wait(self._abort())

    def health(self) -> None:
        """Raise :class:`EngineError` when the engine cannot answer."""
        self._raise_if_unusable()
        if not self._client.start(self._client.healthy()).result():
            raise EngineError(f"the vLLM server does not answer. {self._last_words()}")

    def close(self) -> None:
        """Abort everything, end the server if it is ours."""
        if self._closed:
            return
        with contextlib.suppress(Exception):
            self._client.start(asyncio.wait_for(self._abort(), 5)).result()
        self._closed = True
        self._client.close()
        if self._process is not None:
            self._process.close()
        self._weights.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _answer(self, prompt: tuple[int, ...], sampling: SamplingParams, timeout_s: float) -> Completion:
        """Wait for a slot, ask, and ask again until there is an answer or no time left."""
        problems: list[str] = []
        aborts, mark = self._aborts, object()
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                self._asking.add(mark)
                return await self._ask(prompt, sampling, aborts, problems)
        except TimeoutError:
            waited_for = f"{self.answer_name} ({problems[-1]})" if problems else self.answer_name
            raise DeadlineExceededError(waited_for, timeout_s) from None
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError("the engine is closed") from None
            raise
        finally:
            self._asking.discard(mark)

    async def _ask(
        self, prompt: tuple[int, ...], sampling: SamplingParams, aborts: int, problems: list[str]
    ) -> Completion:
        body, pause_s = _request(prompt, sampling), 0.05
        while self._aborts == aborts:
            try:
                reply = await self._client.ask("/inference/v1/generate", body)
                completion = read_completion(reply, sampling, self._name, self.version)
                self._raise_if_unusable()
                if completion.finish != "abort" or self._aborts != aborts:
                    self._restarts = 0
                    return completion
            except ServerFaultError as fault:  # also an answer that makes no sense: never a completion
                self._raise_if_unusable()
                problems.append(str(fault))
            await self._revive()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return Completion(ids=(), logprobs=(), finish="abort", weight_version=self.version)

    async def _revive(self) -> None:
        """See to it that the server runs with the current weights. A request that gives up does not end that work."""
        if self._revival is None or self._revival.done():
            self._revival = asyncio.create_task(self._restart_if_dead())
        await asyncio.shield(self._revival)

    async def _restart_if_dead(self) -> None:
        async with self._control:
            self._raise_if_unusable()
            if await self._client.healthy():
                info = await self._client.ask("/weight_info", method="GET")
                if info.get("weight_version") == self._label:
                    return
            elif self._process is None:
                return  # whoever runs it may bring it back before the requests' deadlines
            if self._restarts >= _RESTARTS:
                self._fault = f"the server died {_RESTARTS} times in a row. {self._last_words()}"
                raise EngineError(self._fault)
            self._restarts += 1
            try:
                await self._start()
            except (EngineError, ServerFaultError) as error:
                self._fault = f"the server could not be started again: {error}"
                raise EngineError(self._fault) from error

    # -- the server --------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Start the server where it is ours, wait until it answers, give it the current weights."""
        if self._process is not None and not (self._process.alive and await self._client.healthy()):
            self._process.start()
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                while not await self._client.healthy():
                    if self._process is not None and not self._process.alive:
                        raise EngineError(f"the vLLM server did not start: {self._last_words()}")
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise EngineError(
                f"the vLLM server did not answer within engine.start_timeout_s {self._settings.start_timeout_s:g}. "
                f"{self._last_words()}"
            ) from None
        await self._client.ask("/init_weight_transfer_engine", {"init_info": {}})
        await self._send()

    async def _send(self) -> None:
        """Replace the server's weights while it is paused. Requests are kept; the prefix cache is not."""
        post, weights = self._client.ask, self._weights
        await post("/pause?mode=keep&clear_cache=false")
        await post("/start_weight_update")
        await post("/update_weights", {"update_info": {"path": weights.path, "tensors": weights.tensors}})
        await post("/finish_weight_update", {"weight_version": self._label})
        # Without running requests in it, the reset would leave their blocks, computed by the old weights, to others.
        if not (await post("/reset_prefix_cache?reset_running_requests=true"))["success"]:
            raise EngineError("vLLM did not reset its prefix cache, which holds what the old weights computed")
        self._unproved = True
        if not self._paused:
            await self._go_on()

    async def _go_on(self) -> None:
        await self._client.ask("/resume")
        if self._unproved:
            await self._probe()
            self._unproved = False

    async def _probe(self) -> None:
        """Compare the server with the weights that were sent. Raises :class:`EngineError` where they differ."""
        answered = min(_PROBED_TOKENS, self._max_tokens - 1)
        asked = min(_PROBE_TOKENS, self._max_tokens - answered)
        prompt = tuple(7919 * i % self._vocabulary for i in range(1, asked + 1))
        sampling = SamplingParams(max_new_tokens=answered, seed=0)
        reply = await self._client.ask("/inference/v1/generate", _request(prompt, sampling))
        completion = read_completion(reply, sampling, self._name, self.version)
        expected = await asyncio.to_thread(self._weights.logprobs, prompt, completion.ids)
        error = max(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True))
        if not error <= self._settings.tolerance:
            raise EngineError(
                f"after the update to weights {self._label}, vLLM's log-probabilities differ from those of the weights "
                f"that were sent by up to {error:.2g}; engine.probe_tolerance allows {self._settings.tolerance:g}. Its "
                "answers must not be trained on: the model's code in vLLM may not take updates"
            )

    async def _update(self, weights: SentWeights, version: int) -> None:
        async with self._control:
            old, self._weights, self._label = self._weights, weights, self._label_of(version)
            old.close()
            if self._process is None or self._process.alive:
                try:
                    await self._send()
                    return
                except ServerFaultError:
                    if self._process is None or await self._client.healthy():
                        raise
            await self._start()  # it died before or during the update

    async def _let_go(self) -> None:
        """After an update that failed: the server must not answer, nor requests wait for it."""
        async with self._control:
            if self._process is not None:
                self._process.stop()
            else:
                with contextlib.suppress(EngineError, ServerFaultError):
                    await self._client.ask("/resume")

    async def _pause(self) -> None:
        async with self._control:
            await self._client.ask("/pause?mode=keep&clear_cache=false")
            self._paused = True

    async def _resume(self) -> None:
        async with self._control:
            self._paused = False
            await self._go_on()

    async def _abort(self) -> None:
        self._aborts += 1  # those that wait for a slot see it when they get one
        there = set(self._asking)
        while there & self._asking:  # a request may still be on its way to the scheduler
            with contextlib.suppress(ServerFaultError):
                await self._client.ask("/abort_requests", {})
            await asyncio.sleep(0.02)

    # -- small things ------------------------------------------------------------------------------------------------

    def _read(self, source: Iterable[tuple[str, torch.Tensor]]) -> SentWeights:
        return SentWeights(self._skeleton, source, folder=self._settings.weights_folder)

    def _label_of(self, version: int) -> str:
        return f"{self._name}-{version}"

    def _last_words(self) -> str:
        return "" if self._process is None else self._process.last_words()

    def _raise_if_unusable(self, *, updating: bool = False) -> None:
        if self._closed:
            raise EngineError("the engine is closed")
        if self._fault:
            raise EngineError(f"the engine gave up: {self._fault}")
        if self._incomplete and not updating:
            raise EngineError(self._incomplete)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` on the client's loop; a fault at the server becomes an error of the engine."""
        try:
            return self._client.start(work).result()
        except ServerFaultError as fault:
            raise EngineError(f"{fault}. {self._last_words()}") from fault


def _request(prompt: tuple[int, ...], sampling: SamplingParams) -> dict[str, Any]:
    """The body of a request. What vLLM would fill in from the model's folder is said, so that nothing truncates."""
    values: dict[str, Any] = {
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,  # only the ids above end an answer
        "top_p": 1.0,
        "top_k": 0,
        "logprobs": 0,  # of the sampled ids alone
        "detokenize": False,
    }
    if sampling.seed is not None:
        values["seed"] = sampling.seed % 2**63
    return {"token_ids": list(prompt), "sampling_params": values}


def read_completion(reply: Any, sampling: SamplingParams, name: str, version: int) -> Completion:
    """What the generate route answered to ``sampling``; weights must be labelled as those of the engine ``name``.

    Raises :class:`ServerFaultError` for anything that is not a whole, consistent answer.
    """
    try:
        choice = reply["choices"][0]
        ids = tuple(choice["token_ids"] or ())
        content = (choice["logprobs"] or {}).get("content") or []
        finish = _FINISH[choice["finish_reason"]]
        spans = tuple(
            VersionSpan(_version(span["version"], name), span["end"] - span["start"])
            for span in choice["weight_versions"] or ()
        )
        logprobs = tuple(float(each["logprob"]) for each in content)
        if not all(type(i) is int for i in ids) or tuple(each["token_id"] for each in content) != ids:
            raise ValueError("token_ids and the ids of logprobs differ")
        ended = {"stop": ids[-1:] != () and ids[-1] in sampling.stop_ids, "length": len(ids) == sampling.max_new_tokens}
        if not ended.get(finish, len(ids) <= sampling.max_new_tokens) or bool(ids) != bool(spans):
            raise ValueError(f"{len(ids)} ids do not end with {finish!r}")
        if not all(-9999.0 < logprob <= 1e-3 for logprob in logprobs):  # vLLM writes -9999 for what is no number
            raise EngineError(f"the model's logits are not finite ({name}, weight version {version})")
        oldest = min((span.version for span in spans), default=version)
        return Completion(ids=ids, logprobs=logprobs, finish=finish, weight_version=oldest, spans=spans)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerFaultError(
            f"an answer of vLLM is not what its route gives ({type(error).__name__}: {error}): {str(reply)[:200]}"
        ) from error


def _version(label: str, name: str) -> int:
    owner, _, version = label.partition("-")
    if owner != name:
        raise ValueError(f"weights {label!r} are not of this engine")
    return int(version)
