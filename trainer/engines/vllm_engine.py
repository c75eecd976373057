"""The vLLM engine: requests by its token-in-token-out route, weights by its weight-transfer API.

The server is a process of this engine, started again with the current weights when it dies, or one that somebody else
runs. After each update a probe compares the server's log-probabilities with those of the weights that were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from roll_envs.errors import DeadlineExceededError, EngineError
from roll_envs.types import Completion, FinishReason, SamplingParams, VersionSpan
from trainer.engines import Capabilities, Engine
from trainer.engines.sent_weights import SentWeights, skeleton_of
from trainer.engines.server import Server, ServerClient, ServerFaultError
from trainer.engines.vllm import VLLMSettings
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel

__all__ = ["VLLMEngine", "read_completion"]

_GENERATE = "/inference/v1/generate"
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}
_STARTS = 3
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

    def __init__(self, model: LanguageModel, settings: VLLMSettings, server: Server, *, max_tokens: int) -> None:
        """Bring ``server`` up and give it the weights of ``model``.

        Raises :class:`EngineError` when it does not come up, or does not answer as the model does.
        """
        self._settings, self._server, self._max_tokens = settings, server, max_tokens
        self._vocabulary: int = model.network.config.vocab_size
        self._skeleton = skeleton_of(model.network)
        self._weights = self._read(weights_of(model.network))
        self._name, self._updates = secrets.token_hex(4), itertools.count()
        self._label = f"0-{self._name}-start"  # of the weights, to tell them from another trainer's
        self._problem = ""  # why nothing is answered until an update succeeds
        self._starts = 0  # of the server, without an answer in between
        self._aborts = 0  # how often everything was aborted
        self._paused = self._unproved = self._closed = False
        self._asking: set[object] = set()  # a mark for each request at the server
        self._slots = asyncio.Semaphore(settings.max_running)
        self._control = asyncio.Lock()  # updates, pauses and starts, one after the other
        self._revival: asyncio.Task[None] | None = None
        self._client = ServerClient(server.url)
        try:
            self._client.run(self._synchronise())
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
        if self._closed:
            raise EngineError("the engine is closed")
        try:
            weights = self._read(source)
        except BaseException as error:
            self._problem = _repeat(version, error)
            raise
        self._client.run(self._update(weights, version))

    def pause(self) -> None:
        """Stop sampling; the server keeps the requests."""
        self._client.run(self._hold(True))

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._client.run(self._hold(False))

    def abort(self) -> None:
        """End every request with ``finish="abort"``, keeping what was sampled so far."""
        self._client.run(self._abort())

    def health(self) -> None:
        """Raise :class:`EngineError` when the engine cannot answer."""
        self._raise_if_unusable()
        if not self._client.run(self._client.healthy()):
            raise EngineError("the vLLM server does not answer; it is started again with the next request")

    def close(self) -> None:
        """Abort everything, end the server if it is ours."""
        if self._closed:
            return
        with contextlib.suppress(Exception):
            self._client.run(asyncio.wait_for(self._abort(), 5))
        self._closed = True
        self._client.close()
        self._server.close()
        self._weights.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _answer(self, prompt: tuple[int, ...], sampling: SamplingParams, timeout_s: float) -> Completion:
        """Wait for a slot, ask, and ask again until there is an answer or no time left."""
        mark, aborts, problem, pause_s = object(), self._aborts, "", 0.05
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                self._asking.add(mark)
                while self._aborts == aborts:
                    try:
                        completion = await self._ask(prompt, sampling)  # patiently: the deadline is above
                        self._raise_if_unusable()
                        # An abort that nobody asked for is a server that ends.
                        if completion.finish != "abort" or self._aborts != aborts:
                            self._starts = 0
                            return completion
                    except ServerFaultError as fault:
                        problem = f" ({fault})"
                    self._raise_if_unusable()
                    # One request sees to the server for all, and is not ended by its own deadline.
                    if self._revival is None or self._revival.done():
                        self._revival = asyncio.create_task(self._revive())
                    await asyncio.shield(self._revival)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                return Completion(ids=(), logprobs=(), finish="abort", weight_version=self.version)
        except TimeoutError:
            raise DeadlineExceededError(self.answer_name + problem, timeout_s) from None
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError("the engine is closed") from None
            raise
        finally:
            self._asking.discard(mark)

    async def _ask(self, prompt: tuple[int, ...], sampling: SamplingParams, *, patient: bool = True) -> Completion:
        # What vLLM would fill in from the model's folder is said, so that nothing is truncated.
        parameters: dict[str, Any] = {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(sampling.stop_ids),
            "ignore_eos": True,  # only the ids above end an answer
            "top_p": 1.0,
            "top_k": 0,
            "logprobs": 0,  # of the sampled ids alone
            "detokenize": False,
            "seed": None if sampling.seed is None else sampling.seed % 2**63,
        }
        body = {"token_ids": prompt, "sampling_params": parameters}
        reply = await self._client.ask(_GENERATE, body, patient=patient)
        return read_completion(reply, sampling, self._name, self.version)

    async def _abort(self) -> None:
        self._aborts += 1  # those that wait for a slot see it when they get one
        there = set(self._asking)
        while there & self._asking:  # a request may still be on its way to the scheduler
            with contextlib.suppress(ServerFaultError):
                await self._client.ask("/abort_requests", {})
            await asyncio.sleep(0.02)

    # -- the server --------------------------------------------------------------------------------------------------

    async def _revive(self) -> None:
        async with self._control:
            self._raise_if_unusable()
            try:
                await self._synchronise()
            except ServerFaultError:
                await self._silence()  # requests ask again, and again see to the server
            except EngineError as error:
                self._problem = f"the engine gave up: {error}"
                raise

    async def _update(self, weights: SentWeights, version: int) -> None:
        async with self._control:
            self._weights.close()
            self._weights, self.version, self._starts = weights, version, 0
            self._label = f"{version}-{self._name}-{next(self._updates)}"
            try:
                await self._synchronise()
            except BaseException as error:
                self._problem = _repeat(version, error)
                await self._silence()
                raise
            self._problem = ""

    async def _hold(self, paused: bool) -> None:
        async with self._control:
            self._paused = paused
            if paused:
                await self._client.ask("/pause?mode=keep&clear_cache=false")
            else:
                await self._go_on()

    async def _synchronise(self) -> None:
        """See to it that the server runs, with the current weights."""
        while True:
            if not await self._client.healthy():
                await self._start()
            try:
                found = await self._client.ask("/weight_info", method="GET")
                if found != {"weight_version": self._label}:
                    await self._send()
                return
            except ServerFaultError:
                if await self._client.healthy():
                    raise  # else it died meanwhile

    async def _start(self) -> None:
        """Start the server where it is ours, and wait until it answers."""
        timeout_s = self._settings.start_timeout_s
        if self._starts >= _STARTS:
            raise EngineError(f"the vLLM server died {_STARTS} times in a row. {self._server.last_words()}")
        self._starts += 1
        self._server.start()
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._client.healthy():
                    if not self._server.can_answer:
                        raise EngineError(f"the vLLM server did not start. {self._server.last_words()}")
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise EngineError(
                f"the vLLM server did not answer within engine.start_timeout_s {timeout_s:g}. "
                f"{self._server.last_words()}"
            ) from None

    async def _send(self) -> None:
        """Replace the server's weights while it is paused. Requests are kept; the prefix cache is not."""
        ask, weights = self._client.ask, self._weights
        await ask("/init_weight_transfer_engine", {"init_info": {}})
        await ask("/pause?mode=keep&clear_cache=false")
        await ask("/start_weight_update")
        await ask("/update_weights", {"update_info": {"path": weights.path, "tensors": weights.tensors}})
        # Without running requests in it, the reset would leave their blocks, computed by the old weights, to others.
        if not (await ask("/reset_prefix_cache?reset_running_requests=true"))["success"]:
            raise EngineError("vLLM did not reset its prefix cache, which holds what the old weights computed")
        await ask("/finish_weight_update", {"weight_version": self._label})
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
        completion = await self._ask(prompt, SamplingParams(max_new_tokens=answered, seed=0), patient=False)
        expected = await asyncio.to_thread(self._weights.logprobs, prompt, completion.ids)
        error = max(abs(a - b) for a, b in zip(expected, completion.logprobs, strict=True))
        if not error <= self._settings.tolerance:
            self._problem = (
                f"with the weights of version {self.version}, vLLM's log-probabilities differ from those of the "
                f"weights that were sent by up to {error:.2g}; engine.probe_tolerance allows "
                f"{self._settings.tolerance:g}. Its answers must not be trained on: vLLM's code of this model may not "
                "take updates"
            )
            raise EngineError(self._problem)

    async def _silence(self) -> None:
        """After an update that failed: the server answers nothing, and no request waits for it."""
        if self._server.stop():
            return
        for path in ("/finish_weight_update", "/resume"):  # as far as it got
            with contextlib.suppress(EngineError):
                await self._client.ask(path)

    # -- small things ------------------------------------------------------------------------------------------------

    def _read(self, source: Iterable[tuple[str, torch.Tensor]]) -> SentWeights:
        return SentWeights(self._skeleton, source, folder=self._settings.weights_folder)

    def _raise_if_unusable(self) -> None:
        if self._closed or self._problem:
            raise EngineError("the engine is closed" if self._closed else self._problem)


