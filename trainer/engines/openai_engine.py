"""A server with OpenAI's API as an engine: requests that are asked again, and how its answers are read.

Prompts are ids of characters, which become messages again before they are sent, so that server and model need be known
by their address and name alone. With ``token_ids`` they are ids of the model's own tokenizer, to and fro (vLLM).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from roll_envs.chat_api import read_answer
from roll_envs.errors import DeadlineExceededError, EngineError
from roll_envs.policy import CharRenderer
from roll_envs.types import Completion, FinishReason, Message, SamplingParams
from trainer.engines import Engine, check_request
from trainer.engines.openai import OpenAISettings
from trainer.engines.server import ServerBusyError, ServerClient, ServerFaultError, ServerRefusalError

_TEXT = CharRenderer()
_GREETING = Message(role="user", content="Say OK.")
_GREETINGS = 3
"""So many tries of the first request, half a second apart, before a server that fails is taken for none."""
_GREETING_S, _LIST_S = 60.0, 10.0
"""Longest waits for the answer to it, also of a server that is busy, and for the list of models."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


# -- what is sent, and how the answer is read --------------------------------------------------------------------------


class _Route(NamedTuple):
    """A way to ask for a completion."""

    path: str
    body: Callable[[tuple[int, ...], SamplingParams], dict[str, Any]]
    read: Callable[[Any, SamplingParams], Completion]
    """Raises ServerFaultError for what may be asked again, and EngineError for what would come again."""


