"""What a run plays: which tasks, and the open parts that play them.

Tasks are functions of their index, so a run's position in its endless list of tasks is a :class:`Ledger`: a few
integers in the checkpoint. A :class:`Session` holds environment, model, engine and episode driver open.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

import roll_envs
from roll_envs import env_registry as registry
from roll_envs.env import TextEnv
from roll_envs.errors import ConfigError, RollError
from roll_envs.managers import (
    EpisodeDriver,
    EpisodeSettings,
    GroupStream,
    History,
    Respond,
    load_context,
)
from roll_envs.managers.episode import SPLITS
from roll_envs.policy import CharRenderer
from roll_envs.types import Completion, Group, Outcome, SamplingParams, Task, Trajectory, Turn
from trainer.cluster import env_workers, episode_limits, sandboxes_on
from trainer.cluster.seats import place, placed_engine, this_machine
from trainer.config import EnvConfig, RunConfig
from trainer.config.load import teacher_config
from trainer.engines import Engine, find_engine, make_engine, not_trained_here
from trainer.engines.judges import served_judges
from trainer.model.network import LanguageModel, build_model, choose_device
from trainer.model.renderer import ChatRenderer
from trainer.rollout.mix import Mix

HELD_OUT_SEEDS = 1_000_000_000
"""Seeds from here on are held out; train seeds lie below."""

SMALL_MODEL = 200_000
"""Below so many parameters a second torch thread costs more than it brings."""


def draw_tasks(env: EnvConfig, *, seed: int, indices: Iterable[int], split: str = "train") -> list[Task]:
    """The tasks of ``indices`` in a run's endless list: the same on any host."""
    return [_task(env, split, index, _train_seed(seed, split, index)) for index in indices]


def held_out_tasks(env: EnvConfig, count: int, *, first: int = 0) -> list[Task]:
    """The held-out tasks ``first`` to ``first + count - 1``: the same for every run."""
    return [_task(env, "held-out", index, HELD_OUT_SEEDS + index) for index in range(first, first + count)]


def held_out_count(env: Any, wanted: int) -> int:
    """``wanted`` held-out tasks of an environment, or as many as there are where they are a fixed list: one that is
    played twice would count as two in the interval. Raises :class:`ConfigError` where there is none."""
    size = env.split_size(SPLITS["held-out"]) if isinstance(env, TextEnv) and env.splits else None
    return wanted if size is None else min(wanted, size)


def _task(env: EnvConfig, split: str, index: int, seed: int) -> Task:
    return Task(env_id=env.id, split=split, index=index, seed=seed, kwargs=env.kwargs)


