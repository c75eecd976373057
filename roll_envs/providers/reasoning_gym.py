"""reasoning-gym's tasks (arXiv:2505.24760): one question an episode, drawn by the seed, graded by the task's scorer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import gymnasium

from roll_envs.env import AnyText, EnvironmentCard, TextEnv
from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.parsing import FreeFormat, make_free_format
from roll_envs.providers.isolation import isolated
from roll_envs.providers.packages import folder_of, imported

__all__ = ["ReasoningGymEnv", "card", "ids"]

_PACKAGE = "reasoning_gym"
_NAME = re.compile(r"""(?:DATASET_NAME\s*=|register_dataset\()\s*["'](\w+)["']""")
_NOTHING = ("I do not know.", "-9876543210")
"""Answers that many scorers still pay a little: for any text, for any number, or for a digit that is in it."""


def ids() -> list[str]:
    """Of every task of the installed release, read from its source: importing it takes seconds."""
    folder = folder_of(_PACKAGE)
    names: set[str] = set()
    for file in folder.glob("*/**/*.py") if folder else ():
        text = file.read_text(encoding="utf-8")
        if "register_dataset(" in text:
            names.update(_NAME.findall(text))
    return [f"{_PACKAGE}/{name}-v0" for name in sorted(names - {"composite"})]  # which has no tasks of its own


def card(id: str) -> EnvironmentCard:
    """The card of a task."""
    name = _name_of(id)
    return EnvironmentCard(
        id=id,
        entry_point=f"{__name__}:ReasoningGymEnv",
        kwargs={"task": name},
        summary=f"{name.replace('_', ' ')}: a question of reasoning-gym.",
        tests="Reasoning over a generated question; settings of its difficulty are the task's own (config).",
        turns="One answer; more with max_attempts.",
        reward_range=(0.0, 1.0),
        rewards="score: what the task's own scorer gives for the answer, 0 to 1; 0 for one that cannot be read.",
        success="The score is 1.",
        versions={"v0": "First version."},
        citation="Stojanovski et al., Reasoning Gym, arXiv:2505.24760. Apache-2.0.",
        differences=(
            "An answer stands in a tag (action_format); a score is never given for a text that has none.",
            "What 'I do not know.' or a number out of place has is not paid: many scorers give 0.01 for any answer.",
            "A question is drawn from the seed alone, with other seeds for other questions, instead of a fixed list.",
        ),
    )


def _name_of(id: str) -> str:
    return id.partition("/")[2].removesuffix("-v0")


class ReasoningGymEnv(TextEnv):
    """A task of reasoning-gym. ``config``: settings of the task, such as its difficulty, as the package names them."""

    def __init__(
        self,
        *,
        task: str,
        config: Mapping[str, Any] | None = None,
        action_format: str = "answer",
        max_attempts: int = 1,
        format_penalty: float = 0.0,
    ) -> None:
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
            raise ConfigError(f"max_attempts is {max_attempts!r}; give a whole number of 1 or more")
        if not format_penalty <= 0:
            raise ConfigError(f"format_penalty is {format_penalty!r}; give 0 or less")
        self.task, self.max_turns, self._penalty = task, max_attempts, float(format_penalty)
        self._config = dict(config or {})
        self.action_format: FreeFormat = make_free_format(action_format, example="your answer")
        self.action_space = AnyText(tuple(self.legal_answers()))
        self.observation_space = AnyText()
        self._entry: dict[str, Any] = {}
        self._dataset: Any = None
        self._turns, self._over, self._trouble = 0, True, ""
        with isolated(0):
            _make(task, self._config, 0)  # what is wrong with the settings is said now

    @property
    def instructions(self) -> str:
        tries = "" if self.max_turns == 1 else f" You have {self.max_turns} attempts."
        return f"Answer the question.{tries} {self.action_format.instructions}"

    def legal_answers(self) -> list[str]:
        """Any text is one; these are two of them."""
        return [self.action_format.write(text) for text in ("0", "yes")]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        start = self.episode_seed(seed)
        with isolated(start):
            self._dataset = _make(self.task, self._config, start)
            self._entry = self._dataset[0]
        self._turns, self._over = 0, False
        return self._question, {"success": False}

    @property
    def _question(self) -> str:
        return str(self._entry["question"])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() first")
        said = self.action_format.read(action)
        self._turns += 1
        self._trouble = ""
        score = 0.0 if said is None else self._worth(said)
        success, penalty = score >= 1.0, self._penalty if said is None else 0.0
        over = success or self._turns >= self.max_turns
        # The last attempt is the end of the task, as the first right one is.
        self._over, shown = over, self._question if not over else "The episode is over."
        info = {
            "success": success,
            "action_is_valid": said is not None,
            "action_is_effective": said is not None,
            "format_penalty": penalty,
            "reward_parts": {"score": score, "format": penalty},
            **({"scorer_error": self._trouble} if self._trouble else {}),
        }
        return shown, score + penalty, over, False, info

    def _worth(self, said: str) -> float:
        """The score of an answer; 0 where one that says nothing has the same."""
        score = self._score(said)
        return score if score >= 1.0 or score > max(map(self._score, _NOTHING)) else 0.0

    def _score(self, said: str) -> float:
        """0 to 1. An answer that the scorer cannot read, where it reads the task's own, is worth 0, and the error is in
        ``info``. Raises :class:`EnvironmentFaultError` for a scorer that fails at both."""
        with isolated(self._turns):
            try:
                score = float(self._dataset.score_answer(said, self._entry))
            except Exception as error:  # not all scorers expect whatever a model writes
                try:
                    self._dataset.score_answer(self._entry["answer"], self._entry)
                except Exception:
                    raise EnvironmentFaultError(f"the scorer of reasoning-gym's {self.task}: {error!r}") from error
                self._trouble, score = repr(error), 0.0
        return min(1.0, max(0.0, score)) if score == score else 0.0

    def oracle(self) -> list[str] | None:
        if self._over or not isinstance(self._entry.get("answer"), str):
            return None
        answer = self._entry["answer"]
        return [self.action_format.write(answer)] if self._score(answer) >= 1.0 else None


def _make(task: str, config: Mapping[str, Any], seed: int) -> Any:
    """The task's data set with the questions of ``seed``. Raises :class:`ConfigError` for settings that it refuses."""
    package = imported(_PACKAGE, f"{task}-v0", "reasoning-gym")
    try:
        made = package.create_dataset(task, seed=seed, size=1, **config)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"reasoning-gym's task {task!r} refuses the config {dict(config)}: {error}") from error
    for name, value in vars(made).items():
        if type(value) is set and all(isinstance(each, str) for each in value):
            setattr(made, name, _Ordered(value))
    return made


class _Ordered(set[str]):
    """A set that two tasks draw from, in the same order in every process: that of texts follows from PYTHONHASHSEED."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))

    def __sub__(self, others: AbstractSet[object]) -> _Ordered:
        return _Ordered(super().__sub__(others))
