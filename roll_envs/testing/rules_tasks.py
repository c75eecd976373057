"""Rules about tasks: seeds and splits that differ, seeds of the trainer's ranges, options, and answers that leak."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from roll_envs.env import AnyEnv, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import ActionFormat
from roll_envs.testing.trace import (
    Failure,
    Rule,
    Skip,
    Subject,
    begin,
    difference,
    followed,
    mixed,
    need,
    plain,
    play,
    script,
    steps,
)

FIRST_HELD_OUT = 1_000_000_000
"""The trainer draws train seeds below it and held-out seeds from it on."""
_STARTS = 20
"""Episodes that are looked at."""
_STARTS_IF_SLOW = 8
"""Those that are looked at however slow it is to begin them."""
_TASKS = 200
"""Tasks of a split that are looked for among those of training, while they are quick to begin."""
_TASKS_S = 1.0
_APART = 7919
"""Between seeds that are not in a row."""


def seeds_differ(subject: Subject) -> str:
    """Different seeds are different episodes, for a player that gives the same answers."""
    env = subject.make()
    if getattr(env, "splits", ()):
        raise Skip("tasks are rows of splits, as many as the data has")
    seeds = subject.first_seeds
    different = {json.dumps(play(env, seed, mixed(0))) for seed in seeds}
    if len(different) == 1 and not isinstance(getattr(env, "action_format", None), ActionFormat):
        # Moves of a random player are none where actions have no names; what is hidden stays so.
        raise Skip(f"{len(seeds)} seeds look the same to a random player, who knows no actions here")
    need(len(different) > 1, f"all of {len(seeds)} seeds give the same episode; draw the task from the seed")
    env.reset(seed=0)
    first = json.dumps(plain(list(begin(env))))
    same = all(json.dumps(plain(list(begin(env)))) == first for _ in range(_STARTS))
    near, far = set[str](), set[str]()
    for seed in _seeds_begun():
        near.add(json.dumps(plain(list(begin(env, seed=seed)))))
        far.add(json.dumps(plain(list(begin(env, seed=_APART * seed)))))
    seen = f"{seed + 1} seeds in a row begin {len(near)} different episodes, others {len(far)}"
    need(2 * len(near) > len(far), f"{seen}; use the whole seed")
    same = same and bool(near - {first})  # what differs may be hidden at the start
    need(not same, f"{_STARTS} resets without a seed begin the same episode; draw it by episode_seed, or from "
                   "self.np_random")  # fmt: skip
    return f"{len(different)} different episodes of {len(seeds)} seeds"


def _seeds_begun(first: int = 0, most: int = _STARTS, least: int = _STARTS_IF_SLOW) -> Iterator[int]:
    """Seeds from ``first`` up to ``most``; those from ``least`` on only while there is time to begin them."""
    until = time.monotonic() + _TASKS_S
    return itertools.takewhile(lambda seed: seed < least or time.monotonic() < until, range(first, most))


def trainer_seeds(subject: Subject) -> str:
    """Seeds as the trainer draws them begin episodes, the same ones each time; held-out ones are others."""
    env, again = subject.make(), subject.make()
    for seed in (FIRST_HELD_OUT - 1, FIRST_HELD_OUT, FIRST_HELD_OUT + 511):
        apart = difference(play(env, seed, mixed(0)), play(again, seed, mixed(0)))
        need(not apart, f"seed {seed} in a second instance is another episode ({apart})")
    if getattr(env, "splits", ()):
        return "they begin episodes"
    train = [play(env, seed, mixed(0)) for seed in subject.first_seeds]
    held_out = [play(env, FIRST_HELD_OUT + seed, mixed(0)) for seed in subject.first_seeds]
    same = train == held_out and any(trace != train[0] for trace in train)
    need(not same, f"held-out seeds from {FIRST_HELD_OUT} on play the tasks of seeds from 0 on; use the whole seed")
    return "they begin episodes, held-out ones others than those of training"


def options(subject: Subject) -> str:
    """No options, empty ones and ``None`` are the same; options are not changed, and hold for one reset."""
    env = subject.make()
    seed = subject.seeds[0]
    start = plain(list(begin(env, seed=seed)))
    given: list[dict[str, Any]] = [{}]
    given += [{"split": name} for name in _splits(env)]
    for each in given:
        passed = copy.deepcopy(each)
        found = plain(list(begin(env, seed=seed, options=passed)))
        need(passed == each, f"reset changes the options {each} that it is given to {passed}")
        need(each or found == start, "reset(options={}) gives another episode than reset() with the same seed")
        later = plain(list(begin(env, seed=seed, options=None)))
        need(later == start, f"the options {each} of one reset hold in the next one too")
    return "they hold for one reset"


def splits(subject: Subject) -> str:
    """Each split begins episodes, the same ones each time; those of training are no others' too."""
    env = subject.text_env("splits")
    if not env.splits:
        raise Skip("tasks are seeds alone (splits is empty)")
    starts: dict[str, dict[str, int]] = {}
    for name in _splits(env):
        found = [_start(env, seed, name) for seed in _seeds_begun()]
        again = [_start(env, seed, name) for seed in range(len(found))]
        need(found == again, f"split {name!r} gives other episodes again")
        more = [_start(env, seed, name) for seed in _seeds_begun(len(found), _TASKS)]
        starts[name] = {start: seed for seed, start in enumerate(found + more)}
    need(starts, f"reset refuses each of the splits {env.splits}; take them, or leave splits empty")
    same = len(set().union(*starts.values())) > 1 and all(len(others) == 1 for others in starts.values())
    need(not same, f"{len(found)} seeds of a split begin one task; seed s is task s of it")
    train = starts.get("train", {})
    for name, others in starts.items():
        alike = [start for start in others if start in train and name not in ("train", "all")]
        for start in alike[:_STARTS_IF_SLOW]:
            task = _task(env, others[start], name)
            same = task is not None and task == _task(env, train[start], "train")
            need(not same, f"a task of the split {name!r} is one of 'train' too: {start[:80]!a}")
    try:
        env.reset(seed=0, options={"split": "no such split"})
    except Exception:  # any error will do
        return ", ".join(starts)
    raise Failure("reset takes the split 'no such split'; raise roll_envs.ConfigError with those that there are")