def _train_seed(run_seed: int, split: str, index: int) -> int:
    digest = hashlib.blake2b(f"{run_seed}|{split}|{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SEEDS


@dataclass(slots=True)
class Ledger:
    """Which training tasks were drawn, and which of them are in flight: not yet trained on, nor dropped by a filter.

    A run that is killed and resumed from any checkpoint draws the tasks in flight again, in the order of their index,
    before new ones: none is skipped, and none is trained on twice.
    """

    cursor: int = 0
    """Index of the next task that was never drawn."""
    in_flight: set[int] = field(default_factory=set)
    episodes: Counter[str] = field(default_factory=Counter)
    """How many episodes of training tasks ended in each way, greedy ones (``greedy_completed``) by themselves. One that
    a kill cut off is in none."""
    _again: list[int] = field(default_factory=list)
    """What was in flight when the ledger was saved and has not been drawn again."""

    @classmethod
    def load(cls, cursor: int, saved: Mapping[str, Any]) -> Ledger:
        """The ledger of a checkpoint. Raises ValueError for an index that was never drawn."""
        in_flight = {int(index) for index in saved.get("in_flight", ())}
        if not all(0 <= index < cursor for index in in_flight):
            raise ValueError(f"tasks {sorted(in_flight)} cannot be in flight when only {cursor} were drawn")
        ended = Counter({str(kind): int(count) for kind, count in saved.get("episodes", {}).items()})
        return cls(cursor=cursor, in_flight=in_flight, episodes=ended, _again=sorted(in_flight))

    def save(self) -> dict[str, Any]:
        """What a checkpoint's ``progress`` holds beside the cursor."""
        # Without what draw() had not drawn to the end when it was interrupted.
        drawn = sorted(index for index in self.in_flight if index < self.cursor)
        return {"in_flight": drawn, "episodes": dict(self.episodes)}

    def draw(self, count: int) -> list[int]:
        """``count`` indices to play now, those of an earlier process first."""
        again, self._again = self._again[:count], self._again[count:]
        fresh = range(self.cursor, self.cursor + count - len(again))
        self.in_flight.update(fresh)
        self.cursor = fresh.stop  # last: a task that counts as drawn is in flight, also where Ctrl-C comes in between
        return [*again, *fresh]

    def count(self, episodes: Iterable[Trajectory], prefix: str = "") -> None:
        """Note how ``episodes`` ended; ``prefix`` tells them from others."""
        self.episodes.update(prefix + episode.outcome.kind for episode in episodes)

    def settle(self, indices: Iterable[int]) -> None:
        """Note that these were trained on or dropped. Raises ValueError when one is not in flight."""
        for index in indices:
            if index not in self.in_flight:
                raise ValueError(f"task {index} is not in flight; it was trained on before, or never drawn")
            self.in_flight.remove(index)


class Session(contextlib.AbstractContextManager["Session"]):
    """Everything a run holds open; use it with ``with``."""

    def __init__(
        self,
        config: RunConfig,
        *,
        temperature: float | None = None,
        seed: int | None = None,
        model: LanguageModel | None = None,
        plays: bool = True,
    ) -> None:
        """Open the parts of ``config``; ``temperature``, ``seed`` and ``model`` replace what it says. No environment
        workers are started for a session that never ``plays``."""
        self.config = config
        prompts = find_engine(config.engine.name).prompts(config)
        self.mix = Mix(config)
        longest_s = config.rollout.longest_make_s
        self._envs = [registry.make_within(longest_s, env.id, env.kwargs) for env in self.mix.environments]
        self._model = model if model or prompts else build_model(config.model, self._envs, config.seed)
        self.threads = side_by_side(config, self._model.parameters if self._model else 0)
        torch.set_num_threads(self.threads)
        variables = config.context.template
        renderer = prompts.renderer if prompts else ChatRenderer(self.model.tokenizer, variables=variables)
        self.rewrites_history: bool = getattr(renderer, "rewrites_history", False)
        """Whether the chat template changes earlier turns, so that a turn may begin a sequence of its own."""
        self.settings = EpisodeSettings(
            context=load_context(config.context.kind, turns=config.context.turns, function=config.context.function),
            renderer=renderer,
            sampling=SamplingParams(
                temperature=config.sampling.temperature if temperature is None else temperature,
                max_new_tokens=config.sampling.max_new_tokens,
                stop_ids=renderer.stop_ids,
            ),
            max_tokens=prompts.max_tokens if prompts else config.engine.max_tokens,
            max_episode_tokens=config.rollout.episode_tokens,
            seed=config.seed if seed is None else seed,
            system_prompt=config.context.system_prompt,
            observation_template=config.context.observation_template,
        )
        self._engine: Engine | None = None
        self._teacher: Session | None = None
        limits = episode_limits(config.rollout)
        self._open = contextlib.ExitStack()
        first = [task for env in self.mix.environments for task in held_out_tasks(env, 1)]
        workers = None
        if plays:
            machine = this_machine()
            placement = place(config, machine)
            judges = [[machine.gpus[gpu] for gpu in gpus] for gpus in placement.judges]
            self._open.enter_context(sandboxes_on(placement.sandbox_cpus))
            self._open.enter_context(served_judges(config, judges, placement.judge_cpus))
            ranks = config.placement.learner
            kept = ranks.ranks * ranks.cpus if config.cluster == "ray" else 0.0
            opened = env_workers(config.rollout, first, placement.environment_cpus, kept)
            workers = self._open.enter_context(opened)
        self._local_driver = EpisodeDriver(lambda task: roll_envs.make(task.env_id, **task.kwargs), limits)
        """With environments in this process, which a teacher can ask."""
        self._driver = EpisodeDriver(workers.make, limits) if workers else self._local_driver
        # Libraries and the model are half a million objects, which the garbage collector would look at again and again
        # while episodes are played: a sixth of the time.
        gc.freeze()

    @property
    def model(self) -> LanguageModel:
        """The model that is trained. Raises :class:`ConfigError` where the engine has one of its own instead."""
        if self._model is None:
            raise not_trained_here(self.config.engine.name)
        return self._model

    @property
    def engine(self) -> Engine:
        """The inference engine, started at first use."""
        if self._engine is None:
            machine = this_machine()
            self._engine = make_engine(self._model, placed_engine(self.config, place(self.config, machine), machine))
        return self._engine

    def settings_of(self, task: Task) -> EpisodeSettings:
        """The settings by which ``task`` is played: those of all, with what its environment says otherwise."""
        env, settings = self.mix.environment_of(task), self.settings
        if env.system_prompt is not None:
            settings = replace(settings, system_prompt=env.system_prompt)
        if env.observation_template is not None:
            settings = replace(settings, observation_template=env.observation_template)
        if env.max_new_tokens is not None:
            settings = replace(settings, sampling=replace(settings.sampling, max_new_tokens=env.max_new_tokens))
        return settings

    def training_tasks(self, indices: Iterable[int]) -> list[Task]:
        """The tasks of ``indices`` in the run's endless list, each of the environment that the mix draws."""
        drawn = [(index, self.mix.draw(index)) for index in indices]
        return [t for i, env in drawn for t in draw_tasks(env, seed=self.config.seed, indices=[i], split=env.split)]

    def demonstration_tasks(self, indices: Iterable[int]) -> list[Task]:
        """The tasks of ``indices`` in the warm start, by the configured weights."""
        drawn = [(index, self.mix.configured(index)) for index in indices]
        return [t for i, e in drawn for t in draw_tasks(e, seed=self.config.seed, indices=[i], split="demonstrations")]

    def evaluation_tasks(self, count: int | None = None) -> list[Task]:
        """The held-out tasks of every environment in turn, ``count`` of each instead of as many as configured, or all
        that it has; those of an environment are the same in any mix."""
        default = self.config.evaluation.tasks
        tasks = [
            task
            for env, made in zip(self.mix.environments, self._envs, strict=True)
            for task in held_out_tasks(env, held_out_count(made, count or env.evaluation_tasks or default))
        ]
        return sorted(tasks, key=lambda task: task.index)

    def start(self, tasks: Sequence[Task], group_size: int, into: GroupStream | None = None) -> GroupStream:
        """Begin to play ``tasks``; groups come as they end, from ``into`` where that is an earlier stream."""
        return self._driver.start(tasks, group_size, self.settings_of, self.engine, into=into)

    def collect(
        self, tasks: Sequence[Task], group_size: int, on_done: Callable[[Trajectory], None] | None = None
    ) -> list[Group]:
        """Play ``tasks`` before others that wait; groups in the order of ``tasks``."""
        stream = self._driver.start(tasks, group_size, self.settings_of, self.engine, on_done, front=True)
        return stream.in_order()

    def collect_greedy(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """One greedy episode of each task."""

        def greedy(task: Task) -> EpisodeSettings:
            settings = self.settings_of(task)
            return replace(settings, sampling=replace(settings.sampling, temperature=0.0))

        stream = self._driver.start(tasks, 1, greedy, self.engine, front=True)
        return [group.trajectories[0] for group in stream.in_order()]

    def demonstrate(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """The teacher of the warm start plays each task once, under the same deadlines and retries as the model."""
        if self.config.warm_start.teacher is not None:
            taught = self._taught(tasks)
            return [retold(episode, self.settings_of(episode.task), self.model.tokenizer) for episode in taught]
        respond = teacher(self.model.tokenizer, self.settings.renderer.stop_ids[0], self.config.warm_start.oracle_share)

        def taught_by(task: Task) -> EpisodeSettings:
            return replace(self.settings_of(task), answerer="the teacher")

        return [group.trajectories[0] for group in self._local_driver.collect(tasks, 1, taught_by, respond)]

    def _taught(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """Episodes of a teacher that is an engine, as it sees them."""
        if self._teacher is None:
            # With this model, for whose size torch has its threads.
            self._teacher = Session(teacher_config(self.config), model=self.model)
        if not isinstance(self._teacher.settings.renderer, CharRenderer):
            raise ConfigError(
                f"warm_start.teacher: engine {self._teacher.config.engine.name!r} takes token ids of the model that is "
                "trained; a teacher takes messages, as engine 'openai' does without token_ids"
            )
        return [group.trajectories[0] for group in self._teacher.collect(tasks, 1)]

    def failed_share(self, episodes: Sequence[Trajectory], where: str) -> float:
        """Share of ``episodes`` that failed. Raises :class:`RollError` with the reasons when they are too many."""
        reasons = Counter(t.outcome.reason for t in episodes if t.outcome.kind == "failed")
        share = reasons.total() / max(1, len(episodes))
        if share > self.config.rollout.max_failed_share:
            listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
            raise RollError(
                f"{where}: {reasons.total()} of {len(episodes)} episodes failed ({listed}). "
                "Mend the cause and resume, or raise rollout.max_failed_share in the config.yaml of the run's folder"
            )
        return share

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.close()  # first, so that nobody waits for its answer
        if self._teacher is not None:
            self._teacher.__exit__(None, None, None)
        self._driver.close()
        self._local_driver.close()
        self._open.close()
        for env in self._envs:
            registry.discard(env)
        gc.unfreeze()


RANDOM_MOVE = -1
"""Version of the weights of an answer that the teacher drew at random; its other answers have version 0."""


def next_answer(env: Any, seed: int | None, oracle_share: float) -> tuple[str, bool]:
    """The oracle's next answer with probability ``oracle_share``, else (and where it knows none) one of the legal
    answers, drawn uniformly; and whether it is the oracle's."""
    rng = np.random.default_rng(seed)
    plan = env.oracle() if rng.random() < oracle_share else None
    legal = env.legal_answers() or env.action_space.examples
    return str(plan[0] if plan else legal[int(rng.integers(len(legal)))]), bool(plan)


def teacher(tokenizer: Any, stop_id: int, oracle_share: float) -> Respond:
    """A deliberately poor player: the oracle's next answer with probability ``oracle_share``, else one of the legal
    answers, drawn uniformly and marked as of version ``RANDOM_MOVE``.

    It teaches a small model to read the observation and to answer in form, not to play well. Its choices follow from
    ``sampling.seed``, so that a demonstration depends on its task and the run's seed alone.
    """

    def respond(env: Any, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        text, known = next_answer(env, sampling.seed, oracle_share)
        ids, most = tuple(tokenizer(text, add_special_tokens=False)["input_ids"]), sampling.max_new_tokens
        if len(ids) > most:
            raise ConfigError(
                f"an answer may have {most} tokens (sampling.max_new_tokens, engine.max_tokens), but {text!r} has "
                f"{len(ids)}"
            )
        ends = len(ids) == most  # there, as an answer of the model would
        ids = ids if ends else (*ids, stop_id)
        return Completion(
            ids=ids,
            logprobs=(0.0,) * len(ids),
            finish="length" if ends else "stop",
            weight_version=0 if known else RANDOM_MOVE,
        )

    return respond


def retold(episode: Trajectory, settings: EpisodeSettings, tokenizer: Any) -> Trajectory:
    """An episode of a teacher that speaks in messages, as the model would have played it: its prompts by the context of
    ``settings``, its answers in ids of ``tokenizer``.

    One that has no room in ``settings.max_tokens`` becomes a failed episode; one that is not scored stays as it is.
    """
    if not episode.scored:
        return episode
    turns: list[Turn] = []
    for turn in episode.turns:
        first = CharRenderer().messages(turn.prompt_ids)[0]
        shown = first.content if first.role == "system" else ""
        history = History(
            instructions=shown if settings.system_prompt is None else settings.system_prompt,
            turns=tuple(turns),
            observation=turn.prompt_observation,
            observation_template=settings.observation_template,
        )
        prompt = settings.context(history, settings.renderer)
        ids = (*tokenizer(turn.text, add_special_tokens=False)["input_ids"], settings.renderer.stop_ids[0])
        if len(prompt) + len(ids) > settings.max_tokens:
            reason = f"the teacher's turn has {len(prompt) + len(ids)} tokens, more than engine.max_tokens"
            return replace(episode, turns=tuple(turns), outcome=Outcome(kind="failed", reason=reason))
        said = Completion(ids=ids, logprobs=(0.0,) * len(ids), finish="stop", weight_version=0)
        turns.append(replace(turn, prompt_ids=prompt, completion=said))
    return replace(episode, turns=tuple(turns))


def side_by_side(config: RunConfig, parameters: int) -> int:
    """Threads of the learner and of torch: as configured, else by the number of ``parameters``. A GPU runs one
    micro-batch at a time: each has activations of its own."""
    if choose_device(config.learner.device).type != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(getattr(config.learner, "threads", 0)) or (1 if parameters < SMALL_MODEL else min(cores, 8))
