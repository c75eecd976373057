"""A client of OpenAI's chat API: limits number, time and size of requests, and repeats those that may succeed later.

All requests of a client run on one event loop in a thread of its own, so that a deadline really ends a try (a server
that sends one byte a second gets no further than one that sends none), and threads and coroutines may both ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx
from pydantic import PositiveInt

from roll_envs.background import EventLoopThread
from roll_envs.chat_api import RETRY_STATUSES, ChatAnswer, read_answer, retry_after_s
from roll_envs.errors import ConfigError
from roll_envs.settings import Seconds

JUDGE = "judge:"
"""How the address of a judge begins that is given by name."""

# With these, servers refuse the field response_format that they do not know.
_SCHEMA_STATUSES = frozenset({400, 404, 415, 422, 501})
_MAX_BYTES = 4 << 20
_OPENAI = "api.openai.com"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class NoReplyError(Exception):
    """Why there is no reply, or none that can be used."""


class _SchemaRefusedError(Exception):
    """The server refuses requests with a schema."""


class _RetryableError(Exception):
    """A failed attempt that may be repeated, after ``pause_s`` at least."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


def judge_variable(name: str) -> str:
    """The environment variable with the address of the judge ``name``."""
    return f"ROLL_JUDGE_{name.upper()}"


@dataclass(kw_only=True, eq=False)
class Endpoint:
    """A model behind an API, and the limits of one request. It is asked on the loop of ``background`` only."""

    url: str
    """Up to and with the version: ``http://host:8000/v1``; or ``judge:NAME``, for the address that the environment
    variable ``ROLL_JUDGE_NAME`` has when it is asked. A run puts there where it serves the judges of its file."""
    model: str
    key_env: str = ""
    """Name of the environment variable with the API key; without such a variable none is sent. Empty:
    ``OPENAI_API_KEY`` for ``https://api.openai.com``, and no key for any other server."""
    try_s: Seconds = 60.0
    """Limit of one attempt, from connecting to the last byte."""
    deadline_s: Seconds = 300.0
    """Limit of all attempts and the pauses between them."""
    queue_s: Seconds = 3600.0
    """Limit of waiting for one of the ``concurrency`` slots."""
    tries: PositiveInt = 8
    concurrency: PositiveInt = 16
    structured: Literal["auto", "always", "never"] = "auto"
    """Whether the reply's JSON schema is sent along; ``auto``: until the server refuses it once."""
    max_tokens: PositiveInt = 1024
    extra: Mapping[str, Any] | None = None
    """More items of the request's body, such as ``{"seed": 0}``; one that is ``None`` is left out of it."""

    @property
    def key(self) -> str:
        """The API key, empty where none is to be sent."""
        address = httpx.URL(self.url)
        own = address.scheme == "https" and (address.host == _OPENAI or address.host.endswith("." + _OPENAI))
        return os.environ.get(self.key_env or ("OPENAI_API_KEY" if own else ""), "")

    @property
    def address(self) -> str:
        """``url``, found by its name where it is one. Raises :class:`NoReplyError` where nobody has said it."""
        if not self.url.startswith(JUDGE):
            return self.url
        variable = judge_variable(self.url.removeprefix(JUDGE))
        if not os.environ.get(variable):
            raise NoReplyError(
                f"{self.url!r}: no such judge is served; a run serves those of its section 'judges', and elsewhere the "
                f"environment variable {variable} holds the address"
            )
        return os.environ[variable]

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://", JUDGE)):
            raise ConfigError(
                "url must begin with http:// or https:// and end with the version, or be judge:NAME for a judge that "
                f"the run serves, not {self.url!r}"
            )
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"url {self.url!r} cannot be used: {error}") from None
        if not self.model:
            raise ConfigError("model must be the name of a model, not an empty text")
        for name in ("messages", "response_format", "stream", "n"):
            if name in (self.extra or {}):
                raise ConfigError(f"extra may not change {name!r} of a judge's request")
        self._plain = self.structured == "never"
        self.background = EventLoopThread("llm-judge", self._disconnect)
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of the ``concurrency`` places for requests. Raises :class:`NoReplyError` where none is free in time."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the first, or one after close() or a fork, where connections are the parent's
            self._loop, self._slots = loop, asyncio.Semaphore(self.concurrency)
            limits = httpx.Limits(max_connections=self.concurrency)
            # Loading the certificates of all authorities takes longer than a request.
            verify = not self.url.startswith("http:")
            self._http = httpx.AsyncClient(timeout=self.try_s, limits=limits, follow_redirects=False, verify=verify)
        slots = self._slots
        try:
            async with asyncio.timeout(self.queue_s):
                await slots.acquire()
        except TimeoutError:
            raise NoReplyError(f"no place for a request to the judge within {self.queue_s:g} s") from None
        try:
            yield
        finally:
            slots.release()

    async def ask(
        self, messages: list[dict[str, Any]], schema: Mapping[str, Any], *, until: float, longer: int
    ) -> tuple[ChatAnswer, int]:
        """An answer, and how many tries it took; only in a :meth:`place`. Raises :class:`NoReplyError`.

        ``until``: as of ``time.monotonic``; ``longer``: times as many tokens as the endpoint says.
        """
        plain, count = self._plain, 1
        while True:
            limit_s = min(until - time.monotonic(), self.try_s)
            try:
                async with asyncio.timeout(limit_s):
                    answer = await self._once(messages, None if plain else schema, longer)
                self._plain = plain  # remember a server that accepts the request only without a schema
                return answer, count
            except _SchemaRefusedError:
                plain = True  # no try: the server has not been asked the question yet
                continue
            except _RetryableError as error:
                fault = error
            except TimeoutError:
                fault = _RetryableError(f"no reply within {limit_s:.3g} s")
            growing_s = random.uniform(0.5, 1) * min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (count - 1))
            pause_s = max(fault.pause_s, growing_s)
            if count == self.tries or time.monotonic() + pause_s >= until:
                break
            await asyncio.sleep(pause_s)
            count += 1
        allowed = f"{self.tries} tries and {self.deadline_s:.3g} s allowed"
        raise NoReplyError(f"the judge gave no reply in {count} tries ({allowed}); the last: {fault}")

    async def _disconnect(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self._http.aclose()

    async def _once(self, messages: list[dict[str, Any]], schema: Mapping[str, Any] | None, longer: int) -> ChatAnswer:
        # At temperature 0, so that the same texts get the same verdict; `extra` may say otherwise.
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self.max_tokens,
            **(self.extra or {}),
        }
        body = {name: value for name, value in body.items() if value is not None}
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(body.get(name), int):
                body[name] *= longer
        if schema is not None:
            shape = {"name": "verdict", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        key = self.key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        address = self.address.rstrip("/") + "/chat/completions"
        try:
            async with self._http.stream("POST", address, json=body, headers=headers) as response:
                content = await _read(response)
                status, wait = response.status_code, response.headers.get("retry-after", "")
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _RetryableError(f"{type(error).__name__}: {error}") from None
        except httpx.InvalidURL as error:
            raise NoReplyError(f"the judge's address {address!r} cannot be used: {error}") from None
        if status == 200:
            return _answer(content)
        said = f"HTTP {status}: {content[:300].decode(errors='replace')}"
        if status in _SCHEMA_STATUSES and schema is not None and self.structured == "auto":
            raise _SchemaRefusedError
        if status in RETRY_STATUSES:
            raise _RetryableError(said, retry_after_s(wait))
        raise NoReplyError(f"the judge refused the request: {said}")


async def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > _MAX_BYTES:
            raise NoReplyError(f"the judge's reply is larger than {_MAX_BYTES} bytes")
    return bytes(content)


def _answer(content: bytes) -> ChatAnswer:
    try:
        said = read_answer(json.loads(content))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise _RetryableError(f"the reply is no JSON: {content[:100].decode(errors='replace')!r}") from None
    except ValueError as error:
        raise _RetryableError(str(error)) from None
    if not said.text.strip() and not said.cut:
        # Not repeated: at temperature 0 the next reply would be empty as well.
        raise NoReplyError(f"the judge refused: {said.refusal[:200]}" if said.refusal else "the judge said nothing")
    return said
