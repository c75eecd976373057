"""ChatRenderer: chat messages to token ids through a tokenizer's own chat template, and exact continuation.

What was sampled is never re-tokenised: :meth:`ChatRenderer.extend` keeps the given ids to the letter and appends only
what the template puts after an assistant message. A template that rewrites earlier messages (drops old thoughts, moves
the system message, counts turns) cannot be continued that way; probe conversations find that out once, and the caller
then renders the whole conversation anew. Left out: text that spells a special token is read as that token, as the
tokenizer does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from roll_envs.errors import ConfigError
from roll_envs.types import Message

__all__ = ["ChatRenderer"]

_ASK = Message(role="user", content="probe question")
_REPLY = Message(role="assistant", content="probe reply")
_THOUGHT = Message(role="assistant", content="<think>\nprobe thought\n</think>\n\nprobe reply")
_SYSTEM = Message(role="system", content="probe rules")
_PROBES = (
    (_ASK, _THOUGHT),
    (_ASK, _REPLY, _ASK, _REPLY),
    (_SYSTEM, _ASK, _REPLY),
    (_SYSTEM, _ASK, _REPLY, _ASK, _REPLY),
)
"""Conversations whose last reply must be continued like that of the plainest one, question and reply."""


class ChatRenderer:
    """A :class:`roll_envs.policy.Renderer` over a Hugging Face tokenizer that has a chat template.

    Raises :class:`ConfigError` when nothing is known to end a reply: the tokenizer has no ``eos_token`` and the
    template closes a reply with no special token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        added = {int(i) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special = frozenset(added | {int(i) for i in tokenizer.all_special_ids})
        self._closing = self._closing_ids()
        ends = [i for i in self._closing if i in self._special][:1]
        if tokenizer.eos_token_id is not None:
            ends.append(int(tokenizer.eos_token_id))
        self._stop_ids = tuple(dict.fromkeys(ends))
        if not self._stop_ids:
            raise ConfigError(
                "the tokenizer has no eos_token and its chat template closes a reply with no special token, so nothing "
                "would end an answer; set eos_token in tokenizer_config.json"
            )
        self._continues = self._can_continue()
        self._tails: dict[Message, tuple[int, ...] | None] = {}

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a reply: the special token with which the template closes it, then the tokenizer's eos."""
        return self._stop_ids

    def _text(self, messages: Sequence[Message], *, open_reply: bool) -> str:
        dicts = [{"role": m.role, "content": m.content} for m in messages]
        return str(self.tokenizer.apply_chat_template(dicts, tokenize=False, add_generation_prompt=open_reply))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._encode(self._text(messages, open_reply=True))

    def extend(self, ids: Sequence[int], message: Message) -> tuple[int, ...] | None:
        if not self._continues:
            return None
        if message not in self._tails:
            if len(self._tails) > 10_000:
                self._tails.clear()
            self._tails[message] = self._tail(message)
        tail = self._tails[message]
        if tail is None:
            return None
        kept = tuple(ids)
        if kept and kept[-1] in self._stop_ids and kept[-1] in self._closing:
            # The template closes the reply itself; one that ended with the stop token has that part already.
            return kept + tail[self._closing.index(kept[-1]) + 1 :]
        return kept + tail

    def _tail(self, message: Message) -> tuple[int, ...] | None:
        """Ids that follow an assistant reply (its closing included) when ``message`` comes next."""
        text = self._tail_text((_ASK, _REPLY), message)
        return None if text is None else self._encode(text)

    def _tail_text(self, before: Sequence[Message], message: Message) -> str | None:
        opened = self._text(before[:-1], open_reply=True) + before[-1].content
        whole = self._text([*before, message], open_reply=True)
        return whole[len(opened) :] if whole.startswith(opened) else None

    def _closing_ids(self) -> tuple[int, ...]:
        """What the template puts after a reply, whatever comes next; empty when it cannot be told."""
        opened = self._text([_ASK], open_reply=True) + _REPLY.content
        closed = self._text([_ASK, _REPLY], open_reply=False)
        return self._encode(closed[len(opened) :]) if closed.startswith(opened) else ()

    def _can_continue(self) -> bool:
        plain = self._tail_text((_ASK, _REPLY), _ASK)
        if plain is None:
            return False
        for before in _PROBES:
            try:
                if self._tail_text(before, _ASK) != plain:
                    return False
            except TemplateError:
                if before[0] is not _SYSTEM:
                    raise
                # The template refuses system messages, so no conversation has one.
        return True

    def decode(self, ids: Sequence[int]) -> str:
        kept = [i for i in ids if i not in self._special]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))