def _whole(text: str) -> str:
    """``text`` without lone surrogates, which JSON can hold, and neither servers nor tokenizers take."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _chat_body(prompt: tuple[int, ...], sampling: SamplingParams) -> dict[str, Any]:
    messages = [{"role": m.role, "content": _whole(m.content)} for m in _TEXT.messages(prompt)]
    return {"messages": messages, **_sampled(sampling)}


def _read_chat(reply: Any, sampling: SamplingParams) -> Completion:
    try:
        answer = read_answer(reply)
    except ValueError as error:
        raise ServerFaultError(str(error)) from None
    if answer.finish == "content_filter":
        raise EngineError("a content filter of the server ended the answer, which is not the model's then")
    if answer.finish in ("abort", "error"):
        raise ServerFaultError(f"the server ended the answer ({answer.finish})")
    finish: FinishReason = "length" if answer.finish == "length" else "stop"
    ids = (*_TEXT.encode(_whole(answer.text or answer.refusal)), *(_TEXT.stop_ids if finish == "stop" else ()))
    return Completion(ids=ids, logprobs=(0.0,) * len(ids), finish=finish, weight_version=0)


def _tokens_body(prompt: tuple[int, ...], sampling: SamplingParams) -> dict[str, Any]:
    ends = {"stop_token_ids": list(sampling.stop_ids), "ignore_eos": True}  # only these ids end an answer
    return {"prompt": prompt, "logprobs": 0, "return_token_ids": True, **ends, **_sampled(sampling)}


def _read_tokens(reply: Any, sampling: SamplingParams) -> Completion:
    try:
        choice = reply["choices"][0]
        if choice.get("token_ids") is None:
            raise EngineError("the server gives no token ids, as vLLM does; leave engine.token_ids out")
        ids, finish = tuple(choice["token_ids"]), choice["finish_reason"]
        logprobs = tuple(float(logprob) for logprob in choice["logprobs"]["token_logprobs"]) if ids else ()
        if not all(type(i) is int and i >= 0 for i in ids) or len(ids) != len(logprobs):
            raise ValueError("token_ids and token_logprobs do not fit")
        if not all(-math.inf < logprob <= 1e-3 for logprob in logprobs):
            raise ValueError("log-probabilities that are none")
        if finish not in ("stop", "length") or len(ids) > sampling.max_new_tokens:
            raise ValueError(f"{len(ids)} ids end with {finish!r}")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerFaultError(f"the reply is no completion ({error}): {str(reply)[:200]}") from None
    return Completion(ids=ids, logprobs=logprobs, finish=finish, weight_version=0)


def _sampled(sampling: SamplingParams) -> dict[str, Any]:
    seed = None if sampling.seed is None else sampling.seed % 2**31  # some servers take 32 bits
    return {"temperature": sampling.temperature, "max_tokens": sampling.max_new_tokens, "seed": seed}


_CHAT = _Route("/chat/completions", _chat_body, _read_chat)
_TOKENS = _Route("/completions", _tokens_body, _read_tokens)


# -- the engine --------------------------------------------------------------------------------------------------------


class OpenAIEngine(Engine):
    """A :class:`roll_envs.policy.Policy` over a server with OpenAI's API.

    Without ``token_ids``, prompts and completions are ids of :class:`~roll_envs.policy.CharRenderer`, and each id has
    the log-probability 0.0, which says nothing.
    """

    def __init__(self, settings: OpenAISettings, *, key: str = "", max_tokens: int = sys.maxsize) -> None:
        """Ask the server for a short answer. Raises :class:`EngineError` where none comes, with what to do."""
        self._settings, self._key, self._max_tokens = settings, key, max_tokens
        self._url = settings.url.rstrip("/")
        self._route = _TOKENS if settings.token_ids else _CHAT
        self._slots = asyncio.Semaphore(settings.max_running)
        self._closed = False
        self._client = ServerClient(proxies=True)
        try:
            self._client.run(self._greet())
        except BaseException:
            self.close()
            raise

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        """Send a request, or let it wait for its turn; returns at once."""
        if self._closed:
            raise EngineError("the engine is closed")
        prompt = check_request(prompt_ids, sampling, vocabulary=2**31, max_tokens=self._max_tokens)
        try:
            body = self._body(prompt, sampling)
        except ValueError as error:
            raise EngineError(f"the prompt was not made by this engine's renderer: {error}") from None
        return self._client.start(self._answer(body, sampling, timeout_s))

    def update_weights(self, source: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Always raises :class:`EngineError`."""
        raise EngineError("engine 'openai' takes no weights: the model is the server's; train with another engine")

    def health(self) -> None:
        """Raise :class:`EngineError` when the server cannot be reached or fails."""
        if self._closed:
            raise EngineError("the engine is closed")
        try:
            self._client.run(self._ask("/models", limit_s=_LIST_S))
        except ServerRefusalError:
            return  # it is there; not every server has this route

    def close(self) -> None:
        """End every request with :class:`EngineError`."""
        if not self._closed:
            self._closed = True
            self._client.close()

    def _body(self, prompt: tuple[int, ...], sampling: SamplingParams) -> dict[str, Any]:
        fields = {"model": self._settings.model, **self._route.body(prompt, sampling), **self._settings.body}
        return {name: value for name, value in fields.items() if value is not None}

    async def _ask(self, path: str, body: Mapping[str, Any] | None = None, *, limit_s: float | None = None) -> Any:
        """What the server answers, within ``limit_s`` seconds or however long it takes."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else None
        method = "GET" if body is None else "POST"
        with self._key_hidden():
            return await self._client.ask(
                self._url, path, body, method=method, headers=headers, limit_s=limit_s, patient=limit_s is None
            )

    @contextlib.contextmanager
    def _key_hidden(self) -> Iterator[None]:
        """Servers may repeat what they are sent, in what they refuse and in what they answer."""
        try:
            yield
        except EngineError as error:
            if self._key:
                error.args = (str(error).replace(self._key, "(the key)"),)
            raise

    async def _complete(
        self, body: Mapping[str, Any], sampling: SamplingParams, *, limit_s: float | None = None
    ) -> Completion:
        reply = await self._ask(self._route.path, body, limit_s=limit_s)
        with self._key_hidden():
            return self._route.read(reply, sampling)

    async def _answer(self, body: Mapping[str, Any], sampling: SamplingParams, timeout_s: float) -> Completion:
        """Wait for a slot, ask, and ask again until there is an answer or no time left."""
        problem, pause_s = "", _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                while True:
                    try:
                        return await self._complete(body, sampling)
                    except ServerFaultError as fault:
                        problem = f" ({fault})"
                        # Not all at the same time again.
                        await asyncio.sleep(max(fault.pause_s, pause_s * random.uniform(0.5, 1.0)))
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except TimeoutError:
            raise DeadlineExceededError(self.answer_name + problem, timeout_s) from None
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError("the engine is closed") from None
            raise

    async def _greet(self) -> None:
        sampling = SamplingParams(max_new_tokens=16, seed=0)
        prompt = (1,) if self._settings.token_ids else _TEXT.render([_GREETING])
        body, pause_s, deadline = self._body(prompt, sampling), _FIRST_PAUSE_S, time.monotonic() + _GREETING_S
        for tries in itertools.count(1):
            try:
                await self._complete(body, sampling, limit_s=_GREETING_S)
                return
            except ServerRefusalError as error:
                raise EngineError(f"engine 'openai': {error}; {await self._advice(error.status)}") from None
            except ServerFaultError as fault:
                busy, pause_s = isinstance(fault, ServerBusyError), max(pause_s, fault.pause_s)
                if time.monotonic() + pause_s > deadline if busy else tries == _GREETINGS:
                    what = "it is busy: try again later" if busy else "start the server, or check engine.url"
                    raise EngineError(
                        f"engine 'openai': {self._url} gave no answer in {tries} tries ({fault}); {what}"
                    ) from None
            await asyncio.sleep(pause_s)

    async def _advice(self, status: int) -> str:
        """What to do about a refusal of the first request."""
        if status in (401, 403):
            named = "check the key in the variable that engine.api_key_env names"
            return named if self._key else "say in engine.api_key_env which environment variable holds the API key"
        if status == 404:
            known = ""
            with contextlib.suppress(EngineError, KeyError, TypeError):
                models = [str(each["id"]) for each in (await self._ask("/models", limit_s=_LIST_S))["data"]]
                known = f" (the server has: {', '.join(models[:10]) or 'none'})"
            return f"check engine.model{known} and engine.url, which ends with the version, such as /v1"
        if status in (400, 422):
            return (
                "leave a field out that the server does not take by engine.body={NAME: null}; a model without a chat "
                "template needs one at the server"
            )
        return "check engine.url, which ends with the version, such as /v1"