def _splits(env: AnyEnv) -> list[str]:
    """Those that have tasks: data of the user's may have none of one, which is said by a ConfigError."""
    found = []
    for name in getattr(env, "splits", ()):
        with contextlib.suppress(ConfigError):
            env.reset(seed=0, options={"split": name})
            found.append(name)
    return found


def _start(env: TextEnv, seed: int, split: str) -> str:
    observation, _ = begin(env, seed=seed, options={"split": split})
    return f"{env.instructions}\n{observation}"


def _task(env: TextEnv, seed: int, split: str) -> Any:
    """What tells tasks that begin alike from each other: what is seen, and what may be done, on the oracle's way and by
    a random player; ``None`` where there is no way and the player is cut, so that it cannot be told."""
    begin(env, seed=seed, options={"split": split})
    way = env.oracle()
    if way is None and followed() is not None:
        return None
    seen: list[Any] = []
    for answer, most in ((script(way or ()), len(way or ())), (mixed(0, garbage=0), None)):
        begin(env, seed=seed, options={"split": split})
        for said, (*result, _) in steps(env, answer, most):
            seen.append([said, *result, result[2] or result[3] or env.legal_answers()])
    return plain(seen)


# -- leaks -------------------------------------------------------------------------------------------------------------

_LABELS = r"(?:answers?|solutions?|oracle|ground.truth|gold|labels?)"
_HINTS = r"(?:hint|oracle|solution|best|optimal|correct|recommended|suggested)(?: (?:action|move|answer|step))?"
_LEAST_CHARS = 4
"""A shorter answer may stand anywhere by chance."""


def leaks(subject: Subject) -> str:
    """What solves the episode stands neither in what the agent is shown nor in ``info``, before the end."""
    env = subject.text_env("oracle()")
    ways, told, hints = set(), [], []
    for seed in subject.seeds:
        observation, info = begin(env, seed=seed)
        if not env.oracle():
            continue
        ways.add(tuple(env.oracle() or ()))
        found = [_found(env, observation, info)]
        hints.append(_hints(env, observation, info))
        for _, (observation, _, terminated, truncated, info) in steps(env, mixed(seed, garbage=0), 2):
            if not (terminated or truncated):
                found.append(_found(env, observation, info))
                hints.append(_hints(env, observation, info))
        told.append(found)
    if not told:
        raise Skip("oracle() gives None for every seed")
    if len(ways) > 1:  # an answer that is always the same is told by anything that is
        at_start, later = [found[:1] for found in told], [found[1:] for found in told]
        for seeds, where in itertools.product((at_start, later), ("info", "observation")):
            clear = [[each for each in found if each is not None] for found in seeds]
            held = [any(where in each for each in found) for found in clear if found]
            every = len(held) > 1 and all(held)
            need(not every, f"the {where} holds the answer of the oracle in every seed; keep it out of there")
        told_first = [where for first, where in hints if first]
        always = set.intersection(*told_first) if told_first else set()
        apart = len({first for first, _ in hints if first}) > 1
        need(not (apart and always), f"{min(always, default='')} always holds the oracle's next answer; keep it out")
    return f"looked for {len(ways)} answers"


