"""Rendering through chat templates and exact continuation (promise 1), for the built-in template, for templates that
cannot be continued, and for real tokenizers where they are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_envs.errors import ConfigError
from roll_envs.managers import History, load_context
from roll_envs.policy import Renderer
from roll_envs.types import Completion, Message, Outcome, Task, Trajectory, Turn
from trainer.data.table import to_sequences
from trainer.model.network import build_tokenizer
from trainer.model.renderer import ChatRenderer

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As Qwen2's: a default system message, a newline after each end."""

DROPS_THOUGHTS = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
    "{% for m in messages %}{% set text = m['content'] %}"
    "{% if m['role'] == 'assistant' and '</think>' in text and loop.index0 < ns.last %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + text + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As Qwen3's: thoughts before the last question are left out."""

MOVES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{% set rules = messages[0]['content'] + '\n\n' %}{% else %}"
    "{% set rules = '' %}{% endif %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST]' + (rules if loop.index0 >= messages|length - 1 else '') + m['content'] + '[/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
)
"""As Mistral's: the system message stands in the last question."""

COUNTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ' ' + loop.index|string + '\n' + m['content'] + "
    "'<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHOUTS = (
    "{% for m in messages %}{{ m['role'] + ': ' + (m['content'] | upper) + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""The reply is not found in what the template writes."""

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] | trim) + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPACED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '\n<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Something stands between the reply and its end."""


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


RULES = Message(role="system", content="rules")


def with_template(template: str) -> ChatRenderer:
    tokenizer = build_tokenizer(["Left", "<answer>"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer)


@pytest.fixture(scope="module")
def plain() -> ChatRenderer:
    return ChatRenderer(build_tokenizer(["Left", "<answer>", "</answer>", "√"]))


def end(renderer: ChatRenderer) -> int:
    return renderer.stop_ids[0]


def test_it_is_a_renderer(plain: ChatRenderer) -> None:
    assert isinstance(plain, Renderer)
    assert plain.stop_ids == (plain.tokenizer.eos_token_id,)


NO_MARKUP = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda t: "<|" not in t)


@settings(max_examples=150, deadline=None)
@given(text=NO_MARKUP)
def test_any_text_survives(plain: ChatRenderer, text: str) -> None:
    ids = plain._encode(text)
    assert plain.decode((*ids, end(plain))) == text


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(NO_MARKUP, min_size=3, max_size=6), rules=st.booleans())
def test_extend_equals_render_for_the_built_in_template(plain: ChatRenderer, texts: list[str], rules: bool) -> None:
    messages = [RULES] if rules else []
    ids: tuple[int, ...] = ()
    for number, text in enumerate(texts):
        if number % 2 == 0:
            messages.append(user(text))
            ids = plain.render(messages) if not ids else plain.extend(ids, user(text)) or ()
            assert ids == plain.render(messages)
        else:
            messages.append(said(text))
            ids = (*ids, *plain._encode(text), end(plain))


@pytest.mark.parametrize("template", [CHATML, NO_SYSTEM, SPACED], ids=["chatml", "no system", "spaced"])
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "cut"])
def test_extend_equals_render_where_the_template_can_be_continued(template: str, stopped: bool) -> None:
    renderer = with_template(template)
    first = renderer.render([user("hi")])
    if template == SPACED and stopped:
        # The model left the newline out; what it wrote is kept, and only its end is not written twice.
        ids = renderer.extend((*first, *renderer._encode("yo"), end(renderer)), user("on"))
        assert ids == (
            *first,
            *renderer._encode("yo<|im_end|>\n<|im_start|>user\non\n<|im_end|>\n<|im_start|>assistant\n"),
        )
        return
    ids = (*first, *renderer._encode("yo"), *([end(renderer)] if stopped else []))
    assert renderer.extend(ids, user("on")) == renderer.render([user("hi"), said("yo"), user("on")])


def test_the_default_system_message_comes_once() -> None:
    renderer = with_template(CHATML)
    text = renderer.tokenizer.decode(renderer.extend(renderer.render([user("hi")]), user("on")))
    assert text.count("helpful") == 1


def test_the_end_is_the_token_that_closes_a_reply_and_the_eos() -> None:
    renderer = with_template(CHATML)
    ids = renderer.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|end|>"])
    assert renderer.stop_ids == tuple(ids)
    # A reply that ended with the eos, which the template does not write, is closed as the template does.
    first = renderer.render([user("hi")])
    assert renderer.extend((*first, 70, ids[1]), user("on"))[: len(first) + 3] == (*first, 70, ids[1], ids[0])


def test_nothing_to_end_an_answer_is_an_error() -> None:
    tokenizer = build_tokenizer()
    tokenizer.eos_token = None
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    with pytest.raises(ConfigError, match=r"set eos_token in tokenizer_config.json"):
        ChatRenderer(tokenizer)


@pytest.mark.parametrize(
    "template", [DROPS_THOUGHTS, MOVES_SYSTEM, COUNTS, SHOUTS], ids=["thoughts", "system", "counts", "shouts"]
)
def test_a_template_that_rewrites_is_not_continued(template: str) -> None:
    renderer = with_template(template)
    ids = (*renderer.render([RULES, user("hi")]), 70)
    assert renderer.extend(ids, user("on")) is None