def _repeat(version: int, error: BaseException) -> str:
    return f"the update to weight version {version} failed and must be repeated: {error}"


def read_completion(reply: Any, sampling: SamplingParams, name: str, version: int) -> Completion:
    """What the generate route answered to ``sampling``; weights must be labelled as those of the engine ``name``.

    Raises :class:`ServerFaultError` for anything that is not a whole, consistent answer.
    """
    try:
        choice = reply["choices"][0]
        ids, finish = tuple(choice["token_ids"] or ()), _FINISH[choice["finish_reason"]]
        content = choice["logprobs"]["content"] or () if ids else ()
        logprobs = tuple(float(each["logprob"]) for each in content)
        if not all(type(i) is int for i in ids) or tuple(each["token_id"] for each in content) != ids:
            raise ValueError("token_ids and the ids of logprobs differ")
        spans = []
        for span in choice["weight_versions"] or ():
            sampled_by, owner, _ = span["version"].split("-")
            if owner != name:
                raise ValueError(f"weights {span['version']!r} are not of this engine")
            spans.append(VersionSpan(int(sampled_by), span["end"] - span["start"]))
        whole = {"stop": ids[-1:] != () and ids[-1] in sampling.stop_ids, "length": len(ids) == sampling.max_new_tokens}
        if not whole.get(finish, True) or len(ids) > sampling.max_new_tokens or bool(ids) != bool(spans):
            raise ValueError(f"{len(ids)} ids do not end with {finish!r}")
        if not all(-9999.0 < logprob <= 1e-3 for logprob in logprobs):  # vLLM writes -9999 for what is no number
            raise EngineError(f"the model's logits are not finite (weight version {version})")
        oldest = min((span.version for span in spans), default=version)
        return Completion(ids=ids, logprobs=logprobs, finish=finish, weight_version=oldest, spans=tuple(spans))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerFaultError(
            f"an answer of vLLM is not what its route gives ({type(error).__name__}: {error}): {str(reply)[:200]}"
        ) from error
