"""An HTTP client that repeats a request after infrastructure failures, within a deadline; never after a verdict."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import httpx

from roll_envs.chat_api import retry_after_s
from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from sandboxes.service.wire import MalformedError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
CONNECT_S = 5.0
CONNECTIONS_PER_CLIENT = 8
TRANSIENT = frozenset({408, 429, 502, 503, 504})
"""Statuses after which the request is repeated. 500 is not among them: the same request would fail again."""

T = TypeVar("T")


class TransientError(Exception):
    """This attempt failed, another may succeed. ``waited``: no slot was free in time."""

    def __init__(self, reason: str, *, pause_s: float = 0.0, waited: bool = False) -> None:
        super().__init__(reason)
        self.pause_s, self.waited = pause_s, waited


class Deadline(NamedTuple):
    """When a caller gives up: ``timeout_s`` after it began to wait."""

    timeout_s: float
    ends: float
    """As of ``time.monotonic``."""

    @classmethod
    def after(cls, timeout_s: float) -> Deadline:
        return cls(timeout_s, time.monotonic() + timeout_s)


def said(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a response; empty when it holds none."""
    try:
        data = response.json()
    except ValueError:
        data = None
    return data if isinstance(data, dict) else {}


class RetryingClient:
    """Sends requests with retries until a deadline. Belongs to one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str], *, retries: int, max_connections: int) -> None:
        self.url, self.retries = url, retries
        # httpx scans all connections of a client for each request; several small clients keep that cheap.
        parts = -(-max_connections // CONNECTIONS_PER_CLIENT)
        # One context for all clients: loading the certificates of all authorities takes longer than a request.
        verify = httpx.create_ssl_context() if url.startswith("https:") else False
        self._free = [max_connections // parts + (part < max_connections % parts) for part in range(parts)]
        """Connections of each client that are not in use; below 0 when requests wait for one."""
        self._clients = [
            httpx.AsyncClient(
                base_url=url,
                headers=headers,
                limits=httpx.Limits(max_connections=size, max_keepalive_connections=size),
                # Each request has a deadline of its own, over all phases together.
                timeout=None,
                verify=verify,
                follow_redirects=False,
                # Neither proxies of the environment nor passwords of ~/.netrc: the URL is meant as given.
                trust_env=False,
            )
            for size in self._free
        ]

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients))

    async def request(
        self,
        method: str,
        path: str,
        body: Callable[[float], Mapping[str, Any]] | None,
        read: Callable[[httpx.Response], T],
        what: str,
        deadline: Deadline,
    ) -> T:
        """``read`` of the reply, with status 200, 201 or 404, to ``body(seconds left)``.

        Raises :class:`DeadlineExceededError` when there was no slot or no answer before ``deadline``,
        :class:`SandboxError` when the service could not be reached or failed at every attempt, :class:`ConfigError`
        when it refuses the request; the first two name ``what`` was waited for.
        """
        tries = 0
        while True:
            tries += 1
            left_s = deadline.ends - time.monotonic()
            try:
                if left_s <= 0:
                    raise TransientError("no time was left", waited=True)
                async with asyncio.timeout(left_s):
                    response = await self._try(method, path, None if body is None else body(left_s), left_s)
                return _read(read, response)
            except TransientError as error:
                fault = error
            except TimeoutError:
                raise DeadlineExceededError(f"{what} by {self.url}", deadline.timeout_s) from None
            # Random, so that clients that were refused together do not come back together.
            pause_s = random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1))
            pause_s = max(pause_s, min(fault.pause_s, LONGEST_PAUSE_S) * random.uniform(1.0, 1.25))
            # Waiting for a slot is no failure and does not count as a retry: only the deadline limits it.
            if (tries > self.retries and not fault.waited) or time.monotonic() + pause_s >= deadline.ends:
                if fault.waited:
                    raise DeadlineExceededError(f"{what} by {self.url} ({fault})", deadline.timeout_s)
                times = "once" if tries == 1 else f"{tries} times"
                raise SandboxError(f"{what} by {self.url} failed, tried {times}: {fault}")
            await asyncio.sleep(pause_s)

    async def _try(self, method: str, path: str, body: Mapping[str, Any] | None, left_s: float) -> httpx.Response:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        timeout = httpx.Timeout(None, connect=min(CONNECT_S, left_s))
        part = self._free.index(max(self._free))
        self._free[part] -= 1
        try:
            client = self._clients[part]
            response = await client.request(method, path, content=content, headers=headers, timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed meanwhile
            raise TransientError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        finally:
            self._free[part] += 1
        return _checked(response)


def _checked(response: httpx.Response) -> httpx.Response:
    """``response`` if it is a success or a 404; other statuses raise the error that they stand for."""
    status = response.status_code
    if response.is_success or status == 404:
        return response
    data = said(response)
    shown = data["detail"] if isinstance(data.get("detail"), str) else response.text[:300]
    if status in TRANSIENT:
        waited = status in (429, 504) or data.get("kind") == "queue_full"
        pause_s = retry_after_s(response.headers.get("retry-after", ""))
        raise TransientError(f"{status} {shown}", pause_s=pause_s, waited=waited)
    if status >= 500:
        raise SandboxError(f"{response.url} failed with {status}: {shown}")
    if status == 401:
        raise ConfigError(f"{response.url} wants a token (RemoteSandbox(token=...)), or another one: {shown}")
    raise ConfigError(f"{response.url} refused with {status}: {shown}")


def _read(read: Callable[[httpx.Response], T], response: httpx.Response) -> T:
    try:
        return read(response)
    except (MalformedError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise TransientError(f"an answer in no known form: {type(error).__name__}: {error}") from error