def test_ids_that_were_sampled_are_kept_to_the_letter(plain: ChatRenderer) -> None:
    first = plain.render([user("hi")])
    odd = tuple(plain._encode(c)[0] for c in "Left")  # four bytes where the tokenizer has one word
    assert odd != plain._encode("Left")
    ids = (*first, *odd, 3, end(plain))  # and a role marker in the middle
    extended = plain.extend(ids, user("on"))
    assert extended is not None
    assert extended[: len(ids)] == ids


def test_decode_leaves_every_special_token_out(plain: ChatRenderer) -> None:
    special = plain.tokenizer.convert_tokens_to_ids(["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"])
    assert plain.decode((*special, *plain._encode("a , b ."), special[3])) == "a , b ."


def turns_of(renderer: ChatRenderer, replies: list[str]) -> tuple[Turn, ...]:
    """An episode with context 'everything' whose model says ``replies``."""
    context = load_context("everything")
    turns: list[Turn] = []
    for number, reply in enumerate(replies):
        history = History(instructions="rules", turns=tuple(turns), observation=f"see {number}")
        ids = (*renderer._encode(reply), end(renderer))
        completion = Completion(ids=ids, logprobs=(-1.0,) * len(ids), finish="stop", weight_version=0)
        turns.append(
            Turn(
                prompt_ids=context(history, renderer), completion=completion, prompt_observation=history.observation,
                text=renderer.decode(ids), observation=f"see {number + 1}", reward=0.0, terminated=False,
                truncated=False, info={}, timings={},
            )
        )  # fmt: skip
    return tuple(turns)


def rows(turns: tuple[Turn, ...]) -> list[int]:
    task = Task(env_id="a/B-v0", split="train", index=0, seed=0)
    outcome = Outcome(kind="completed")
    return [len(r) for r in to_sequences(Trajectory(task=task, member=0, turns=turns, outcome=outcome), group=0)]


THINKING = ["<think>hm</think>\nLeft", "<think>ah</think>\nRight", "Up"]


def test_a_thinking_template_shows_what_it_would_show_and_starts_new_rows() -> None:
    renderer = with_template(DROPS_THOUGHTS)
    turns = turns_of(renderer, THINKING)
    shown = renderer.tokenizer.decode(turns[2].prompt_ids)
    assert "hm" not in shown
    assert "ah" not in shown
    assert "Left<|im_end|>" in shown
    assert turns[2].prompt_ids == renderer.render(
        [RULES, user("see 0"), said(THINKING[0]), user("see 1"), said(THINKING[1]), user("see 2")]
    )
    assert len(rows(turns)) == 3


def test_a_thinking_template_without_thoughts_gives_one_row() -> None:
    assert len(rows(turns_of(with_template(DROPS_THOUGHTS), ["Left", "Right", "Up"]))) == 1


def test_a_template_that_keeps_thoughts_gives_one_row() -> None:
    renderer = with_template(CHATML)
    turns = turns_of(renderer, THINKING)
    assert "hm" in renderer.tokenizer.decode(turns[2].prompt_ids)
    assert rows(turns) == [len(turns[2].prompt_ids) + len(turns[2].completion.ids)]


# -- real tokenizers ---------------------------------------------------------------------------------------------------

REAL = {"qwen2": ("<|im_end|>", CHATML), "llama-bpe": ("<|eot_id|>", "")}
LLAMA3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + "
    "m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


@pytest.fixture(scope="module", params=sorted(REAL))
def real(request: pytest.FixtureRequest, shared_dir: Path) -> tuple[ChatRenderer, str]:
    folder = shared_dir / "tokenizers" / request.param
    if not folder.is_dir():
        pytest.skip(f"the tokenizer {request.param} is not among the reference data")
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    closing, template = REAL[request.param]
    tokenizer.chat_template = template or LLAMA3
    return ChatRenderer(tokenizer), closing


def test_real_tokenizers_end_a_reply_as_the_template_does(real: tuple[ChatRenderer, str]) -> None:
    renderer, closing = real
    assert renderer.stop_ids[0] == renderer.tokenizer.convert_tokens_to_ids(closing)


@settings(max_examples=60, deadline=None)
@given(text=NO_MARKUP)
def test_real_tokenizers_keep_any_text(real: tuple[ChatRenderer, str], text: str) -> None:
    renderer, _ = real
    import unicodedata

    kept = renderer.decode((*renderer._encode(text), end(renderer)))
    assert unicodedata.normalize("NFC", kept) == unicodedata.normalize("NFC", text)


@settings(max_examples=30, deadline=None)
@given(replies=st.lists(st.sampled_from(["Left", " a , b .", "<think>hm</think> √", "é\n\nx"]), min_size=2, max_size=4))
def test_real_tokenizers_continue_to_the_letter(real: tuple[ChatRenderer, str], replies: list[str]) -> None:
    turns = turns_of(real[0], replies)
    assert len(rows(turns)) == 1
    whole = [RULES]
    for turn, reply in zip(turns, replies, strict=True):
        whole.append(user(turn.prompt_observation))
        # Some templates trim what was said; what was sampled is shown as it is.
        shown, rendered = real[0].tokenizer.decode(turn.prompt_ids), real[0]._text(whole, open_reply=True)
        assert shown.replace(" a ,", "a ,") == rendered.replace(" a ,", "a ,")
        whole.append(said(reply))
