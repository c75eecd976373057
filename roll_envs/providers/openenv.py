"""OpenEnv's environments: servers that are played over a WebSocket, in the wire format of OpenEnv 0.3 to 0.10.

Of the package nothing is needed, only ``websockets``. A server is somebody else's process: it is started by its own
commands (``openenv serve``, a container, a Space), and named here by its URL. Left out: OpenEnv's MCP mode, in which a
model's harness calls tools by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal
from urllib.parse import urlsplit

import gymnasium
import httpx
import jsonschema  # type: ignore[import-untyped,unused-ignore]
from pydantic import Field

from roll_envs.background import EventLoopThread
from roll_envs.env import EnvironmentCard
from roll_envs.errors import ConfigError, DeadlineExceededError, EnvironmentFaultError, MissingExtraError
from roll_envs.providers.games import GameEnv, Played
from roll_envs.settings import Settings

__all__ = ["OPENENV", "OpenEnvEnv"]

_LARGEST = 100 * 2**20
"""Bytes of a message, as OpenEnv's own client has it."""

OPENENV = EnvironmentCard(
    id="roll/OpenEnv-v0",
    entry_point=f"{__name__}:OpenEnvEnv",
    summary="An environment that an OpenEnv server serves (url), over its WebSocket.",
    tests="Whatever the server's environment asks for.",
    turns="An action each, max_turns of them (50) at most.",
    reward_range=(float("-inf"), float("inf")),
    rewards="game: what the server pays for an action; format: format_penalty for an answer that cannot be read.",
    success="The server says so (success, in the observation or its metadata); where it says nothing, the episode is "
    "done and has paid more than 0 in all.",
    versions={"v0": "First version."},
    citation="OpenEnv, github.com/huggingface/OpenEnv. BSD-3-Clause.",
    differences=(
        "An action is text in a tag: its only required field, or a JSON object.",
        "An action that the server refuses as malformed costs a turn, and the reason is the observation.",
        "What a seed fixes is the server's business: it is sent with each reset.",
    ),
)


class OpenEnvSettings(Settings):
    """Settings of ``roll/OpenEnv-v0``."""

    url: str
    """Of the server, such as ``http://127.0.0.1:8000``."""
    action_field: str | None = None
    """The field of the action that an answer fills; by default the only one that the server's schema requires. Where it
    requires several, or none, an answer is the action as a JSON object."""
    observation_field: str | None = None
    """The field of the observation that is shown; by default the only one that has a text, else all, as JSON."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """What is sent with each reset, beside the seed: the environment's own settings of an episode."""
    instructions: str = ""
    """Rules that an agent is told before how to answer: servers do not tell them."""
    action_format: Literal["answer", "think-answer", "action", "boxed", "word"] = "answer"
    max_turns: int = 50
    format_penalty: float = 0.0
    timeout_s: float = 60.0
    """For a connection, and for the answer to each message."""