def _hints(env: TextEnv, observation: str, info: dict[str, Any]) -> tuple[str, set[str]]:
    """The oracle's next answer (none: empty) and where it is told now, for named actions."""
    form, way = env.action_format, env.oracle()
    if not way or not isinstance(form, ActionFormat) or not (read := form.parse(way[0]).actions):
        return "", set()
    name = form.actions[read[0]]
    where = {f"info[{key!r}]" for key, value in info.items() if value in (name, way[0], read[0], [name], [read[0]])}
    if re.search(rf"\b{_HINTS}\b\W{{1,4}}(?:is\W+)?{re.escape(name)}(?!\w)", observation, re.IGNORECASE):
        where.add("the observation")
    return way[0], where


def _found(env: TextEnv, observation: str, info: dict[str, Any]) -> set[str] | None:
    """Where the rest of the oracle's way stands now; ``None`` for so few named actions that they stand anywhere."""
    way = env.oracle()
    if not way:
        return set()
    shown = {"observation"} if _shows(f"{env.instructions}\n{observation}", way, env) else set()
    found = shown | ({"info"} if any(_tells(value, way, env) for value in _values(info)) else set())
    return found if found or len(way) > 2 or not isinstance(env.action_format, ActionFormat) else None


def _written(way: Sequence[str], env: TextEnv) -> list[str]:
    """The actions of the answers, without their form; where one has none, the answers as they are."""
    form = env.action_format
    if isinstance(form, ActionFormat):
        return [form.actions[action] for answer in way for action in form.parse(answer).actions]
    actions = [form.read(answer) or "" for answer in way]
    return actions if all(actions) else list(way)


def _values(value: Any) -> Iterator[Any]:
    """The texts and lists anywhere in ``value``; of a list of several texts, what may be choices, not each text."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _values(each)
        return
    yield value
    if isinstance(value, list | tuple) and not (len(value) > 1 and all(isinstance(each, str) for each in value)):
        for each in value:
            yield from _values(each)


def _tells(value: Any, way: Sequence[str], env: TextEnv) -> bool:
    actions = _written(way, env)
    form = env.action_format
    numbers = [n for a in way for n in form.parse(a).actions] if isinstance(form, ActionFormat) else actions
    if isinstance(value, list | tuple):
        return list(value) in (list(way), actions, numbers)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value:g}" if _is_one_text(actions, env) and len(f"{value:g}") > 1 else ""
    if not isinstance(value, str):
        return False
    if _is_one_text(actions, env):
        return value.strip() == actions[0] or (len(actions[0]) >= _LEAST_CHARS and actions[0] in value)
    letters = [action[0] for action in actions]
    codes = [letters, list(map(str, numbers))] if len(actions) > 2 else []
    whole = any(re.fullmatch(r"\W{0,3}".join(map(re.escape, code)), value.strip(), re.IGNORECASE) for code in codes)
    return whole or (len(actions) > 1 and _in_order(value, actions))


def _shows(text: str, way: Sequence[str], env: TextEnv) -> bool:
    actions = _written(way, env)
    if _is_one_text(actions, env):
        label = re.compile(rf"\b{_LABELS}\b\W{{1,4}}(?:is\W)?{re.escape(actions[0])}(?!\w)", re.IGNORECASE)
        return bool(actions[0]) and bool(label.search(text))
    return len(actions) > 2 and (_in_order(text, actions) or _in_order(text, way))


def _is_one_text(actions: Sequence[str], env: TextEnv) -> bool:
    return len(actions) == 1 and not isinstance(env.action_format, ActionFormat)


def _in_order(text: str, actions: Sequence[str]) -> bool:
    """Whether the actions stand one after the other in ``text``, with little between them."""
    return bool(re.search(r"\W{1,6}".join(map(re.escape, actions)), text, re.IGNORECASE))


TASK_RULES: tuple[Rule, ...] = (seeds_differ, trainer_seeds, options, splits, leaks)
