"""Replies (an answer, or a refusal with the HTTP status of its cause) and the reading of requests: bodies, JSON, forms.

Every invalid request is a :class:`Refusal` with a 4xx, or a :class:`~roll_envs.errors.ConfigError`, which becomes one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, TypeVar

import pydantic
import pydantic_core
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from sandboxes.programs import check_path
from sandboxes.service.pool import DrainingError, QueueFullError
from sandboxes.service.settings import Settings
from sandboxes.service.wire import decode_bytes

RETRY_AFTER_S = "1"


class Answer(Response):
    """An answer in JSON, or of bytes as they are. ``outcome`` is its label in the metrics and the log."""

    media_type = "application/json"

    def __init__(
        self, body: Any, *, status: int = 200, outcome: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(body, status, headers)
        self.outcome = outcome

    def render(self, content: Any) -> bytes:
        """JSON in UTF-8; lone surrogates, which stand in texts only, are written as escapes."""
        if isinstance(content, bytes):
            return content
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


class Refusal(Exception):
    """A request that is not carried out; ``kind`` is machine-readable, the message is for people."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, kind, message)
        self.status, self.kind, self.message, self.headers = status, kind, message, headers

    def answer(self) -> Answer:
        """The refusal as JSON."""
        body = {"detail": self.message, "kind": self.kind}
        return Answer(body, status=self.status, outcome=self.kind, headers=self.headers)


def refusal_of(error: Exception, full_status: int) -> Refusal | None:
    """The HTTP form of an error of the pool, a sandbox or a connection; ``None`` for an error in the service itself."""
    if isinstance(error, Refusal):
        return error
    for cause, (status, kind) in _CAUSES.items():
        if isinstance(error, cause):
            again = {} if cause is ConfigError else {"Retry-After": RETRY_AFTER_S}
            return Refusal(full_status if cause is QueueFullError else status, kind, str(error), again)
    return None


_CAUSES: Mapping[type[Exception], tuple[int, str]] = {
    QueueFullError: (429, "queue_full"),
    DrainingError: (503, "draining"),
    DeadlineExceededError: (504, "deadline"),
    SandboxError: (503, "sandbox"),
    # nginx's status for a client that closed its connection, which nobody reads any more.
    ClientDisconnect: (499, "gone"),
    ConfigError: (422, "unusable"),
}


F = TypeVar("F", bound=pydantic.BaseModel)

MOST_ERRORS = 5
MOST_ITEMS = 10_000
"""Of a list or an object that is a field: pydantic would describe each of millions that do not fit, for seconds."""
MOST_KEYS, MOST_LISTS = 200_000, 2_000_000
"""Of a whole body; each number takes about a tenth of a second to read."""


