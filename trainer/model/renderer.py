"""ChatRenderer: chat messages to token ids through a tokenizer's own chat template, and exact continuation.

What was sampled is never re-tokenised: :meth:`ChatRenderer.extend` keeps the given ids to the letter and appends only
what the template puts after an assistant message. A template that rewrites earlier messages (drops old thoughts, moves
the system message, counts turns) cannot be continued that way; probe conversations find that out once, and the caller
then renders the whole conversation anew. Text never becomes a control token: a marker that an observation spells is
encoded as the characters it is made of. docs/tokens.md tells what is guaranteed. Left out: markers that are ordinary
text in the template itself (``### User:``), which any text can imitate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from jinja2.exceptions import TemplateError

from roll_envs.errors import ConfigError
from roll_envs.types import Message

_SYSTEM = Message(role="system", content="probe rules")
_ASK = Message(role="user", content="probe question")
_REPLY = Message(role="assistant", content="probe reply")
_THOUGHT = Message(role="assistant", content="<think>\nprobe thought\n</think>\n\nprobe reply")
_THOUGHT_OPENED = Message(role="assistant", content="probe thought\n</think>\n\nprobe reply")
"""What is sampled where the template itself opens the thought."""

_THOUGHT_OPENING = re.compile(r"<think>\s*\Z")
"""A thought that the template opens for the reply; what is sampled then begins inside it."""
_Conversations = tuple[tuple[Message, ...], ...]

_LONE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: no Unicode character, and no tokenizer takes it."""
_MARKER = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
"""Some vocabularies do not list their role markers as special, but write them so."""
_MARKS = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))
"""Private characters; the first that no message contains marks where a text is cut."""
_CACHED = 10_000


