"""A recorded episode played again, step by step, and compared with what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.webshop.env import WebShopEnv
from envs.webshop.pages import Page
from envs.webshop.serve.outcome import Outcome, explain
from roll_envs import env_registry as registry
from roll_envs.errors import ConfigError, RollError
from roll_envs.records import Record, RecordedTurn, differences, read_records

__all__ = ["MakeShop", "Replay", "Step", "play_again", "shop_records"]

MakeShop = Callable[[str, Mapping[str, Any]], WebShopEnv]
"""Makes the environment of an id with arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What is seen after ``number`` turns; step 0 is the start."""

    number: int
    answer: str
    """As recorded; empty at the start."""
    action: str
    """What the environment read in the answer; empty when it found none."""
    page: Page
    observation: str
    info: Mapping[str, Any]
    reward: float
    total: float
    over: bool
    recorded_observation: str | None
    differences: tuple[str, ...]
    """What is not as it was recorded, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A record and the steps of playing it again."""

    record: Record
    instructions: str
    max_turns: int
    goal_number: int
    num_goals: int
    steps: tuple[Step, ...]
    outcome: Outcome | None
    compared: bool
    """Whether the record holds observations to compare with."""
    problem: str = ""
    """Why it could not be played to its end; empty otherwise."""

    @property
    def first_difference(self) -> int | None:
        """Number of the first step that is not as it was recorded."""
        return next((step.number for step in self.steps if step.differences), None)


def shop_records(path: Path) -> list[Record]:
    """The episodes of a file. Raises :class:`ConfigError` as :func:`read_records` does, and for one of another game."""
    found = read_records(path)
    for record in found:
        if not issubclass(registry.environment_class(record.env_id), WebShopEnv):
            raise ConfigError(
                f"{path}: {record.source} is an episode of {record.env_id!r}; only those of the shop can be shown here"
            )
    return found


def play_again(record: Record, make: MakeShop) -> Replay:
    """Play a record's answers. Whatever goes wrong is the replay's ``problem``; nothing is raised."""
    steps: list[Step] = []
    env: WebShopEnv | None = None
    problem = ""
    try:
        env = make(record.env_id, record.kwargs)
        observation, info = env.reset(seed=record.seed, options=dict(record.options) or None)
        steps.append(_first(env, record, observation, info))
        for turn in record.turns:
            if steps[-1].over:
                left = len(record.turns) - steps[-1].number
                problem = f"The episode ended here, but {left} more recorded turn{'s' * (left > 1)} followed."
                break
            steps.append(_next(env, steps[-1], turn))
    except RollError as error:
        problem = f"It cannot be played on: {error}"
    except Exception as error:  # the record may hold anything
        problem = f"It cannot be played on: {type(error).__name__}: {error}"
    return Replay(
        record=record,
        instructions=env.instructions if env is not None else "",
        max_turns=env.max_turns if env is not None else 0,
        goal_number=int(env.snapshot()["goal"]) if env is not None and steps else 0,
        num_goals=len(env.catalogue.goals) if env is not None else 0,
        steps=tuple(steps),
        outcome=explain(env) if env is not None else None,
        compared=any(turn.observation is not None for turn in record.turns),
        problem=problem,
    )


def _first(env: WebShopEnv, record: Record, observation: str, info: Mapping[str, Any]) -> Step:
    expected = record.first_observation
    return Step(
        number=0,
        answer="",
        action="",
        page=env.page,
        observation=observation,
        info=info,
        reward=0.0,
        total=0.0,
        over=False,
        recorded_observation=expected,
        differences=("another observation",) if expected not in (None, observation) else (),
    )


def _next(env: WebShopEnv, before: Step, turn: RecordedTurn) -> Step:
    observation, reward, terminated, truncated, info = env.step(turn.answer)
    over = terminated or truncated
    return Step(
        number=before.number + 1,
        answer=turn.answer,
        action=env.action_format.read(turn.answer) or "",
        page=env.page,
        observation=observation,
        info=info,
        reward=float(reward),
        total=before.total + float(reward),
        over=over,
        recorded_observation=turn.observation,
        differences=tuple(differences(turn, observation, float(reward), over)),
    )
