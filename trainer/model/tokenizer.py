"""A small tokenizer made locally: bytes, a few whole words, and a compact chat template.

Any text can be encoded (every byte has a token), so the model can read any environment; the words of the
environment's own answers are one token each, so that an answer is a few tokens. No file is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import gymnasium
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from roll_envs.parsing import FreeFormat

__all__ = ["CHAT_TEMPLATE", "build_tokenizer", "words_of"]

ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
END, PAD = "<|end|>", "<|pad|>"

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""One token opens a message and one ends it: the shortest template that keeps roles apart."""


def words_of(env: gymnasium.Env[str, str]) -> tuple[str, ...]:
    """The words that become one token each: the action names and tags of the environment's answers, its vocabulary,
    and the symbols outside ASCII that its instructions explain."""
    form = getattr(env.unwrapped, "action_format", None) or FreeFormat(name="text", example="", tag="")
    instructions, vocabulary = getattr(env.unwrapped, "instructions", ""), getattr(env.unwrapped, "vocabulary", ())
    tags = [t for t in (form.tag, "think" if form.think else "") if t]
    marks = [w for t in tags for w in (f"<{t}>", f"</{t}>")]
    joiner = [f" {form.separator} "] if form.max_actions > 1 else []
    symbols = sorted({c for c in instructions if not c.isascii() and not c.isspace()})
    return tuple(dict.fromkeys([*marks, *joiner, *form.actions, *vocabulary, *symbols]))


def build_tokenizer(words: Iterable[str] = ()) -> Any:
    """A ``PreTrainedTokenizerFast`` over bytes and ``words``, with :data:`CHAT_TEMPLATE`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([PAD, END, *ROLES, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in (PAD, END, *ROLES)])
    plain = [w for w in dict.fromkeys(words) if len(w.encode()) > 1 and not re.fullmatch(r"<\|.*\|>", w)]
    core.add_tokens([AddedToken(w, normalized=False, special=False) for w in plain])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