class OpenEnvEnv(GameEnv):
    """A session of an OpenEnv server; a lost one is begun anew by the next reset."""

    def __init__(self, settings: OpenEnvSettings) -> None:
        """Asks the server for its schema. Raises :class:`ConfigError` for settings that do not fit it, and
        :class:`EnvironmentFaultError` where it cannot be reached."""
        if urlsplit(settings.url).scheme not in ("http", "https", "ws", "wss") or not urlsplit(settings.url).hostname:
            raise ConfigError(f"url is {settings.url!r}; give the server's address, such as http://127.0.0.1:8000")
        if not settings.timeout_s > 0:
            raise ConfigError(f"timeout_s is {settings.timeout_s!r}; give a number above 0")
        self._settings = settings
        self._connection: Any = None
        self._held = contextlib.ExitStack()
        self._paid = 0.0
        self._fields, required = self._read_schema()
        if settings.action_field is not None and settings.action_field not in self._fields:
            raise ConfigError(
                f"action_field is {settings.action_field!r}; the action of {settings.url} has "
                f"{', '.join(map(repr, self._fields)) or 'no fields'}"
            )
        self._field = settings.action_field or (required[0] if len(required) == 1 else None)
        self._choices = _by_text(_choices(self._fields[self._field])) if self._field else {}
        example = self._example(self._field) if self._field else {n: self._example(n) for n in required or self._fields}
        written = next(
            (text for text, value in self._choices.items() if json.dumps(value) == json.dumps(example)), _text(example)
        )
        super().__init__(
            action_format=settings.action_format,
            max_turns=settings.max_turns,
            format_penalty=settings.format_penalty,
            example=written,
            moves=list(self._choices) or [written],
        )

    @property
    def instructions(self) -> str:
        if self._field:
            about = self._fields[self._field].get("description")
            what = f"the action's field {self._field}" + (f" ({about})" if about else "")
            what += f", one of {', '.join(self._choices)}" if self._choices else ""
        else:
            what = f"a JSON object with the fields of this schema: {json.dumps(self._fields, ensure_ascii=False)}"
        rules = f"{self._settings.instructions}\n" if self._settings.instructions else ""
        return f"{rules}Act in the environment, one action in each answer: {what}. {self.action_format.instructions}"

    def close(self) -> None:
        connection, self._connection = getattr(self, "_connection", None), None
        if connection is not None:
            with contextlib.suppress(Exception):  # the server may be gone
                connection.send(json.dumps({"type": "close"}))
            with contextlib.suppress(Exception):
                self._held.close()

    def _apart(self, *seed: int) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # nothing of the package runs in this process

    def _begin(self, seed: int) -> str:
        if self._connection is None:
            self._connection = self._connect()
        self._paid = 0.0
        said = self._ask("reset", {**self._settings.reset, "seed": seed})
        return self._shown_of(said.get("observation") or {})

    def _play(self, move: str) -> Played:
        try:
            action = self._action(move)
        except ValueError as error:
            return Played(f"The action cannot be read: {error}", valid=False)
        try:
            said = self._ask("step", action)
        except _RefusedError as error:
            return Played(f"The environment refused the action: {error}", valid=False)
        paid, over = float(said.get("reward") or 0.0), bool(said.get("done"))
        self._paid += paid
        observation = said.get("observation") or {}
        beside = [each for each in (said.get("metadata"), observation.get("metadata")) if isinstance(each, dict)]
        told = next((each["success"] for each in (observation, *beside[::-1]) if "success" in each), None)
        success = told if isinstance(told, bool) else over and self._paid > 0
        return Played(self._shown_of(observation), paid, over, success=success)

    def _action(self, move: str) -> dict[str, Any]:
        """The action of a text. Raises ``ValueError`` that says what does not fit."""
        if self._field and self._choices:
            if move not in self._choices:
                raise ValueError(f"{move[:100]!r} is not one of {', '.join(self._choices)}")
            return {self._field: self._choices[move]}
        if self._field and _takes_text(self._fields[self._field]):
            return {self._field: move}
        try:
            value = json.loads(move)
        except ValueError as error:
            raise ValueError(f"{move[:100]!r} is not JSON ({error})") from None
        if self._field:
            return {self._field: value}
        if not isinstance(value, dict):
            raise ValueError(f"it must be a JSON object, not {move[:100]!r}")
        return value

    def _example(self, name: str) -> Any:
        field = self._fields[name]
        first = next(iter(field.get("examples") or _choices(field)), field.get("default"))
        if first is not None:
            return first
        plain: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
        return plain.get(str(field.get("type")), "text")

    def _shown_of(self, observation: Mapping[str, Any]) -> str:
        field = self._settings.observation_field
        # Releases differ in whether these stand in it too.
        observation = {name: each for name, each in observation.items() if name not in ("metadata", "reward", "done")}
        if field is not None and field not in observation:
            raise ConfigError(
                f"observation_field is {field!r}; the observation of {self._settings.url} has "
                f"{', '.join(map(repr, observation)) or 'no fields'}"
            )
        texts = [value for value in observation.values() if isinstance(value, str) and value]
        only = texts[0] if len(texts) == len(observation) == 1 else observation
        return _text(only if field is None else observation[field])

    def _read_schema(self) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """The fields of an action with their schemas, and which of them are required."""
        url = self._settings.url.rstrip("/").replace("ws", "http", 1) if self._settings.url[:2] == "ws" else None
        address = f"{url or self._settings.url.rstrip('/')}/schema"
        timeout_s = self._settings.timeout_s
        background = EventLoopThread("schema of an OpenEnv server")
        try:
            told = json.loads(background.submit(_fetch(address, timeout_s)).result())
        except TimeoutError:
            raise DeadlineExceededError(f"the answer of {address}", timeout_s) from None
        except httpx.HTTPError as error:
            raise EnvironmentFaultError(f"{address} does not answer: {error!r}; is the server running?") from error
        except (ValueError, RecursionError) as error:
            raise EnvironmentFaultError(f"{address} has no schema of an action; is it an OpenEnv server?") from error
        finally:
            background.stop()
        schema = told.get("action") if isinstance(told, dict) else None
        if not isinstance(schema, dict):
            raise EnvironmentFaultError(f"{address} has no schema of an action; is it an OpenEnv server?")
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
            if not isinstance(schema.get("properties"), dict):
                raise ValueError(f"it has no 'properties', but {', '.join(map(repr, schema)) or 'nothing'}")
            fields = {
                name: _resolved(each, schema) for name, each in schema["properties"].items() if name != "metadata"
            }
        except (jsonschema.SchemaError, ValueError, RecursionError) as error:
            reason = error.message if isinstance(error, jsonschema.SchemaError) else str(error)
            raise EnvironmentFaultError(
                f"{address} has a schema of an action that cannot be used: {reason[:300]}; an action must be an object "
                "with fields"
            ) from error
        return fields, [name for name in schema.get("required", ()) if name in fields]

    def _connect(self) -> Any:
        try:
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ModuleNotFoundError as error:
            raise MissingExtraError("roll/OpenEnv-v0", "openenv") from error
        url = self._settings.url.rstrip("/")
        address = (url if url[:2] == "ws" else url.replace("http", "ws", 1)) + "/ws"
        proxy: Any = {"proxy": None} if _is_here(address) else {}
        try:
            opened = connect(address, open_timeout=self._settings.timeout_s, max_size=_LARGEST, **proxy)
            return self._held.enter_context(opened)
        except (OSError, WebSocketException) as error:
            raise EnvironmentFaultError(f"{address} cannot be reached: {error}; is the server running?") from error

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer. Raises :class:`_RefusedError` for an action that is not well formed,
        :class:`DeadlineExceededError` and :class:`EnvironmentFaultError`, after which the session is over."""
        from websockets.exceptions import ConnectionClosed, WebSocketException

        url = self._settings.url
        if self._connection is None:
            raise gymnasium.error.ResetNeeded(f"the session with {url} is over; call reset() first")
        try:
            with contextlib.suppress(ConnectionClosed):  # why may have been told before
                self._connection.send(json.dumps({"type": kind, "data": data}))
            said = json.loads(self._connection.recv(timeout=self._settings.timeout_s))
            _check_answer(said)
        except TimeoutError:
            self.close()
            raise DeadlineExceededError(f"the answer of {url} to {kind}", self._settings.timeout_s) from None
        except (OSError, WebSocketException, ValueError, RecursionError) as error:
            self.close()
            raise EnvironmentFaultError(f"the session with {url} broke at {kind}: {error}") from error
        if said.get("type") == "error":
            told = said.get("data") or {}
            if kind == "step" and told.get("code") == "VALIDATION_ERROR":
                raise _RefusedError(_reasons(told))
            self.close()
            hint = "; start the server with more sessions (max_concurrent_envs)" * (
                told.get("code") == "CAPACITY_REACHED"
            )
            raise EnvironmentFaultError(f"{url} failed at {kind}: {told.get('code')}: {told.get('message')}{hint}")
        answer: dict[str, Any] = said["data"]
        return answer


async def _fetch(address: str, timeout_s: float) -> bytes:
    """What a GET of ``address`` answers. Raises ``TimeoutError``, also where it comes in drops, and ``ValueError``
    where it is too large."""
    async with (
        asyncio.timeout(timeout_s),
        # Loading the certificates of all authorities takes longer than the rest of making an environment.
        httpx.AsyncClient(
            timeout=None, trust_env=not _is_here(address), verify=not address.startswith("http:")
        ) as client,
        client.stream("GET", address) as reply,
    ):
        reply.raise_for_status()
        body = bytearray()
        async for part in reply.aiter_bytes():
            body += part
            if len(body) > _LARGEST:
                raise ValueError(f"it has more than {_LARGEST} bytes")
        return bytes(body)


def _resolved(field: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a field and of its alternatives with references within ``schema`` followed."""
    found = _followed(field, schema)
    return {**found, "anyOf": [_followed(each, schema) for each in found["anyOf"]]} if "anyOf" in found else found