class Bodies:
    """Reads the bodies of requests, and limits their total size in memory."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.held_bytes = settings, 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[dict[str, Any]]:
        """The JSON object that was posted, else ``{}``; its body counts as held until the end of the block.

        Raises :class:`Refusal`: 415 and 400 for what is no JSON, 413 for what is too long (before reading, where
        Content-Length says so), 429 where too much is held already, 408 when it does not arrive in time; and
        :class:`ClientDisconnect`.
        """
        request.state.held_bytes = 0
        try:
            yield await self._object(request) if request.method == "POST" else {}
        finally:
            self.held_bytes -= request.state.held_bytes

    async def _object(self, request: Request) -> dict[str, Any]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Any web page can make a browser post other types to a local service without permission (CORS).
            raise Refusal(415, "content_type", f"send Content-Type: application/json, not {kind[:80] or 'none'!r}")
        told = request.headers.get("content-length", "")
        # Twenty digits are enough to see that it is too long; int() refuses thousands of them.
        self._check_length(int(told[:20]) if told.isdigit() else 0)
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                async for part in request.stream():
                    body += part
                    request.state.held_bytes += len(part)
                    self.held_bytes += len(part)
                    self._check_length(len(body))
        except TimeoutError as error:
            message = f"the body did not arrive within {self.settings.body_timeout_s:g} s"
            raise Refusal(408, "slow_body", message, {"Connection": "close"}) from error
        # Not in a thread: no other one runs while JSON is parsed, for which its parts are bounded.
        data = parse_json(body, "the body")
        if not isinstance(data, dict):
            raise Refusal(422, "form", f"the body must be a JSON object, not {type(data).__name__}")
        return data

    def _check_length(self, length: int) -> None:
        check_most("a body may have", length, self.settings.max_body_bytes, "bytes (--max-body)", "too_large")
        if self.held_bytes > self.settings.max_held_bytes:
            held = self.settings.max_held_bytes
            message = f"requests of {held} bytes are held already (--max-held); ask again later"
            raise Refusal(429, "queue_full", message, {"Retry-After": RETRY_AFTER_S})


def check_most(what: str, number: float, most: float, unit: str, kind: str = "too_many") -> None:
    """Raise :class:`Refusal` where ``number`` is above ``most``: 413 for what is ``too_large``, else 422."""
    if number > most:
        status = 413 if kind == "too_large" else 422
        raise Refusal(status, kind, f"{what} {most:.10g} {unit}, not {number:.10g}")


def fill(form: type[F], data: dict[str, Any]) -> F:
    """``data`` as ``form``. Raises :class:`Refusal` (422) that names each field that does not fit."""
    check_sizes(data)
    try:
        return form.model_validate(data)
    except pydantic.ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        told = [f"{'.'.join(str(p)[:80] for p in fault['loc']) or 'body'}: {fault['msg']}" for fault in faults]
        more = [f"and {len(told) - MOST_ERRORS} more"] if len(told) > MOST_ERRORS else []
        raise Refusal(422, "form", "; ".join([*told[:MOST_ERRORS], *more])) from error


def check_sizes(fields: Mapping[str, Any]) -> None:
    """Raise :class:`Refusal` (422) for too many fields, or one with too many entries."""
    for name, value in itertools.chain([("the request", fields)], fields.items()):
        if isinstance(value, (list, dict)):
            check_most(f"{name[:80]} may have", len(value), MOST_ITEMS, "entries")


def check_code(source: str, settings: Settings, what: str = "code") -> str:
    """``source``. Raises :class:`Refusal` (413) when it is too long."""
    length = len(source.encode("utf-8", "replace"))
    check_most(f"{what} may have", length, settings.max_code_bytes, "bytes in UTF-8 (--max-code)", "too_large")
    return source


def check_paths(paths: Iterable[str], settings: Settings, what: str) -> tuple[str, ...]:
    """``paths``. Raises :class:`Refusal` (422) for too many, and :class:`ConfigError` for one that is not below the
    working folder."""
    listed = tuple(paths)
    check_most(f"{what} may name", len(listed), settings.max_files, "files (--max-files)")
    for path in listed:
        check_path(path, what)
    return listed


def read_files(files: dict[str, str | None], settings: Settings) -> dict[str, bytes]:
    """Base64 contents by path; those that are null are left out. Raises what :func:`check_paths` raises, and
    :class:`ConfigError` for what is no base64."""
    check_paths(files, settings, "files")
    return {path: decode_bytes(text, f"files[{path!r}]") for path, text in files.items() if text is not None}


def parse_json(text: bytes | bytearray | str, what: str) -> Any:
    """Parse JSON in UTF-8, nested up to 200 levels, without lone surrogates. Raises :class:`Refusal`: 400, and 422 for
    more parts than can be read at once: no other thread runs meanwhile."""
    check_parts(text.encode() if isinstance(text, str) else text, what)
    gc.disable()  # it would look at millions of new lists again and again, for seconds in which no other thread runs
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:  # also what is no UTF-8, and numbers with thousands of digits
        raise Refusal(400, "json", f"{what} is not JSON: {error}"[:300]) from error
    finally:
        gc.enable()


def check_parts(text: bytes | bytearray, what: str) -> None:
    """Raise :class:`Refusal` (422) for JSON with more parts than can be read at once."""
    dense = text.translate(None, b" \t\r\n")
    for name, mark, most in (("keys", b'":', MOST_KEYS), ("lists", b"[", MOST_LISTS)):
        check_most(f"{what} may have", dense.count(mark), most, f"{name} (those in texts count too)")
