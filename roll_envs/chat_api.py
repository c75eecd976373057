"""OpenAI's chat API: chat messages as text, what a server answered, and which failures may be asked again.

Requests are sent elsewhere: by the judge (:mod:`roll_envs.verifiers.judge_llm_client`) and by the engine ``openai``.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# 529 is no standard status; some servers say with it that they are overloaded.
RETRY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Refusals that say nothing about the request, which may succeed later."""

# How servers say that a reply has come to its end; some say nothing.
_ENDED = frozenset({"", "stop", "eos", "eos_token", "stop_sequence", "end_turn"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatAnswer:
    """The first choice of an answer."""

    text: str
    """Empty where the model said nothing: it called a tool, or spent all its tokens on thoughts that are not shown."""
    refusal: str = ""
    """What the model said instead, where the API tells that it refused."""
    finish: str = ""
    """As the server says it, such as ``stop``, ``length`` or ``content_filter``; empty where it does not say."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def cut(self) -> str:
        """Why it did not come to its end, in the server's word (``length``); empty where it did."""
        return "" if self.finish in _ENDED else self.finish


def read_answer(reply: Any) -> ChatAnswer:
    """What the body of an answer says, once it is read as JSON. Raises ValueError for one that is none."""
    try:
        choice = reply["choices"][0]
        said = choice["message"]
        text, refusal, finish = said.get("content"), said.get("refusal"), choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"the reply has no choices: {str(reply)[:200]}") from None
    # Some servers send the content as a list of parts.
    if isinstance(text, list):
        text = "".join(str(part.get("text", "")) for part in text if isinstance(part, Mapping))
    if not isinstance(text, str | None):
        raise ValueError(f"the reply's content is no text: {str(text)[:200]}")
    usage = reply.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    return ChatAnswer(
        text=text or "",
        refusal=refusal if isinstance(refusal, str) else "",
        finish=finish if isinstance(finish, str) else "",
        prompt_tokens=_count(counts.get("prompt_tokens")),
        completion_tokens=_count(counts.get("completion_tokens")),
    )


def said_in(content: Any) -> Any:
    """The content of a chat message; of several parts, their texts."""
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) for part in content):
        return "\n".join(str(part["text"]) for part in content if "text" in part)
    return content


def conversation(messages: Sequence[Mapping[str, Any]], *, roles: bool = False) -> str:
    """What chat messages say, each behind its role with ``roles``, or where one is the assistant's."""
    roles = roles or any(m.get("role") == "assistant" for m in messages)
    return "\n\n".join(f"{m.get('role')}: " * roles + str(said_in(m.get("content")) or "") for m in messages)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0


def retry_after_s(header: str) -> float:
    """The pause that a ``Retry-After`` header asks for, in seconds or as a date; 0 when it says neither."""
    header = header.strip()
    if header.isascii() and header.isdigit() and len(header) < 7:
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except (ValueError, TypeError):
        return 0.0
    return max(0.0, moment.timestamp() - time.time()) if moment.tzinfo else 0.0
