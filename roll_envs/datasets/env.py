"""DatasetEnv: questions of a data set, judged by verifiers. RLVR is this environment with one turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
from pydantic import Field

from roll_envs.datasets.tasks import SAMPLE_ROWS, SPLITS, DataTask, Fields, given_rows, make_tasks, read_rows
from roll_envs.env import AnyText, TextEnv
from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.parsing import FreeFormat, make_free_format
from roll_envs.verifiers import Failed, Score, Verifier, as_verifier, close_verifier, judge

VerifierSpec = str | Mapping[str, Any] | Verifier

UNREAD = "The answer could not be read."


class DatasetSettings(Fields):
    """Arguments of ``roll/Dataset-v0``."""

    path: Any = None
    """JSON lines, JSON (both also ``.gz``) or Parquet (extra ``data``), one or several files."""
    rows: Any = None
    """Rows from Python; without these and files, 200 small sums."""
    verifier: Any = None
    """For all rows: a name, ``{"name": ..., **settings}`` or a verifier."""
    verifiers: Mapping[str, Any] | None = None
    """Verifiers by the value of ``domain_field``."""
    oracle_field: str | None = None
    """A right answer, where the reference is none."""
    split: Literal["train", "validation", "test", "all"] = "all"
    max_attempts: int = Field(1, ge=1)
    """Tries until one passes; the last is paid."""
    feedback: str = "That is not right. Try again."
    """Said between tries."""
    show_detail: bool = False
    """Whether the feedback says what the verifier said."""
    instructions: str = "Answer the question or solve the task."
    action_format: str = "word"
    format_penalty: float = Field(0.0, ge=-1e6, le=0)
    """Added to the reward for an answer that cannot be read."""
    render_mode: Literal["ansi"] | None = None


class DatasetEnv(TextEnv):
    """One row of a data set is one task."""

    action_format: FreeFormat
    splits: ClassVar[tuple[str, ...]] = SPLITS

    def __init__(self, settings: DatasetSettings) -> None:
        """Rows that lack what the settings name raise :class:`~roll_envs.errors.ConfigError`."""
        self.settings = settings
        self.render_mode = settings.render_mode
        self.max_turns = settings.max_attempts
        self.action_format = make_free_format(settings.action_format, example="your answer")
        self.action_space = AnyText((self.action_format.write("42"), self.action_format.write("I do not know.")))
        self.observation_space = AnyText()
        path, rows, verifier, by_domain = settings.path, settings.rows, settings.verifier, settings.verifiers
        if path is not None and rows is not None:
            raise ConfigError("give path or rows, not both")
        if path is None and rows is None:
            rows, verifier = SAMPLE_ROWS, "normalized" if verifier is None else verifier
        # Without verifiers by domain rows need not have one.
        fields = settings.model_copy(update={} if by_domain is not None else {"domain_field": None})
        self.tasks = make_tasks(given_rows(rows) if path is None else read_rows(path), fields)
        self._made: dict[str, Verifier] = {}
        """Verifiers that were made here, by their specs."""
        self._common_spec = verifier
        self._common = None if verifier is None else self._verifier(verifier)
        self._by_domain = {name: self._verifier(spec) for name, spec in (by_domain or {}).items()}
        self._refuse_unjudged()
        numbers = range(len(self.tasks))
        self._by_split = {s: [i for i in numbers if s in ("all", self.tasks[i].split)] for s in SPLITS}
        self._row = -1
        self._turns, self._over, self._shown = 0, True, ""

    @property
    def instructions(self) -> str:
        """What to do and how to answer."""
        form = f" {self.action_format.instructions}" if self.action_format.tag else ""
        attempts = f" You have {self.max_turns} attempts." if self.max_turns > 1 else ""
        return f"{self.settings.instructions}{attempts}{form}"

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
        if not set(options) <= {"split", "row"}:
            raise ConfigError(f"the options of reset() are 'split' and 'row', not {dict(options)!r}")
        row = options.get("row")
        if row is not None:
            if isinstance(row, bool) or not hasattr(row, "__index__") or not 0 <= int(row) < len(self.tasks):
                raise ConfigError(f"row must be the number of a row, 0 to {len(self.tasks) - 1}, not {row!r}")
            return int(row)
        numbers = self._numbers(options.get("split", self.settings.split))
        return numbers[seed % len(numbers)]

    def split_size(self, split: str) -> int:
        """How many rows are of the split. Raises :class:`ConfigError` where none is."""
        return len(self._numbers(split))

    def _numbers(self, split: str) -> Sequence[int]:
        if split not in SPLITS:
            raise ConfigError(f"split must be one of {', '.join(map(repr, SPLITS))}, not {split!r}")
        numbers = self._by_split[split]
        if not numbers:
            there = ", ".join(f"{len(self._by_split[name])} {name}" for name in SPLITS[:3])
            raise ConfigError(
                f"no row is of the split {split!r}; {len(self.tasks)} rows: {there}; name the splits in a field "
                "(split_field), change split_shares, or play split='all'"
            )
        return numbers

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge an answer. Raises :class:`EnvironmentFaultError` when the verifier could not, so that the episode is
        marked failed; nothing has changed then, and the answer may be given again."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over, or none has begun: call reset() first")
        said = self.action_format.read(action)
        score = Score(value=0.0, passed=False, detail=UNREAD) if said is None else self.judge_task(self.task, said)
        if isinstance(score, Failed):
            raise EnvironmentFaultError(f"row {self._row} could not be judged: {score.reason}")
        self._turns += 1
        last = score.passed or self._turns >= self.max_turns
        self._over = last
        # Only the last attempt is paid: else a wrong answer that is worth something could be given again and again.
        value = score.value if last else 0.0
        penalty = self.settings.format_penalty if said is None else 0.0
        if not last:
            settings = self.settings
            told = [UNREAD if said is None else settings.feedback, score.detail if settings.show_detail else ""]
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
        field = self.settings.oracle_field
        known = task.reference if field is None else task.row.get(field)
        # Of several references that are as good, the first is one answer.
        if isinstance(known, Sequence) and not isinstance(known, str) and known:
            known = known[0]
        if isinstance(known, bool) or not isinstance(known, str | int | float):
            return None
        answer = self.action_format.write(str(known))
        said = self.action_format.read(answer)
        verdict = self.judge_task(task, said) if said is not None else None
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

    def verifier_of(self, task: DataTask) -> str:
        """The name of the verifier of a task; empty for one that was given as an object."""
        spec = task.verifier
        if spec is None:
            spec = (self.settings.verifiers or {}).get(task.domain, self._common_spec)
        name = spec.get("name") if isinstance(spec, Mapping) else spec
        return name if isinstance(name, str) else ""

    # -- who judges: the row's own verifier, that of its domain, or the one for all ------------------------------------

    def _refuse_unjudged(self) -> None:
        by_domain, field = self.settings.verifiers, self.settings.verifier_field
        for number, task in enumerate(self.tasks if self._common is None else ()):
            if task.verifier is None and task.domain not in self._by_domain:
                if by_domain is not None:
                    why = f"is of the domain {task.domain!r}; verifiers has {', '.join(map(repr, by_domain)) or 'none'}"
                else:
                    why = "has none of its own" + ("" if field is None else f" in the field {field!r}")
                raise ConfigError(f"no verifier for row {number}: it {why}; give one for all in verifier='exact', ...")

    def judge_task(self, task: DataTask, answer: str) -> Score | Failed:
        """What the verifier of a task says of an answer."""
        chosen = self._by_domain.get(task.domain, self._common)
        if task.verifier is not None:
            try:
                chosen = self._verifier(task.verifier)
            except Exception as error:  # a spec that stands in the data
                return Failed(reason=f"its verifier {str(task.verifier)[:200]!r} cannot be made: {error}")
        assert chosen is not None
        return judge(chosen, answer, task.reference, {"row": task.row, **task.row, "prompt": task.prompt})

    def _verifier(self, spec: VerifierSpec) -> Verifier:
        if not isinstance(spec, str | Mapping):
            return as_verifier(spec)
        key = repr(spec)
        if key not in self._made:
            self._made[key] = as_verifier(spec)
        return self._made[key]
