"""ChatRenderer: chat messages to token ids through a tokenizer's own chat template, and exact continuation.

What was sampled is never re-tokenised: :meth:`ChatRenderer.extend` keeps the given ids to the letter and appends only
what the template puts after an assistant message. A template that rewrites earlier messages (drops old thoughts, say)
cannot be continued that way; this is detected, and the caller renders the whole conversation anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roll_envs.types import Message

__all__ = ["ChatRenderer"]

_PROBE_USER, _PROBE_REPLY = "probe question", "probe reply"


class ChatRenderer:
    """A :class:`roll_envs.policy.Renderer` over a Hugging Face tokenizer that has a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._stop_ids = (int(tokenizer.eos_token_id),)
        self._special = frozenset(int(i) for i in tokenizer.all_special_ids)
        self._tails: dict[Message, tuple[int, ...] | None] = {}

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    def _text(self, messages: Sequence[Message], *, open_reply: bool) -> str:
        dicts = [{"role": m.role, "content": m.content} for m in messages]
        return str(self.tokenizer.apply_chat_template(dicts, tokenize=False, add_generation_prompt=open_reply))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._encode(self._text(messages, open_reply=True))

    def extend(self, ids: Sequence[int], message: Message) -> tuple[int, ...] | None:
        if message not in self._tails:
            if len(self._tails) > 10_000:
                self._tails.clear()
            self._tails[message] = self._tail(message)
        tail = self._tails[message]
        if tail is None:
            return None
        kept = tuple(ids)
        # The template closes the reply itself; a reply that ended with the stop token has that part already.
        if kept and kept[-1] in self._stop_ids and tail and tail[0] == kept[-1]:
            return kept + tail[1:]
        return kept + tail

    def _tail(self, message: Message) -> tuple[int, ...] | None:
        """Ids that follow an assistant reply (its closing included) when ``message`` comes next."""
        before = [Message(role="user", content=_PROBE_USER), Message(role="assistant", content=_PROBE_REPLY)]
        opened = self._text(before[:1], open_reply=True) + _PROBE_REPLY
        whole = self._text([*before, message], open_reply=True)
        if not whole.startswith(opened):
            return None
        return self._encode(whole[len(opened) :])

    def decode(self, ids: Sequence[int]) -> str:
        kept = [i for i in ids if i not in self._special]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))
