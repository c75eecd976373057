"""Data for the templates: one page of the shop with everything around it, in play or in a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envs.webshop.pages import Page
from envs.webshop.serve.outcome import Outcome, explain
from envs.webshop.serve.replay import Replay
from envs.webshop.serve.visits import Visit
from roll_envs.cli.session import available_actions

__all__ = ["Done", "Scene", "of_replay", "of_visit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """One turn of the list of turns."""

    number: int
    action: str
    reward: float
    valid: bool
    differs: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One page of the shop. ``live``: it can be clicked; else it is a step of a replay."""

    live: bool
    page: Page
    observation: str
    instructions: str
    available: tuple[str, ...]
    """Actions that can be played now."""
    coming: str
    """In a replay: the action that was played next, lower case; empty otherwise."""
    turn: int
    max_turns: int
    total: float
    over: bool
    goal_number: int
    num_goals: int
    turns: tuple[Done, ...]
    outcome: Outcome | None
    agent_view: bool = False
    notice: str = ""

    def can(self, action: str) -> bool:
        """Whether a link for ``action`` works on this page."""
        return self.live and not self.over and action.lower() in self.available

    def is_next(self, action: str) -> bool:
        """Whether ``action`` is what a replay plays next."""
        return not self.live and action.lower() == self.coming

    @property
    def out_of_turns(self) -> bool:
        """Whether the turn limit ended the episode."""
        return self.over and self.page.kind != "done"

    @property
    def pages(self) -> int:
        """How many pages of results there are."""
        return max(1, -(-self.page.total // self.page.page_size))


def of_visit(visit: Visit) -> Scene:
    """The scene of a visitor; a notice is shown once."""
    session, env = visit.session, visit.env
    read = env.action_format.read
    return Scene(
        live=True,
        page=env.page,
        observation=session.observation,
        instructions=session.instructions,
        available=_lower(session.info),
        coming="",
        turn=len(session.turns),
        max_turns=env.max_turns,
        total=session.total,
        over=session.over,
        goal_number=visit.goal_number,
        num_goals=len(env.catalogue.goals),
        turns=tuple(
            _done(n, turn["answer"], turn["reward"], turn["info"], read)
            for n, turn in enumerate(session.turns, start=1)
        ),
        outcome=explain(env),
        agent_view=visit.agent_view,
        notice=visit.take_notice(),
    )


def of_replay(replay: Replay, number: int) -> Scene:
    """Step ``number`` of a replay."""
    step = replay.steps[number]
    last = number == len(replay.steps) - 1
    return Scene(
        live=False,
        page=step.page,
        observation=step.observation,
        instructions=replay.instructions,
        available=_lower(step.info),
        coming="" if last else replay.steps[number + 1].action.lower(),
        turn=step.number,
        max_turns=replay.max_turns,
        total=step.total,
        over=step.over,
        goal_number=replay.goal_number,
        num_goals=replay.num_goals,
        turns=tuple(
            Done(
                number=s.number,
                action=s.action or s.answer,
                reward=s.reward,
                valid=bool(s.info.get("action_is_valid", True)),
                differs=bool(s.differences),
            )
            for s in replay.steps[1:]
        ),
        outcome=replay.outcome if step.page.kind == "done" else None,
    )


def _lower(info: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(action.lower() for action in available_actions(info))


def _done(number: int, answer: str, reward: float, info: Mapping[str, Any], read: Callable[[str], str | None]) -> Done:
    return Done(
        number=number, action=read(answer) or answer, reward=reward, valid=bool(info.get("action_is_valid", True))
    )
