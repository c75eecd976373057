"""Replies: an answer, or a refusal with the HTTP status of its cause."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from sandboxes.service.pool import DrainingError, QueueFullError

RETRY_AFTER_S = "1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An answer in JSON, or as ``text``. ``outcome`` is its label in the metrics and the log."""

    body: Mapping[str, Any]
    status: int = 200
    outcome: str = ""
    text: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """A request that is not carried out; ``kind`` is machine-readable, the message is for people."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, kind, message)
        self.status, self.kind, self.message, self.headers = status, kind, message, dict(headers or {})

    def answer(self) -> Answer:
        """The refusal as JSON."""
        body = {"detail": self.message, "kind": self.kind}
        return Answer(body=body, status=self.status, outcome=self.kind, headers=self.headers)


def refusal_of(error: Exception, full_status: int = 429) -> Refusal | None:
    """The HTTP form of an error of the pool or of a sandbox; ``None`` for an error in the service itself."""
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
    ConfigError: (422, "unusable"),
}


def encode_json(body: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8; text that is no valid Unicode is written as escapes."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
