"""Answers: what counts, what does not, and that nothing a model writes breaks or slows the reading."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_envs.errors import UnknownNameError
from roll_envs.parsing import ACTION_FORMATS, CACHED_ANSWERS, ActionFormat, make_action_format, make_free_format

ACTIONS = ("Up", "Down", "Left", "Right")
UP, DOWN, LEFT, RIGHT = range(4)

formats = st.sampled_from(sorted(ACTION_FORMATS))


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("<answer>Up</answer>", (UP,)),
        ("<think>hm</think><answer> up </answer><|im_end|>", (UP,)),
        ("<ANSWER>\nRIGHT\n</Answer>", (RIGHT,)),
        ("<answer>Left</answer><answer>Up</answer>", (LEFT,)),  # the first counts
        ("</answer><answer>Left</answer>", (LEFT,)),
        ("<answer>Jump</answer>", ()),
        ("<answer></answer>", ()),
        ("<answer>Up", ()),
        ("Up</answer>", ()),
        ("Up", ()),
        ("", ()),
        ("<answer>Right || Up</answer>", ()),  # one action is asked for
        ("<answer><answer>Up</answer></answer>", ()),
        ("<answer >Up</answer>", ()),
        ("<anſwer>Up</anſwer>", ()),  # a letter that equals s when case is ignored in Unicode
    ],
)
def test_one_action_between_tags(text: str, actions: tuple[int, ...]) -> None:
    found = make_action_format("answer", ACTIONS).parse(text)
    assert found.actions == actions
    assert found.valid == bool(actions)


def test_content_is_what_stood_between_the_tags() -> None:
    reader = make_action_format("answer", ACTIONS)
    assert reader.parse("<answer> Jump! </answer>").content == "Jump!"
    assert reader.parse("nothing").content == ""


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("<answer>Up</answer>", (UP,)),
        ("<answer>Up || Right||down</answer>", (UP, RIGHT, DOWN)),
        ("<think><answer>Left</answer></think> <answer>Up</answer>", (LEFT,)),
        ("<answer>Up || Up || Up || Left</answer>", (UP, UP, UP)),  # no more than three
        ("<answer>Up || Jump</answer>", ()),
        ("<answer>Up ||</answer>", ()),
        ("<answer>Up | Right</answer>", ()),
    ],
)
def test_several_actions(text: str, actions: tuple[int, ...]) -> None:
    assert make_action_format("answer", ACTIONS, max_actions=3).parse(text).actions == actions


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("<think>hm</think><answer>Up || Right</answer>", (UP, RIGHT)),
        ("<think>hm</think> \n <answer>Up</answer>", (UP,)),
        ("hm</think><answer>Up</answer>", (UP,)),  # the prompt has opened the thought
        ("<think>Is <answer>Left</answer> right? No.</think><answer>Up</answer>", (UP,)),
        ("<think>Is <answer>Left</answer> right?</think>", ()),
        ("<think>Is</think> it <answer>Left</answer>? </think><answer>Up</answer>", (UP,)),
        ("<answer>Up</answer>", ()),
        ("<answer>Up</answer><think>hm</think>", ()),
        ("<think>hm</think><answer>Up</answer><answer>Left</answer>", (UP,)),
        ("<think>hm</think>so: <answer>Up</answer>", ()),
    ],
)
def test_an_answer_after_a_thought(text: str, actions: tuple[int, ...]) -> None:
    """As RAGEN's pattern has it, before which RAGEN puts the opening tag."""
    pattern = re.search(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", f"<think>{text}", re.DOTALL)
    assert (pattern is not None) == bool(actions)
    reader = make_action_format("think-answer", ACTIONS, max_actions=3)
    assert reader.parse(text).actions == actions
    assert reader.parse(text).content == (pattern[2] if pattern else "")
    assert make_free_format("think-answer", example="x").read(text) == (pattern[2] if pattern else None)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (r"So \boxed{ Up }.", "Up"),
        (r"\boxed{Left}, no: \boxed{Up}", "Up"),  # the last counts
        (r"\boxed{\boxed{Up}}", "Up"),
        (r"\boxed{f\{x\}{y}z}", r"f\{x\}{y}z"),
        (r"\boxed{Up", None),
        (r"\boxed{}", None),
        ("boxed{Up}", None),
        ("Up", None),
    ],
)
def test_an_answer_in_a_box(text: str, action: str | None) -> None:
    assert make_free_format("boxed", example="x").read(text) == action
    assert make_action_format("boxed", ACTIONS).parse(text).actions == ((UP,) if action == "Up" else ())


def test_other_forms() -> None:
    assert make_action_format("action", ACTIONS).parse("<think>I</think><action>down</action>").actions == (DOWN,)
    assert make_action_format("action", ACTIONS).parse("<answer>down</answer>").actions == ()
    assert make_action_format("word", ACTIONS).parse(" LEFT\n").actions == (LEFT,)
    assert make_action_format("word", ACTIONS).parse("go left").actions == ()


