"""Context: what the next prompt shows. Promise 1 (exact tokens): what was said is continued to the letter."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest
from managed import RENDERER, counting, responder, settings, task

from roll_envs.errors import ConfigError
from roll_envs.managers import History, load_context, play_episode
from roll_envs.testing import CharRenderer, CounterEnv, ScriptedPolicy
from roll_envs.types import Message, Trajectory, Turn


def episode(
    kind: str,
    *,
    turns: int = 0,
    function: str | None = None,
    renderer: CharRenderer = RENDERER,
    template: str | None = None,
) -> Trajectory:
    context = load_context(kind, turns=turns, function=function)
    chosen = settings(context=context, renderer=renderer, observation_template=template)
    seed = next(s for s in range(99) if CounterEnv().reset(seed=s)[0].endswith("target 4"))
    played = play_episode(CounterEnv(), task(seed=seed), 0, responder(counting()), chosen)
    assert len(played.turns) == 4
    return played


def shown(turn: Turn) -> str:
    """A prompt as text: roles as s, u, a with a colon, ends of messages as |."""
    marks = {0: "s:", 1: "u:", 2: "a:", 3: "|"}
    return "".join(marks.get(i) or chr(i - 4) for i in turn.prompt_ids)


def test_everything_continues_to_the_letter() -> None:
    turns = episode("everything").turns
    for before, after in itertools.pairwise(turns):
        said = before.prompt_ids + before.completion.ids
        assert after.prompt_ids[: len(said)] == said
        assert after.prompt_ids[len(said) :] == RENDERER.render([Message(role="user", content=before.observation)])
    assert shown(turns[0]) == "s:count|u:counter 0, target 4|a:"


def test_everything_keeps_ids_that_no_tokenizer_would_give() -> None:
    strange = (*RENDERER.encode("<answer>More</answer>"), 0, 2, 1)  # markers inside, no stop id
    policy = ScriptedPolicy([strange])
    turns = play_episode(CounterEnv(), task(), 0, responder(policy), settings()).turns
    assert len(turns) >= 1
    assert turns[0].text == "<answer>More</answer>"
    again = load_context("everything")(History(instructions="count", turns=turns[:1], observation="next"), RENDERER)
    assert again[: len(turns[0].prompt_ids) + len(strange)] == turns[0].prompt_ids + strange


def test_everything_renders_anew_where_the_template_cannot_be_continued() -> None:
    class NoExtend(CharRenderer):
        def extend(self, ids: Sequence[int], message: Message) -> None:
            return None

    turns = episode("everything", renderer=NoExtend()).turns
    answer = "<answer>More</answer>"
    assert shown(turns[2]) == (
        f"s:count|u:counter 0, target 4|a:{answer}|u:counter 1, target 4|a:{answer}|u:counter 2, target 4|a:"
    )


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "s:count|u:counter 3, target 4|a:"),
        (1, "s:count|u:counter 2, target 4|a:<answer>More</answer>|u:counter 3, target 4|a:"),
    ],
)
def test_last_turns(count: int, expected: str) -> None:
    assert shown(episode("last", turns=count).turns[3]) == expected


def test_more_last_turns_than_there_are_is_all_of_them() -> None:
    assert shown(episode("last", turns=9).turns[3]) == shown(episode("everything").turns[3])


def test_no_instructions_no_system_message() -> None:
    history = History(instructions="", turns=(), observation="hi")
    for kind in ("everything", "last"):
        assert load_context(kind)(history, RENDERER) == RENDERER.render([Message(role="user", content="hi")])


def count_turns(history: History) -> list[Message]:
    return [Message(role="user", content=f"{len(history.turns)} turns; {history.observation}")]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    made = types.ModuleType("user_contexts")
    made.__dict__.update(count_turns=count_turns, number=7)
    monkeypatch.setitem(sys.modules, "user_contexts", made)
    return "user_contexts"


def test_a_function_of_the_user(module: str) -> None:
    turns = episode("function", function=f"{module}:count_turns").turns
    assert shown(turns[2]) == "u:2 turns; counter 2, target 4|a:"


def test_a_function_cannot_change_the_past(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(history: History) -> list[Message]:
        with pytest.raises((TypeError, AttributeError)):
            history.turns.clear()  # type: ignore[attr-defined]
        return count_turns(history)

    monkeypatch.setattr(sys.modules[module], "count_turns", forget)
    episode("function", function=f"{module}:count_turns")


@pytest.mark.parametrize(
    ("kind", "function", "words"),
    [
        ("all", None, "'all' is not one of 'everything', 'last', 'function'"),
        ("function", None, "None is not of the form 'module:name'"),
        ("function", "user_contexts", "'user_contexts' is not of the form"),
        ("function", "user_contexts:nope", "cannot load 'user_contexts:nope'"),
        ("function", "user_contexts:number", "is a int, not a function"),
        ("function", "no_such_module:f", "No module named 'no_such_module'"),
        ("function", "broken_context:f", "SyntaxError"),
    ],
)
def test_errors_name_the_key_and_the_value(
    kind: str, function: str | None, words: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_context.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="context") as error:
        load_context(kind, function=function)
    assert words in str(error.value)


@pytest.mark.parametrize(("kind", "turns"), [("everything", 0), ("last", 1)])
def test_a_template_stands_around_every_observation(kind: str, turns: int) -> None:
    played = episode(kind, turns=turns, template="<{observation}> {x}?").turns
    first = "s:count|u:<counter 0, target 4> {x}?|a:"
    assert shown(played[0]) == first
    assert shown(played[1]) == first + "<answer>More</answer>|u:<counter 1, target 4> {x}?|a:"
    assert played[1].prompt_observation == "counter 1, target 4"  # what states are compared by has no template in it
