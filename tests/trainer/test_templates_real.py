"""Multi-turn episodes through real chat templates keep the sampled ids (promise 1).

Quick: many families with a small tokenizer made here. Slow: all templates that are at hand, with real tokenizers.
chat_templates.py says where they come from; without them these tests are skipped.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
from chat_templates import dressed, read_template, real_tokenizer, template_names, tokenizer_folders
from hypothesis import given, settings
from hypothesis import strategies as st
from template_episodes import INJECTIONS, INSTRUCTIONS, ODD, Reply, check_episode, check_rows, play, script, tool_texts

from roll_envs.errors import ConfigError
from roll_envs.types import Message
from trainer.model.network import build_tokenizer
from trainer.model.renderer import ChatRenderer

NAMES = template_names()
MISSING = "no chat templates are here: install the package trl without its dependencies, or set ROLL_CHAT_TEMPLATES"
ROWS = {
    "cohere": (1, 1), "cohere2": (1, 1), "deepseek_r1_distill": (4, 4), "deepseek_r1_distill_training": (1, 1),
    "deepseekv3": (4, 4), "gemma": (1, 1), "gemma3": (1, 1), "gemma4": (1, 1), "glm4moe": (4, 4), "gptoss": (4, 4),
    "idefics3": (1, 1), "lfm2": (1, 1), "lfm2_2_5": (4, 4), "llama3": (1, 1), "llama3_1": (1, 1), "llama3_2": (1, 1),
    "llava_next": (1, 1), "nemotron_3_nano": (4, 4), "phi3": (1, 1), "phi3_5": (1, 1), "qwen2_5": (1, 1),
    "qwen3": (4, 2), "qwen3_5_think": (4, 2), "qwen3_6": (4, 2), "qwen3_8": (4, 4),
    "qwen3_instruct_2507": (1, 1), "qwen3_training": (1, 1),
    "smolvlm": (1, 1),
}  # fmt: skip
"""Rows of four turns with thoughts, by template: with plain observations, and with a tool's results but for the third.

Read off the templates: one that shows every earlier message as it was gives one row; one that drops thoughts gives one
for each turn, and one that takes results of tools as no question (Qwen3) only one for each question.
"""
EVERYWHERE = {"deepseek_r1_distill", "gptoss", "llama3", "phi3", "qwen2_5", "qwen3"}
FAMILIES = {"llama": "llama3", "llava": "mistral", "Mistral": "mistral", "mistral": "mistral", "Coder": "qwen3-coder"}


def tools_of(name: str) -> tuple[str, str]:
    """A call and a result as models of that template's family write them."""
    return tool_texts(next((form for part, form in FAMILIES.items() if part in name), "hermes"))


@cache
def small(name: str) -> ChatRenderer:
    return ChatRenderer(dressed(build_tokenizer(["Left", "<answer>", "</answer>"]), read_template(name)))


def big(name: str, tokenizer: str) -> ChatRenderer:
    try:
        return ChatRenderer(real_tokenizer(tokenizer_folders()[tokenizer], read_template(name)))
    except ConfigError as error:
        pytest.skip(f"the template is not for plain conversations: {error}")


def thought(renderer: ChatRenderer, text: str, answer: str) -> Reply:
    opening = "" if renderer._thought_opening else "<think>\n"
    return Reply(text=f"{opening}{text}\n</think>\n\n{answer}")


def small_names() -> list[str]:
    return [name for name in ROWS if name in NAMES]


def test_there_are_templates() -> None:
    if "qwen2_5" not in NAMES:
        pytest.skip(MISSING if not NAMES else "the templates here are not those of the package trl")
    assert len(small_names()) >= 12


@pytest.mark.parametrize("name", small_names())
def test_rows_of_thinking_episodes(name: str) -> None:
    renderer = small(name)
    call, result = tool_texts("hermes")
    replies = [thought(renderer, f"hm {n}", call if n < 3 else "<answer>Left</answer>") for n in range(4)]
    counts = []
    for observations in (["see 0", "see 1", "see 2", "see 3"], ["see", result, "next", result]):
        episode, prompts = play(renderer, observations, replies)
        counts.append(check_rows(renderer, episode, prompts, [r.ids(renderer) for r in replies]))
    assert tuple(counts) == ROWS[name]
    assert renderer.rewrites_history == (counts[0] > 1)