def test_instructions_show_an_answer_that_can_be_read() -> None:
    for name in ACTION_FORMATS:
        for most in (1, 4):
            reader = make_action_format(name, ACTIONS, max_actions=most)
            sentence = reader.instructions
            assert reader.parse(sentence.split("in this form: ")[1]).valid
            assert ("<think>" in sentence) == reader.think
            assert ("'||'" in sentence) == (most > 1)


@given(formats, st.lists(st.sampled_from(range(4)), min_size=1, max_size=5), st.text())
def test_what_is_written_is_read(name: str, actions: list[int], thought: str) -> None:
    reader = make_action_format(name, ACTIONS, max_actions=5)
    thought = thought.replace("<", "")
    assert reader.parse(reader.format(actions, thought=thought)).actions == tuple(actions)


pieces = st.sampled_from(
    [
        "<answer>",
        "</answer>",
        "</think>",
        "\\\\boxed{",
        "}",
        "<action>",
        "Up",
        "||",
        " ",
        "\n",
        "<think>",
        "İ",
        "\ud800",
        "\x00",
    ]
)


@given(formats, st.integers(1, 4), st.one_of(st.text(), st.lists(pieces).map("".join)))
def test_any_text_is_read_the_same_twice(name: str, most: int, text: str) -> None:
    reader = make_action_format(name, ACTIONS, max_actions=most)
    found = reader.parse(text)
    assert reader.parse(text) == found == make_action_format(name, ACTIONS, max_actions=most).parse(text)
    assert len(found.actions) <= most
    assert all(0 <= a < 4 for a in found.actions)


@pytest.mark.parametrize("form", ["answer", "think-answer", "boxed"])
@pytest.mark.parametrize(
    "piece", ["<answer>", "</answer>", "<answer>Up", "||", "Up||", "<", " ", "<think>", "</think> ", "\\\\boxed{", "{"]
)
def test_huge_answers_cost_no_time(piece: str, form: str, cpu_at_most: Any) -> None:
    text = "</think><answer>" + piece * (2_000_000 // len(piece))
    for most in (1, 5):
        reader = make_action_format(form, ACTIONS, max_actions=most)
        with cpu_at_most(0.2):
            assert not reader.parse(text).valid


def test_the_memory_of_answers_stays_small() -> None:
    reader = make_action_format("word", ACTIONS)
    for i in range(CACHED_ANSWERS + 10):
        reader.parse(f"text {i}")
    assert len(reader._cache) <= CACHED_ANSWERS
    reader.parse("x" * 1_000)
    assert "x" * 1_000 not in reader._cache
    assert reader.parse("up").actions == (UP,)


def test_only_texts_are_answers() -> None:
    with pytest.raises(TypeError, match=r"a text \(str\), not int: 3"):
        make_action_format("answer", ACTIONS).parse(3)  # type: ignore[arg-type]


def test_copies_are_equal_and_work() -> None:
    reader = make_action_format("answer", ACTIONS, max_actions=2)
    for twin in (copy.deepcopy(reader), pickle.loads(pickle.dumps(reader))):
        assert twin == reader
        assert hash(twin) == hash(reader)
        assert twin.parse("<answer>Up || Down</answer>").actions == (UP, DOWN)


def test_wrong_formats_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="no action format 'answr'; did you mean 'answer'"):
        make_action_format("answr", ACTIONS)
    with pytest.raises(ValueError, match="1 or more, not 0"):
        make_action_format("answer", ACTIONS, max_actions=0)
    with pytest.raises(ValueError, match="unique when case is ignored"):
        make_action_format("answer", ("Up", "UP"))
    with pytest.raises(ValueError, match="at least one"):
        make_action_format("answer", ())
    for name in ("", " Up", "Up||Down"):
        with pytest.raises(ValueError, match="cannot be read back"):
            make_action_format("answer", (name,))
    with pytest.raises(ValueError, match="separator"):
        ActionFormat(name="own", actions=ACTIONS, separator=" ")


@pytest.mark.parametrize("name", ACTION_FORMATS)
@given(action=st.text(min_size=1, max_size=40), thought=st.text(max_size=20))
def test_a_free_action_is_read_back(name: str, action: str, thought: str) -> None:
    form = make_free_format(name, example="do it")
    if not set("<{}\\\\") & set(action + thought) and action.strip():
        assert form.read(form.write(action, thought)) == action.strip()


def test_free_actions_that_are_missing() -> None:
    form = make_free_format("answer", example="look around")
    assert [form.read(text) for text in ("", "look", "<answer></answer>", "<answer> </answer>", "<answer>x")] == [
        None
    ] * 5
    assert form.instructions == "Answer with one action, in this form: <answer>look around</answer>"
    assert make_free_format("word", example="x").read(" \n") is None
    with pytest.raises(UnknownNameError, match="no action format 'anser'; did you mean 'answer'"):
        make_free_format("anser", example="x")
