"""DatasetEnv: questions of a data set, judged by verifiers. RLVR is this environment with one turn."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium

from roll_envs.datasets.tasks import SAMPLE_ROWS, SPLITS, DataTask, Fields, given_rows, make_tasks, read_rows
from roll_envs.env import AnyText, TextEnv
from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.parsing import FreeFormat, make_free_format
from roll_envs.verifiers import Failed, Score, Verifier, as_verifier, close_verifier, judge

__all__ = ["DatasetEnv"]

VerifierSpec = str | Mapping[str, Any] | Verifier

INSTRUCTIONS = "Answer the question or solve the task."
FEEDBACK = "That is not right. Try again."
UNREAD = "The answer could not be read."


class DatasetEnv(TextEnv):
    """One row of a data set is one task (see ``docs/verifiers.md`` for every argument)."""

    action_format: FreeFormat
    splits: ClassVar[tuple[str, ...]] = SPLITS

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        rows: Iterable[Mapping[str, Any]] | None = None,
        verifier: VerifierSpec | None = None,
        verifiers: Mapping[str, VerifierSpec] | None = None,
        prompt: str | None = None,
        reference_field: str | None = None,
        domain_field: str = "domain",
        verifier_field: str | None = None,
        oracle_field: str | None = None,
        split_field: str | None = None,
        id_field: str | None = None,
        split_shares: Sequence[float] = (0.9, 0.05, 0.05),
        split_salt: str = "",
        split: str = "all",
        max_attempts: int = 1,
        feedback: str = FEEDBACK,
        show_detail: bool = False,
        instructions: str = INSTRUCTIONS,
        action_format: str = "word",
        format_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """Wrong arguments, and rows that lack what they name, raise :class:`~roll_envs.errors.ConfigError`."""
        if path is not None and rows is not None:
            raise ConfigError("give path or rows, not both")
        data = read_rows(path) if path is not None else given_rows(rows) if rows is not None else SAMPLE_ROWS
        if path is None and rows is None and verifier is None:
            verifier = "normalized"
        self.split = _one_of("split", split, SPLITS)
        self.render_mode = _one_of("render_mode", render_mode, (None, "ansi"))
        self.max_turns = _count("max_attempts", max_attempts)
        self.format_penalty = _penalty(format_penalty)
        self.feedback, self.show_detail, self._text = str(feedback), bool(show_detail), str(instructions)
        self.action_format = make_free_format(action_format, example="your answer")
        self.action_space = AnyText((self.action_format.write("42"), self.action_format.write("I do not know.")))
        self.observation_space = AnyText()
        fields = Fields(
            template=prompt,
            reference=reference_field,
            domain=domain_field if verifiers is not None else None,
            verifier=verifier_field,
            split=split_field,
            id=id_field,
            shares=_shares(split_shares),
            salt=str(split_salt),
        )
        self.tasks = make_tasks(data, fields)
        self._oracle_field = oracle_field
        self._made: dict[str, Verifier] = {}
        """Verifiers that were made here, by their specs."""
        self._common = None if verifier is None else self._verifier(verifier)
        self._by_domain = {name: self._verifier(spec) for name, spec in (verifiers or {}).items()}
        self._refuse_unjudged(verifiers, verifier_field)
        numbers = range(len(self.tasks))
        self._by_split = {s: [i for i in numbers if s in ("all", self.tasks[i].split)] for s in SPLITS}
        self._row = -1
        self._turns, self._over, self._shown = 0, True, ""

    @property
    def instructions(self) -> str:
        """What to do and how to answer."""
        form = f" {self.action_format.instructions}" if self.action_format.tag else ""
        attempts = f" You have {self.max_turns} attempts." if self.max_turns > 1 else ""
        return f"{self._text}{attempts}{form}"

    @property
    def task(self) -> DataTask:
        """The task of this episode, with its reference (hidden from the agent)."""
        if self._row < 0:
            raise gymnasium.error.ResetNeeded("there is no task before reset()")
        return self.tasks[self._row]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ask row ``seed`` of the split (counted round).

        ``options``: ``{"split": name}`` chooses the split of this episode, ``{"row": i}`` row ``i`` of the whole data
        set. Raises :class:`ConfigError` for a split without rows and a row that does not exist.
        """
        self._row = self._row_of(self.episode_seed(seed), options or {})
        self._turns, self._over = 0, False
        self._shown = self.task.prompt
        return self._shown, {"success": False, "row": self._row, "split": self.task.split}

    def _row_of(self, seed: int, options: Mapping[str, Any]) -> int:
        row = options.get("row")
        if row is not None:
            if isinstance(row, bool) or not hasattr(row, "__index__") or not 0 <= int(row) < len(self.tasks):
                raise ConfigError(f"row must be the number of a row, 0 to {len(self.tasks) - 1}, not {row!r}")
            return int(row)
        split = _one_of("split", options.get("split", self.split), SPLITS)
        numbers = self._by_split[split]
        if not numbers:
            there = ", ".join(f"{len(self._by_split[name])} {name}" for name in SPLITS[:3])
            raise ConfigError(
                f"no row is of the split {split!r}; {len(self.tasks)} rows: {there}; name the splits in a field "
                "(split_field), change split_shares, or play split='all'"
            )
        return numbers[seed % len(numbers)]

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge an answer. Raises :class:`EnvironmentFaultError` when the verifier could not, so that the episode is
        marked failed; nothing has changed then, and the answer may be given again."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over, or none has begun: call reset() first")
        said = self.action_format.read(action)
        score = Score(value=0.0, passed=False, detail=UNREAD) if said is None else self._judge(said)
        if isinstance(score, Failed):
            raise EnvironmentFaultError(f"row {self._row} could not be judged: {score.reason}")
        self._turns += 1
        last = score.passed or self._turns >= self.max_turns
        self._over = last
        value = score.value if last else 0.0
        penalty = self.format_penalty if said is None else 0.0
        if not last:
            told = [UNREAD if said is None else self.feedback, score.detail if self.show_detail else ""]
            self._shown = "\n".join([line for line in told if line] + ["", self.task.prompt])
        info = {
            "success": score.passed,
            "action_is_valid": said is not None,
            "action_is_effective": said is not None,
            "format_penalty": penalty,
            "reward_parts": {"score": value, "format": penalty},
            "score_parts": {name: float(number) for name, number in score.parts.items()},
            "score_detail": score.detail,
            "row": self._row,
            "split": self.task.split,
        }
        return self._shown, value + penalty, last, False, info

    def legal_answers(self) -> list[str]:
        """Any text is allowed; this is one."""
        return [self.action_format.write("I do not know.")]

    def oracle(self) -> list[str] | None:
        """The reference (or ``oracle_field``) as an answer, where it is one that the verifier passes."""
        if self._over:
            return None
        task = self.task
        known = task.row.get(self._oracle_field) if self._oracle_field is not None else task.reference
        if isinstance(known, Sequence) and not isinstance(known, str) and known:
            known = known[0]
        if isinstance(known, bool) or not isinstance(known, str | int | float):
            return None
        answer = self.action_format.write(str(known))
        said = self.action_format.read(answer)
        verdict = self._judge(said) if said is not None else None
        return [answer] if isinstance(verdict, Score) and verdict.passed else None

    def render(self) -> str:
        """What is shown now."""
        return self._shown if self._row >= 0 else super().render()

    def snapshot(self) -> Mapping[str, Any]:
        """The row, what is shown, counters and the generator."""
        if self._row < 0:
            raise gymnasium.error.ResetNeeded("there is nothing to take a snapshot of before reset()")
        place = {"row": self._row, "turns": self._turns, "over": self._over, "shown": self._shown}
        return {**place, "np_random": self.np_random.bit_generator.state}

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Continue from ``snapshot``; its ``np_random`` may be missing (the generator then stays as it is)."""
        row, turns, shown = snapshot.get("row"), snapshot.get("turns", 0), snapshot.get("shown")
        usable = isinstance(row, int) and 0 <= row < len(self.tasks) and isinstance(turns, int) and turns >= 0
        if not usable or not isinstance(shown, str):
            raise ConfigError(
                f"a snapshot for this environment has 'row' below {len(self.tasks)}, 'turns' and 'shown', not "
                f"{str(snapshot)[:200]}; restore it into an environment with the arguments of the one it was taken from"
            )
        if "np_random" in snapshot:
            self.np_random.bit_generator.state = snapshot["np_random"]
        self._row, self._turns, self._shown = int(row), turns, shown  # type: ignore[arg-type]
        self._over = bool(snapshot.get("over", False)) or self._turns >= self.max_turns
        return self._shown

    def close(self) -> None:
        """Close the verifiers that were made for this environment."""
        for made in self._made.values():
            close_verifier(made)

    # -- who judges: the row's own verifier, that of its domain, or the one for all ------------------------------------

    def _refuse_unjudged(self, by_domain: Mapping[str, VerifierSpec] | None, field: str | None) -> None:
        for number, task in enumerate(self.tasks if self._common is None else ()):
            if task.verifier is None and task.domain not in self._by_domain:
                if by_domain is not None:
                    why = f"is of the domain {task.domain!r}; verifiers has {', '.join(map(repr, by_domain)) or 'none'}"
                else:
                    why = "has none of its own" + ("" if field is None else f" in the field {field!r}")
                raise ConfigError(f"no verifier for row {number}: it {why}; give one for all in verifier='exact', ...")

    def _judge(self, answer: str) -> Score | Failed:
        task = self.task
        chosen = self._by_domain.get(task.domain, self._common)
        if task.verifier is not None:
            try:
                chosen = self._verifier(task.verifier)
            except Exception as error:  # a spec that stands in the data
                return Failed(reason=f"its verifier {str(task.verifier)[:200]!r} cannot be made: {error}")
        assert chosen is not None
        return judge(chosen, answer, task.reference, {**task.row, "prompt": task.prompt})

    def _verifier(self, spec: VerifierSpec) -> Verifier:
        if not isinstance(spec, str | Mapping):
            return as_verifier(spec)
        key = repr(spec)
        if key not in self._made:
            self._made[key] = as_verifier(spec)
        return self._made[key]


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise ConfigError(f"{name} must be a whole number of 1 or more, not {value!r}")
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _penalty(value: Any) -> float:
    if not _is_number(value) or not -1e6 <= value <= 0:
        raise ConfigError(f"format_penalty is added to the reward: it must be a number of 0 or less, not {value!r}")
    return float(value)


def _shares(value: Any) -> tuple[float, float, float]:
    usable = isinstance(value, Sequence) and len(value) == 3 and all(map(_is_number, value)) and min(value) >= 0
    if not usable or not math.isclose(sum(value), 1.0, abs_tol=1e-6):
        raise ConfigError(f"split_shares are three shares for {', '.join(SPLITS[:3])} that add up to 1, not {value!r}")
    return float(value[0]), float(value[1]), float(value[2])
