"""TextWorld's games, the same to the byte, made in a part of the time that the package takes."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from typing import Any

__all__ = ["quickly"]

_LONGEST_SEARCH = 500
"""Steps, of some 20 ms each, after which the search for a game's quest has failed: some do not end within minutes."""


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Without three things that the package does, which take most of a game's time: it reads the rules of a challenge
    for each game, it tries all that could come before each action of a quest, and it compiles a game a second time to
    follow the way to its end (which the game's logic can tell, where that is possible). For one game, and one thread
    at a time."""
    maker = importlib.import_module("textworld.generator.maker").GameMaker
    knowledge = importlib.import_module("textworld.generator.data").KnowledgeBase
    chaining: Any = importlib.import_module("textworld.generator.chaining")
    load, chains, walked = knowledge.__dict__["load"], chaining.get_chains, maker.set_walkthrough
    knowledge.load = staticmethod(_read_once(knowledge.load))
    chaining.get_chains = _Search(chaining)
    maker.set_walkthrough = lambda made, commands: _walk(made, commands) or walked(made, commands)
    try:
        yield
    finally:
        knowledge.load, chaining.get_chains, maker.set_walkthrough = load, chains, walked


@functools.cache
def _read_once(load: Callable[..., Any]) -> Callable[..., Any]:
    return functools.cache(load)


class _Reversed:
    """A generator of random numbers whose shuffled lists are turned round."""

    def __init__(self, draws: Any) -> None:
        self._draws = draws

    def shuffle(self, items: MutableSequence[Any]) -> None:
        self._draws.shuffle(items)
        items.reverse()


class _Search:
    """The package's ``get_chains``. That one goes on from the last action that is possible, after it has tried all;
    here they are tried from the last one on, as they are needed."""

    def __init__(self, chaining: Any) -> None:
        self._chaining, self._all = chaining, chaining.get_chains
        self._left = _LONGEST_SEARCH  # for all rooms where the game could begin

    def __call__(self, state: Any, options: Any) -> Iterator[Any]:
        if options.rng is None or options.subquests or options.max_breadth > 1:
            return self._all(state, options)  # type: ignore[no-any-return]
        chainer = self._chaining._Chainer(state, options)
        chainer.rng = _Reversed(options.rng)
        chainer.check_state = _Allowed(chainer.constraints)
        return self._after(chainer, chainer.root())

    def _after(self, chainer: Any, node: Any) -> Iterator[Any]:
        self._left -= 1
        if self._left < 0:
            raise self._chaining.QuestGenerationError(f"no quest was found within {_LONGEST_SEARCH} steps of a search")
        options, last = chainer.options, True
        for child in chainer.chain(node):
            last = False
            yield from self._after(chainer, child)
        if last and node.length >= options.min_length and node.depth >= options.min_depth:
            yield chainer.make_chain(node)


class _Allowed:
    """Whether a state breaks none of ``constraints``: the package's ``check_state``, which looks for all facts that a
    constraint could be about, each time anew. Only facts that a state without fault had not can break one."""

    def __init__(self, constraints: Iterable[Any]) -> None:
        self._about: dict[tuple[str, int], list[tuple[Any, Any]]] = {}
        for rule in constraints:
            for condition in rule.preconditions:
                self._about.setdefault((condition.name, len(condition.parameters)), []).append((rule, condition))
        self._known: dict[frozenset[Any], bool] = {}
        self._good: frozenset[Any] = frozenset()

    def __call__(self, state: Any) -> bool:
        facts = frozenset(state.facts)
        if facts not in self._known:
            self._known[facts] = not any(self._breaks(fact, state) for fact in facts - self._good)
        if self._known[facts]:
            self._good = facts
        return self._known[facts]

    def _breaks(self, fact: Any, state: Any) -> bool:
        for rule, condition in self._about.get((fact.name, len(fact.arguments)), ()):
            bound = dict(zip(condition.parameters, fact.arguments, strict=True))
            for action in state.all_instantiations(rule, bound):
                if any(made.name == "fail" for made in action.postconditions):
                    return True
        return False


def _walk(made: Any, commands: Sequence[str]) -> bool:
    """Whether each of the commands is one action there; then what wins the game knows its actions and commands."""
    game = made.build()
    progress = importlib.import_module("textworld.generator.game").GameProgression(game)
    names = importlib.import_module("textworld.generator.inform7").Inform7Game(game)
    wins = [win for quest in progress.quest_progressions for win in quest.win_events]
    actions: list[Any] = []
    ways: list[tuple[Any, list[Any], Sequence[str]]] = []
    for command in commands:
        valid = progress.valid_actions
        meant = [a for a, name in zip(valid, names.gen_commands_from_actions(valid), strict=True) if name == command]
        if len(meant) != 1:
            return False
        before = [win.triggered for win in wins]
        progress.update(meant[0])
        actions.append(meant[0])
        new = (win for win, was in zip(wins, before, strict=True) if win.triggered and not was)
        ways += [(win.event, list(actions), commands[: len(actions)]) for win in new]
    for event, *way in ways:
        event.actions, event.commands = way
    return True