@pytest.mark.parametrize("name", small_names())
@settings(max_examples=12)
@given(data=st.data())
def test_any_episode_keeps_what_was_sampled(name: str, data: st.DataObject) -> None:
    renderer = small(name)
    observations, replies = data.draw(script(*tools_of(name), *renderer._controls.tokens))
    check_episode(renderer, observations, replies)


@pytest.mark.parametrize("name", small_names())
def test_prompts_show_what_the_template_shows(name: str) -> None:
    check_shown(small(name))


def blank_before(renderer: ChatRenderer) -> str:
    """What the template writes between the opening of a reply and the reply: the model samples it."""
    asked = [Message(role="user", content="Q"), Message(role="assistant", content="<think>a</think>b")]
    opened, closed = renderer._text(asked[:1], open_reply=True), renderer._text(asked, open_reply=False)
    rest = closed.removeprefix(opened)
    return rest[: len(rest) - len(rest.lstrip())] if rest != closed else ""


@pytest.mark.skipif("qwen3" not in NAMES, reason=MISSING)
def test_qwen3_without_thinking() -> None:
    tokenizer = dressed(build_tokenizer(), read_template("qwen3"))
    renderer = ChatRenderer(tokenizer, variables={"enable_thinking": False})
    opened = renderer.render([Message(role="user", content="see")])
    assert tokenizer.decode(opened).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    # The empty thought is in the prompt, and not in the history.
    assert check_episode(renderer, ["a", "b", "c"], [Reply(text="Left")] * 3) == 3


def check_shown(renderer: ChatRenderer) -> None:
    """Honest conversations: the first prompt has the very ids of plain rendering, the later ones its very text."""
    plain = renderer.tokenizer
    observations = ["see é 0", "see <b> 1", "مرحبا 2", "see 👩\u200d👧 3"]
    answers = [f"<answer>Left {n}</answer>" for n in range(4)]
    blank = "" if renderer.rewrites_history else blank_before(renderer)
    replies = [thought(renderer, "hm", answer) for answer in answers]
    end = 0 if renderer._closing else None  # some markers are put together by the template: nobody knows them here
    replies = [replace(reply, text=blank + reply.text, closed=True, end=end) for reply in replies]
    episode, prompts = play(renderer, observations, replies)
    for number, prompt in enumerate(prompts):
        messages = [Message(role="system", content=INSTRUCTIONS)]
        for turn in episode.turns[:number]:
            messages.append(Message(role="user", content=turn.prompt_observation))
            messages.append(Message(role="assistant", content=turn.text.removeprefix(blank)))
        messages.append(Message(role="user", content=observations[number]))
        text = renderer._text(messages, open_reply=True)
        if number == 0 or renderer.rewrites_history:
            assert list(prompt) == plain(text, add_special_tokens=False)["input_ids"]
        elif not renderer._prefixed:  # with SentencePiece, blanks before replies depend on where encoding began
            assert plain.decode(prompt, clean_up_tokenization_spaces=False) == text


# -- all templates, real tokenizers ------------------------------------------------------------------------------------

TOKENIZERS = sorted(tokenizer_folders())
ALL = [
    pytest.param(name, tokenizer, id=f"{name}-{tokenizer}")
    for number, name in enumerate(NAMES)
    for place, tokenizer in enumerate(TOKENIZERS)
    if name in EVERYWHERE or number % len(TOKENIZERS) == place
]
"""A template of each kind with every tokenizer, all others with one of them."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tokenizer"), ALL)
def test_every_template_keeps_what_was_sampled(name: str, tokenizer: str) -> None:
    renderer = big(name, tokenizer)
    check_shown(renderer)
    rng = random.Random(f"{name} {tokenizer}")
    call, result = tools_of(name)
    texts = [
        *ODD,
        *INJECTIONS,
        *rng.choices(renderer._controls.tokens, k=5),
        call,
        result,
        "Left",
        "<think>",
        "</think>",
    ]

    def some() -> str:
        drawn = "".join(chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(3))
        return "".join(rng.sample([*texts, drawn], 3))

    for _ in range(5):
        turns = rng.randint(3, 6)
        observations = [rng.choice((result, some())) for _ in range(turns)]
        replies = [
            Reply(
                text=some(),
                split=rng.random() < 0.5,
                raw=tuple(rng.randrange(len(renderer.tokenizer)) for _ in range(rng.randint(0, 4))),
                end=rng.choice((0, 0, 1, None)),
            )
            for _ in range(turns)
        ]
        check_episode(renderer, observations, replies)