def _followed(field: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a schema refers to, itself or by its only ``allOf``, as pydantic writes enumerations. Raises ``ValueError``
    for a reference that leads nowhere."""
    found: dict[str, Any] = {} if isinstance(field, bool) else dict(field)
    seen: set[str] = set()
    while "$ref" in found or len(found.get("allOf", ())) == 1:
        inner: Any = found.pop("allOf")[0] if "$ref" not in found else schema
        if "$ref" in found:
            reference = found.pop("$ref")
            for name in reference.split("/")[1:]:
                inner = inner.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(inner, dict) else None
            if not isinstance(inner, dict) or reference[:1] != "#" or reference in seen:
                raise ValueError(f"the reference {reference!r} leads nowhere")
            seen.add(reference)
        found = {**({} if isinstance(inner, bool) else inner), **found}
    return found


def _check_answer(said: Any) -> None:
    """Raises ``ValueError`` for a message that is not in the wire format."""
    data = said.get("data", {} if said.get("type") == "error" else None) if isinstance(said, dict) else None
    if not isinstance(data, dict):
        raise ValueError(f"its answer is no object with an object 'data', but {str(said)[:100]}")
    if not isinstance(data.get("observation") or {}, dict):
        raise ValueError(f"an observation is an object, not {str(data['observation'])[:100]}")
    reward, done = data.get("reward"), data.get("done")
    # NaN is not within the bounds, either.
    if not isinstance(reward, (int, float, type(None))) or not abs(reward or 0) <= sys.float_info.max:
        raise ValueError(f"a reward is a finite number, not {reward!r:.100}")
    if not isinstance(done, (bool, type(None))):
        raise ValueError(f"done is true or false, not {str(done)[:100]}")


class _RefusedError(Exception):
    """The server takes the action for malformed."""


def _reasons(told: Mapping[str, Any]) -> str:
    """Of pydantic's errors the places and messages, else what the server says."""
    found = told.get("errors")
    errors = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    reasons = [f"{'.'.join(map(str, each.get('loc') or ())) or 'action'}: {each.get('msg')}" for each in errors]
    return "; ".join(reasons) or str(told.get("message"))


def _takes_text(field: Mapping[str, Any]) -> bool:
    return any(kind.get("type") == "string" for kind in (field, *field.get("anyOf", ())))


def _choices(field: Mapping[str, Any]) -> list[Any]:
    """The values that a field can have, where the schema lists them all."""
    kinds = [kind for kind in field.get("anyOf") or (field,) if kind.get("type") != "null"]
    listed = [
        kind["enum"] if "enum" in kind else [kind["const"]] for kind in kinds if "enum" in kind or "const" in kind
    ]
    return [value for values in listed for value in values] if len(listed) == len(kinds) else []


def _by_text(values: Sequence[Any]) -> dict[str, Any]:
    """Each value by its text; by its JSON, where two have the same text (1 and "1")."""
    found = {_text(value): value for value in values}
    return found if len(found) == len(values) else {json.dumps(value, ensure_ascii=False): value for value in values}


def _text(value: Any) -> str:
    """A value as the text of an answer."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_here(address: str) -> bool:
    """Whether an address is of this machine, which no proxy reaches."""
    host = urlsplit(address).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