class ChatRenderer:
    """A :class:`roll_envs.policy.Renderer` over a Hugging Face tokenizer that has a chat template.

    ``variables`` are given to the template (``{"enable_thinking": False}``). ``rewrites_history`` tells whether an
    ordinary next message changes how the template shows earlier ones: each turn is then a sequence of its own.

    Raises :class:`ConfigError` when the template refuses a plain conversation, or nothing is known to end a reply: the
    tokenizer has no ``eos_token`` and the template closes a reply with no special token.
    """

    def __init__(self, tokenizer: Any, *, variables: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._variables = dict(variables or {})
        added = {int(i): token for i, token in tokenizer.added_tokens_decoder.items()}
        special = {i for i, token in added.items() if token.special}
        self._special = frozenset(special | {int(i) for i in tokenizer.all_special_ids})
        # Members of a group and states met again ask for the same: looked up, not rendered or decoded anew.
        self._rendered = lru_cache(_CACHED)(self._render)
        self._tail_ids = lru_cache(_CACHED)(self._tail)
        self._decoded = lru_cache(_CACHED)(self._decode)
        self._markers = _Spelled(tokenizer, self._special, [])
        """Looked for in replies: what stands there was sampled, and markers beyond the special ones may have been."""
        self._controls = _Spelled(
            tokenizer, self._special, [str(t) for t in added.values() if _MARKER.fullmatch(str(t))]
        )
        tokenizer("", add_special_tokens=False)  # sets its core to neither cut nor pad
        self._core = getattr(tokenizer, "backend_tokenizer", None)
        """Of a fast tokenizer; the wrapper around it takes three times as long as the encoding."""
        self._prefixed = self.decode((*self._ids("<"), *self._ids("|"))) != "<|"
        """Whether the tokenizer puts a blank before any text it is given."""
        self._lists = self._merges_system = False
        self._thought_opening = ""
        try:
            self._lists, self._merges_system = self._forms()
            opened = _THOUGHT_OPENING.search(self._text([_ASK], open_reply=True))
            self._thought_opening = opened.group() if opened else ""
            self._probes, self.rewrites_history = self._try_probes()
            self._closing = self._closing_ids()
        except ConfigError:
            raise
        except Exception as error:  # a program of others, which may fail in any way
            raise ConfigError(
                f"the chat template fails on a plain conversation ({type(error).__name__}: {error}); a template for "
                "conversations without tools is needed"
            ) from error
        eos = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        ends = [i for i in self._closing if i in self._special][:1]
        # Where the closing has several special tokens with the eos among them, the others may occur in a reply, too.
        self._stop_ids = eos if set(eos) & set(self._closing) else tuple(dict.fromkeys((*ends, *eos)))
        if not self._stop_ids:
            raise ConfigError(
                "the tokenizer has no eos_token and its chat template closes a reply with no special token, so nothing "
                "would end an answer; set eos_token in tokenizer_config.json"
            )

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a reply: the tokenizer's eos, and before it the special token with which the template closes a
        reply where that is another."""
        return self._stop_ids

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of the whole conversation and the opening of the next reply.

        The system message becomes the beginning of the first question where the template has no place for one.
        """
        return self._rendered(tuple(messages))

    def _render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        shown, mark = self._cut(messages)
        try:
            text = self._text(shown, open_reply=True)
        except TemplateError:
            # Some templates want a question, and take a user message that looks like a tool's result for none.
            first = next((n for n, m in enumerate(shown) if m.role == "user"), len(shown))
            mark = mark or self._unused(shown)
            asked = [Message(role="user", content=mark + m.content) for m in shown[first : first + 1]]
            text = self._text([*shown[:first], *asked, *shown[first + 1 :]], open_reply=True)
        return self._encode(text, mark)

    def extend(self, ids: Sequence[int], message: Message) -> tuple[int, ...] | None:
        tail = self._tail_ids(message)
        if tail is None:
            return None
        kept = tuple(ids)
        if kept and kept[-1] in self._stop_ids:
            # The template closes the reply itself; one that ended with the stop token has that part already.
            for place, (i, j) in enumerate(zip(self._closing, tail, strict=False)):
                if i != j:
                    break
                if i == kept[-1]:
                    return kept + tail[place + 1 :]
        return kept + tail

    def decode(self, ids: Sequence[int]) -> str:
        return self._decoded(tuple(ids))

    def _decode(self, ids: tuple[int, ...]) -> str:
        kept = [i for i in ids if i not in self._special]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    # -- text to ids -------------------------------------------------------------------------------------------------

    def _ids(self, text: str) -> tuple[int, ...]:
        if self._core is None:
            return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return tuple(self._core.encode(text, add_special_tokens=False).ids)

    def _encode(self, text: str, mark: str = "", *, inside: bool = False) -> tuple[int, ...]:
        """Ids of ``text``, whose parts between ``mark`` are encoded by themselves; ``inside`` another text."""
        parts = text.split(mark) if mark else [text]
        return tuple(i for n, part in enumerate(parts) for i in (self._inner if inside or n else self._ids)(part))

    def _inner(self, text: str) -> tuple[int, ...]:
        """Ids of text that continues another, without the blank that some tokenizers put before every text."""
        if not self._prefixed:
            return self._ids(text)
        before, ids = self._ids("\n"), self._ids("\n" + text)
        return ids[len(before) :] if ids[: len(before)] == before else self._ids(text)

    def _cut(self, messages: Sequence[Message]) -> tuple[list[Message], str]:
        """The messages with a mark inside each control token that they spell, and the mark (empty: none)."""
        whole = [Message(role=m.role, content=_LONE.sub("\ufffd", m.content)) for m in messages]
        spelled = [self._markers if m.role == "assistant" else self._controls for m in whole]
        if not any(s.within(m.content) for s, m in zip(spelled, whole, strict=True)):
            return whole, ""
        mark = self._unused(whole)
        cut = [Message(role=m.role, content=s.cut(m.content, mark)) for s, m in zip(spelled, whole, strict=True)]
        return cut, mark

    def _unused(self, messages: Sequence[Message]) -> str:
        """A private character that neither the messages nor the template contain."""
        used = {c for m in messages for c in m.content} | set(str(self.tokenizer.chat_template))
        return next(chr(code) for code in _MARKS if chr(code) not in used)

    def _text(self, messages: Sequence[Message], *, open_reply: bool) -> str:
        if self._merges_system:
            messages = _without_system(messages)
        dicts = [{"role": m.role, "content": self._content(m)} for m in messages]
        return str(
            self.tokenizer.apply_chat_template(
                dicts, tokenize=False, add_generation_prompt=open_reply, **self._variables
            )
        )

    def _content(self, message: Message) -> Any:
        text = message.content
        if message.role == "assistant" and not text.lstrip().startswith("<think>"):
            text = self._thought_opening + text  # which the template had written, so that it was not sampled
        return [{"type": "text", "text": text}] if self._lists else text

    # -- what the template does --------------------------------------------------------------------------------------

    def _forms(self) -> tuple[bool, bool]:
        """Whether the template takes contents as lists, and whether it has no place for a system message."""
        problem: Exception | None = None
        try:
            shown = self._text([_ASK], open_reply=True)
        except Exception as error:  # it may want the other form
            shown, problem = "", error
        if _ASK.content not in shown.casefold():
            self._lists = True
            try:
                shown = self._text([_ASK], open_reply=True)
            except Exception as error:
                raise problem or error from None
        if _ASK.content not in shown.casefold():
            raise problem or ConfigError(f"the chat template does not show the question; it gives {shown!r}")
        try:
            return self._lists, _SYSTEM.content not in self._text([_SYSTEM, _ASK], open_reply=True).casefold()
        except Exception:  # it refuses one
            return self._lists, True

    def _try_probes(self) -> tuple[_Conversations, bool]:
        """The conversations to try, and whether the next question changes how one of them is shown.

        Replies are what the template's opening asks for: with a thought where it opens one. Some templates for training
        keep thoughts, but put an empty one before a reply without.
        """
        pairs = [(_REPLY, _THOUGHT), (_THOUGHT, _THOUGHT)]
        if self._thought_opening:
            pairs = [(_THOUGHT_OPENED, _THOUGHT_OPENED)]
        for self._probes in (_conversations(*pair) for pair in pairs):
            if self._keeps_history(_ASK):
                return self._probes, False
        return _conversations(*pairs[0]), True

    def _closing_ids(self) -> tuple[int, ...]:
        """What ends a reply: what the template puts after one, whatever comes next."""
        before = self._probes[0]
        last = self._text(before, open_reply=False).rpartition(_REPLY.content)[2]
        followed = self._text([*before, _ASK], open_reply=True).rpartition(_REPLY.content)[2]
        ids, then = self._encode(last, inside=True), self._encode(followed, inside=True)
        if not any(i in self._special for i in ids):
            # The next message's marker ends the reply (GLM), or its end is written only when one comes.
            return then[: next((n + 1 for n, i in enumerate(then) if i in self._special), 0)]
        common = 0
        while ids[common : common + 1] == then[common : common + 1] != ():
            common += 1
        return ids[:common] or ids

    def _tail(self, message: Message) -> tuple[int, ...] | None:
        """Ids that follow an assistant reply (its closing included) when ``message`` comes next."""
        (shown,), mark = self._cut([message])
        if self.rewrites_history and not self._keeps_history(shown):
            return None
        text = self._tail_text(self._probes[0], shown)
        return None if text is None else self._encode(text, mark, inside=True)

    def _tail_text(self, before: Sequence[Message], message: Message) -> str | None:
        """What follows the reply that ends ``before``; ``None`` when that reply or what precedes it is rewritten."""
        opened = self._text(before[:-1], open_reply=True)
        whole = self._text([*before, message], open_reply=True)
        if not whole.startswith(opened):
            return None
        # A blank that the template writes before a reply is one that the model samples.
        blank, found, tail = whole[len(opened) :].partition(before[-1].content)
        return tail if found and not blank.strip() else None

    def _keeps_history(self, message: Message) -> bool:
        """Whether ``message`` continues every probe conversation, and in the same way.

        Some templates drop thoughts before the last question, but take the result of a tool as no question.
        """
        first = self._tail_text(self._probes[0], message)
        return first is not None and all(self._tail_text(before, message) == first for before in self._probes[1:])


class _Spelled:
    """Finds control tokens that are spelled in ordinary text, and cuts them, so that none is read as one."""

    def __init__(self, tokenizer: Any, ids: frozenset[int], more: Sequence[str]) -> None:
        known = [str(tokenizer.convert_ids_to_tokens(i)) for i in ids]
        self.tokens = tuple(sorted({t for t in [*known, *more] if len(t) > 1}))  # a single character cannot be cut
        self._first = re.compile("|".join(sorted(re.escape(c) for c in {t[0] for t in self.tokens})) or r"(?!)")
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        looked_up_late = any(t.normalized for t in tokenizer.added_tokens_decoder.values() if str(t) in self.tokens)
        self._normalize = normalizer.normalize_str if normalizer is not None and looked_up_late else None

    def _places(self, text: str) -> Iterator[int]:
        """Behind the first character of each control token in ``text``."""
        return (m.end() for m in self._first.finditer(text) if text.startswith(self.tokens, m.start()))

    def within(self, text: str) -> bool:
        return any(True for _ in self._places(text)) or self._hidden(text)

    def _hidden(self, text: str) -> bool:
        """Whether normalising ``text`` brings out a control token."""
        return self._normalize is not None and any(True for _ in self._places(self._normalize(text)))

    def cut(self, text: str, mark: str) -> str:
        places = [0, *self._places(text), len(text)]
        done = mark.join(text[a:b] for a, b in pairwise(places))
        return mark.join(text) if self._hidden(done) else done


def _conversations(reply: Message, thought: Message) -> _Conversations:
    """Conversations whose last reply must be continued like that of the first, the plainest one."""
    return (
        (_ASK, reply),
        (_ASK, thought),
        (_ASK, reply, _ASK, reply),
        (_SYSTEM, _ASK, reply),
        (_SYSTEM, _ASK, reply, _ASK, reply),
    )


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """The messages with the system text at the beginning of the first question."""
    if not messages or messages[0].role != "system":
        return list(messages)
    rules, rest = messages[0], list(messages[1:])
    if rest and rest[0].role == "user":
        return [Message(role="user", content=f"{rules.content}\n\n{rest[0].content}"), *rest[1:]]
    return [Message(role="user", content=rules.content), *rest]
