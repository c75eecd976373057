"""Rules about answers: strange ones, those near the answer format, and those that the environment says are legal."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Iterator
from typing import Any

from roll_envs.env import AnyEnv, TextEnv
from roll_envs.parsing import ActionFormat, FreeFormat, tag_marks
from roll_envs.testing.trace import Failure, Rule, Skip, Subject, mixed, need

_SLOWEST_ANSWER_S = 2.0
_TRIED = 12
"""Legal answers that are tried of many, and cuts of one answer."""
_PLACES = 8
"""Turns of an episode at which answers, listed or not, are tried."""
_MOST_S = 5.0
"""What is tried from a restored start takes no longer, however slow ``restore`` is."""

STRANGE_ANSWERS: dict[str, str] = {
    "empty": "",
    "blank": " \t\r\n" * 10,
    "garbage": 'zxcv 1234 !!! <<>> {"a": [}]',
    "empty tag": "<answer></answer>",
    "unclosed tag": "<answer>",
    "control characters": "<answer>\x00\x07\x1b[2J\x7f</answer>",
    "lone surrogates": "<answer>\ud800\udfff</answer>",
    "right to left": "<answer>\u202e\u0627\u0644\u0633\u0644\u0627\u0645\u200f</answer>",
    "combining marks": "<answer>e" + "\u0301" * 500 + "</answer>",
    "format string": "<answer>{0!r} %s %(a)d ${HOME} {success}</answer>",
    "huge": "a" * 1_000_000,
    "huge tagged": "<answer>" + "b" * 1_000_000 + "</answer>",
    "many open tags": "<answer>" * 125_000,
    "many numbers": "<answer>" + "9" * 100_000 + "</answer>",
    "nested brackets": "[" * 100_000,
    "nested tagged": '<answer>{"a":' + "[" * 100_000 + "</answer>",
    "a long word": "a" * 60 + "!",
    "many words": "word " * 60 + "!",
    "a long word tagged": "<answer>" + "a" * 60 + "!</answer>",
    "many words tagged": "<answer>" + "word " * 60 + "!</answer>",
    "other digits": "<answer>\u00b2\u0663</answer>",
    "a pattern": "<answer>(*+?[\\</answer>",
}
"""Answers that no environment should pay for; none of them names an action. Tags are put in those of the form."""


def _answered(env: AnyEnv, what: str, text: str) -> Any:
    """What ``step`` returns for ``text``, in time and with an observation of text."""
    started = time.perf_counter()
    try:
        result = env.step(text)
    except Exception as error:  # what is tested
        raise Failure(
            f"{what} ({text[:40]!a}...) raises {type(error).__name__}: {str(error)[:150]}; "
            "step must take any text a model may write"
        ) from error
    took = time.perf_counter() - started
    need(took < _SLOWEST_ANSWER_S, f"{what} takes {took:.1f} s; cut long answers before reading them")
    need(isinstance(result[0], str), f"after {what} the observation is no text")
    return result


def strange_answers(subject: Subject) -> str:
    """Empty, garbage, huge and non-text-like answers neither crash nor pay, nor take long, at the start and later."""
    env = subject.text_taker()
    form = getattr(env, "action_format", None)
    named = isinstance(form, ActionFormat) or _is_bracketed(env)
    for turns in (0, 1):
        for name, plain in STRANGE_ANSWERS.items():
            text = _in_form(plain, form)
            env.reset(seed=subject.seeds[0])
            if any(_over(env.step(mixed(subject.seeds[0], garbage=0)(env))) for _ in range(turns)):
                break
            what = f"the answer {name!r}"
            _, reward, _, _, info = _answered(env, what, text)
            # Later on it may end the game, which then pays what was reached before.
            need(turns or float(reward) <= 0, f"{what} is paid {reward}; only what the rules ask for may pay")
            need(not info.get("success", False), f"{what} counts as success")
            if named:
                need(not info.get("action_is_valid"), f"{what} names no action, and action_is_valid is True")
    return f"{len(STRANGE_ANSWERS)} answers"


def _is_bracketed(env: AnyEnv) -> bool:
    """Whether all answers that the environment names look like ``search[red shoes]``, as no strange answer does."""
    if not isinstance(env, TextEnv) or not isinstance(env.action_format, FreeFormat):
        return False
    env.reset(seed=0)
    said = env.legal_answers() or [env.action_space.sample()]
    return all(re.fullmatch(r"\w+\[.*\]", env.action_format.read(text) or "") for text in said)


def _in_form(text: str, form: Any) -> str:
    """``text`` with the tags of the form for its own."""
    if not isinstance(form, ActionFormat | FreeFormat):
        return text
    opens, closes = tag_marks(form.tag) if form.tag else ("", "")
    thought = "<think></think>" if form.after_thought and text.startswith("<answer>") else ""
    return thought + text.replace("<answer>", opens).replace("</answer>", closes)


def _over(result: Any) -> bool:
    return bool(result[2] or result[3])


def near_answers(subject: Subject) -> str:
    """Variants of a right answer mean what the action format reads: the same action, or none."""
    env = subject.text_env("action_format")
    form, tried = env.action_format, 0
    until = time.monotonic() + _MOST_S
    for seed in subject.seeds[:2]:
        env.reset(seed=seed)
        start = env.snapshot()
        rights = _some(env.legal_answers() or [env.action_space.sample()], seed)[:3]
        for right, other in zip(rights, [*rights[1:], rights[0]], strict=True):
            expected = _answered(_at(env, start), "a legal answer", right)
            variants = itertools.chain(_variants(right, seed), _joined(right, other, form))
            for text in itertools.takewhile(lambda _: time.monotonic() < until, variants):
                observation, reward, *ends, info = _answered(_at(env, start), "a variant of a legal answer", text)
                tried += 1
                if _read(form, text) is None:
                    need(not info.get("action_is_valid"), f"action_format reads nothing in {text!a}, and "
                                                          "action_is_valid is True; ask action_format")  # fmt: skip
                    need(not info.get("success"), f"action_format reads nothing in {text!a}, and it counts as success")
                    need(float(reward) <= 0, f"action_format reads nothing in {text!a}, and it is paid {reward}")
                elif _read(form, text) == _read(form, right):
                    same = (observation, *ends) == (expected[0], *expected[2:4])
                    need(same, f"action_format reads the same in {text!a} and {right!a}, and step plays another action")
    return f"{tried} variants"


def _read(form: Any, text: str) -> Any:
    """What the format reads, ``None`` for nothing."""
    return (form.parse(text).actions or None) if isinstance(form, ActionFormat) else form.read(text)


def _at(env: TextEnv, snapshot: Any) -> TextEnv:
    env.restore(snapshot)
    return env


def _variants(right: str, seed: int) -> Iterator[str]:
    draw = random.Random(seed)
    yield from (right.upper(), right.lower(), f"  {right}\n\n", f"I think so.\n{right}\nThat is it.", right + right)
    yield from (f"<think>not {right}</think>{right}", f"<think>{right}", f"{right}</think>", f"```\n{right}\n```")
    yield right.rpartition("</think>")[2]
    yield from (right.replace(">", "> ").replace("</", " </"), right.replace("<", "&lt;"), right.replace("<", "< "))
    yield from (f"\ufeff{right}", right.translate(_FULL_WIDTH), right.replace("a", "\u0430").replace("e", "\u0435"))
    for _ in range(_TRIED):
        at = draw.randrange(len(right))
        yield from (right[:at], right[at:], right[:at] + draw.choice("\x00 x1<>/\u200b") + right[at:])


def _joined(right: str, other: str, form: Any) -> Iterator[str]:
    """Two answers in one, an action among other words, and odd words in place of its last one."""
    yield right + other
    body, second = (_body(text, form) for text in (right, other))
    for said in (f"{body} || {second}", f"{body}, {second}", f"{body} {second}", f"{body}\n{second}"):
        yield right.replace(body, said)
    yield from (right.replace(body, said) for said in (f"I say {body}", f"{body} now", f"not {body}", f'"{body}"'))
    for word in _ODD_WORDS:
        yield right.replace(body, word.join(re.split(r"\w+(?=\W*$)", body)))


_ODD_WORDS = ("", " ", "\u00b2", "-1", "9" * 5000, "{x} {0", "(*+?[\\", "\"'", "\ud800", "\x00", "a" * 60 + "!")


def _body(text: str, form: Any) -> str:
    read = _read(form, text)
    if isinstance(form, ActionFormat):
        return form.actions[read[0]] if read else text
    return read or text


_FULL_WIDTH = {i: i + 0xFEE0 for i in range(0x21, 0x7F)}


def _some(answers: list[str], seed: int) -> list[str]:
    return answers if len(answers) <= _TRIED else random.Random(seed).sample(answers, _TRIED)


def legal_answers(subject: Subject) -> str:
    """What ``legal_answers`` lists is text, each once, and ``step`` takes each without a penalty."""
    env = subject.text_env("legal_answers()")
    tried, until = 0, time.monotonic() + _MOST_S
    for seed in subject.seeds[:3]:
        env.reset(seed=seed)
        listed = False
        for turn in range(_PLACES):
            answers = env.legal_answers()
            wrong = not isinstance(answers, list | tuple) or not all(isinstance(text, str) for text in answers)
            need(not wrong, f"legal_answers() is {str(answers)[:80]!a}; return a list of texts")
            twice = {text for text in answers if answers.count(text) > 1} if len(answers) < 1000 else set()
            need(not twice, f"legal_answers() lists {sorted(twice)[:1]} more than once")
            none = listed and not answers and isinstance(env.action_format, ActionFormat)
            need(not none, f"legal_answers() lists nothing at turn {turn} of seed {seed}, though the episode goes on")
            listed |= bool(answers)
            again = env.legal_answers()
            need(again == answers, f"legal_answers() differs when it is asked again at turn {turn} of seed {seed}")
            here = env.snapshot()
            for text in itertools.takewhile(lambda _: time.monotonic() < until, _some(list(answers), seed)):
                *_, info = _answered(_at(env, here), "a legal answer", text)
                valid, penalty = info.get("action_is_valid", True), info.get("format_penalty", 0.0)
                need(valid, f"legal_answers() lists {text[:60]!a} at turn {turn} of seed {seed}, and step refuses it "
                            "(action_is_valid is False)")  # fmt: skip
                need(penalty == 0, f"the legal answer {text[:60]!a} is charged the format_penalty {penalty}")
                tried += 1
            if _over(_at(env, here).step(mixed(seed, garbage=0)(env))):
                break
    if not tried:
        raise Skip("legal_answers() is empty: the environment cannot say what is allowed")
    return f"{tried} of them played"


def unlisted_answers(subject: Subject) -> str:
    """What ``legal_answers`` leaves out changes nothing: named actions, and what is listed elsewhere in an episode."""
    env = subject.text_env("legal_answers()")
    form, tried, until = env.action_format, 0, time.monotonic() + _MOST_S
    for seed in subject.seeds[:3]:
        env.reset(seed=seed)
        if isinstance(form, FreeFormat):
            _need_the_oracles(env, seed, until)
        places = _places(env, seed)
        known = {_read(form, text): text for _, answers in places for text in answers}
        if isinstance(form, ActionFormat):
            known = {(action,): form.format([action]) for action in range(len(form.actions))}
        for turn, (here, answers) in enumerate(places):
            listed = {_read(form, text) for text in answers}
            left_out = [text for meaning, text in known.items() if meaning not in listed]
            for text in itertools.takewhile(lambda _: time.monotonic() < until, _some(left_out, seed)):
                *_, info = _answered(_at(env, here), "an answer", text)
                acts = info.get("action_is_valid") and info.get("action_is_effective")
                need(not acts, f"legal_answers() leaves out {text[:60]!a} at turn {turn} of seed {seed}, and step "
                               "takes it there and changes the state; list all that is allowed")  # fmt: skip
                tried += 1
    return f"{tried} of them played"


def _places(env: TextEnv, seed: int) -> list[tuple[Any, list[str]]]:
    """Where an episode of listed answers comes by, and what is listed there."""
    draw, places = random.Random(seed), []
    for _ in range(_PLACES):
        answers = list(env.legal_answers())
        if not answers:  # the environment cannot say
            break
        places.append((env.snapshot(), answers))
        if _over(env.step(draw.choice(answers))):
            break
    return places


def _need_the_oracles(env: TextEnv, seed: int, until: float) -> None:
    """An oracle of free texts gives listed ones, if it does so at all. What begins like a listed one may have a free
    part ("search[any words]")."""
    form, start = env.action_format, env.snapshot()
    listed, left_out = 0, ""
    for text in itertools.takewhile(lambda _: time.monotonic() < until, env.oracle() or []):
        said, answers = _read(form, text) or "", [_read(form, each) or "" for each in env.legal_answers()]
        listed += said in answers
        if answers and _verb(said) not in map(_verb, answers):
            left_out = text
        if _over(env.step(text)):
            break
    whole = not (listed and left_out)
    need(whole, f"legal_answers() leaves out {left_out[:60]!a} where oracle() gives it in seed {seed}; list it too")
    env.restore(start)


def _verb(text: str) -> str:
    return re.split(r"[\W_]", text.strip(), maxsplit=1)[0]


ANSWER_RULES: tuple[Rule, ...] = (strange_answers, near_answers, legal_answers, unlisted_answers)
