"""A learner of several ranks, seen as one: the driver deals micro-batches to the ranks and puts results together again.

The training loop sees a :class:`~trainer.learner.Learner`. What a rank computes is that learner's backend, which agrees
with the other ranks through :class:`~trainer.learner.gradients.Ranks`.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from roll_envs.types import Metrics
from trainer.cluster.crew import Crew
from trainer.cluster.frames import Stream
from trainer.cluster.seats import learner_device
from trainer.config import CriticConfig, LossConfig, RunConfig
from trainer.config.load import dump_config
from trainer.data.batches import Batch, Denominators, balance, cost
from trainer.engines.buckets import Delivery, Word
from trainer.learner import Learner, make_learner
from trainer.learner.gradients import Ranks
from trainer.learner.snapshot import Keep, kept_state
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel

PartName: TypeAlias = Literal["learner", "critic", "reference"]

_PIECES = 4
"""Micro-batches are cut into lines until there are so many for each rank: then the loads of ranks are about equal."""
_EVEN = 1.02
"""Lines of the longest rank are cut until it has so much of the mean."""


def make_phase_learner(
    config: RunConfig, model: LanguageModel, *, warm_start: bool, threads: int, ranks: Ranks | None = None
) -> Learner:
    """The learner of the warm start, or of the training that ``config`` asks for."""
    settings = config.learner
    if warm_start and hasattr(settings, "lora_rank"):  # adapters are for what a model can do already
        settings = settings.model_copy(update={"lora_rank": 0})
    return make_learner(
        model,
        # Cross-entropy on demonstrations is the policy gradient with advantages of 1.
        loss=LossConfig(name="reinforce") if warm_start else config.loss,
        optimizer=config.warm_optimizer if warm_start else config.optimizer,
        temperature=1.0 if warm_start else config.sampling.temperature,
        correction=None if warm_start else config.correction,
        settings=settings,
        threads=threads,
        device=learner_device(config) if ranks is None else settings.device,
        ranks=ranks,
    )


def releases() -> dict[str, str]:
    """What every rank must have in the same release as the driver."""
    found = {"Python": ".".join(map(str, sys.version_info[:2]))}
    for name in ("roll-envs", "torch", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


# -- dealing -----------------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Some lines of a micro-batch, or some sequences of one line."""

    source: int
    """Which micro-batch."""
    first: int
    last: int
    """Behind the last line."""
    start: int
    end: int
    """Behind the last position of each line."""


class Deal(NamedTuple):
    """Which rank runs what."""

    pieces: list[list[Piece]]
    """Of each rank."""
    loads: list[float]
    """Of each rank, in tokens."""

    @property
    def imbalance(self) -> float:
        """The longest rank's load over the mean; 1 where there is nothing to do."""
        mean = sum(self.loads) / len(self.loads)
        return max(self.loads) / mean if mean else 1.0


def deal(batches: Sequence[Batch], ranks: int) -> Deal:
    """The lines of ``batches`` over ``ranks``, by the work of their sequences; whole micro-batches where there are
    enough of them, so that each rank runs as few as can be, and parts of a line where one has too much otherwise."""
    lines = [_sequences_of(batch) for batch in batches]
    pieces = [Piece(i, 0, len(batch.segments), 0, batch.segments.shape[1]) for i, batch in enumerate(batches)]

    def work(piece: Piece) -> float:
        within = (line for line in lines[piece.source][piece.first : piece.last])
        return sum(cost(n) for line in within for at, n in line if piece.start <= at < piece.end)

    def halves(piece: Piece) -> list[Piece]:
        """Two pieces; none of a single sequence."""
        if piece.last - piece.first > 1:
            middle = (piece.first + piece.last) // 2
            return [piece._replace(last=middle), piece._replace(first=middle)]
        starts = [at for at, _ in lines[piece.source][piece.first] if piece.start < at < piece.end]
        if not starts:
            return []
        best = min(starts, key=lambda at: abs(2 * work(piece._replace(end=at)) - work(piece)))
        return [piece._replace(end=best), piece._replace(start=best)]

    def cut_longest(among: Sequence[Piece], *, least_lines: int) -> bool:
        cuttable = [each for each in among if each.last - each.first >= least_lines and halves(each)]
        if cuttable:
            longest = max(cuttable, key=work)
            place = pieces.index(longest)
            pieces[place : place + 1] = halves(longest)
        return bool(cuttable)

    def dealt() -> Deal:
        shares = balance([round(work(piece)) for piece in pieces], ranks, quadratic=0.0)
        found = [[pieces[i] for i in share] for share in shares]
        return Deal(found, [sum(map(work, share)) for share in found])

    while len(pieces) < _PIECES * ranks and cut_longest(pieces, least_lines=2):
        pass
    best = last = dealt()
    for _ in range(_PIECES * ranks):
        busiest = last.pieces[last.loads.index(max(last.loads))]
        if last.imbalance <= _EVEN or not cut_longest(busiest, least_lines=1):
            break
        last = dealt()
        best = min(best, last, key=lambda each: each.imbalance)
    return best


def _sequences_of(batch: Batch) -> list[list[tuple[int, int]]]:
    """Of each line, where its sequences begin and how long they are; each sees itself only."""
    found = []
    for line in batch.segments.unbind(0):
        lengths = [int(n) for n in torch.bincount(line[line >= 0]).tolist() if n]
        found.append(list(zip([0, *itertools.accumulate(lengths)], lengths, strict=False)))
    return found


def cut(batch: Batch, piece: Piece) -> Batch:
    """A piece of a micro-batch; all its tensors are [..., B, T]."""
    present = {f.name: getattr(batch, f.name) for f in fields(batch) if getattr(batch, f.name) is not None}
    lines, positions = slice(piece.first, piece.last), slice(piece.start, piece.end)
    return Batch(**{name: column[..., lines, positions] for name, column in present.items()})


def gather(
    batches: Sequence[Batch], pieces: Sequence[Sequence[Piece]], found: Sequence[Sequence[torch.Tensor]]
) -> list[torch.Tensor]:
    """What the ranks gave for their pieces, [B, T] for each of ``batches``."""
    parts: list[dict[int, dict[int, torch.Tensor]]] = [{} for _ in batches]
    for mine, values in zip(pieces, found, strict=True):
        for piece, value in zip(mine, values, strict=True):
            parts[piece.source].setdefault(piece.first, {})[piece.start] = value
    return [torch.cat([torch.cat([at[p] for p in sorted(at)], 1) for _, at in sorted(part.items())]) for part in parts]


# -- what stands for the parts of the ranks ----------------------------------------------------------------------------


class _WeightsOf(Iterator[tuple[str, torch.Tensor]]):
    """The weights of a part, or those beside its adapters, and whose they are: a stream through the driver, or, asked
    as :class:`~trainer.engines.buckets.Delivered`, written and sent by the ranks."""

    def __init__(self, crew: Crew, name: PartName, *, bases: bool = False) -> None:
        self.crew, self.name, self._bases = crew, name, bases
        self._stream = crew.stream("bases", name) if bases else crew.stream("part", name, "weights")

    def __next__(self) -> tuple[str, torch.Tensor]:
        found: tuple[str, torch.Tensor] = next(self._stream)
        return found

    def writers(self, path: str, token: bytes) -> tuple[tuple[int, ...], torch.device]:
        """The ranks that see the file ``path``, and where the weights are."""
        found = self.crew.call("sees", self.name, path, token)
        return tuple(rank for rank, (seen, _) in enumerate(found) if seen), torch.device(found[0][1])

    def deliver(self, delivery: Delivery) -> Iterator[Word]:
        """Have the ranks write and send them."""
        return self.crew.stream("deliver", self.name, delivery, self._bases)


class _AdaptedWeightsOf(_WeightsOf):
    """The weights of a part with adapters, as :class:`~trainer.engines.buckets.Adapted`, too."""

    def key(self) -> str:
        """That of rank 0."""
        found: str = self.crew.call("base_key", self.name)[0]
        return found

    def bases(self) -> _WeightsOf:
        """The weights beside the adapters."""
        return _WeightsOf(self.crew, self.name, bases=True)

    def adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The adapters, through the driver: they are small."""
        return self.crew.stream("adapters", self.name)


class RankedScorer:
    """Stands for a scorer of every rank."""

    def __init__(self, crew: Crew, name: PartName) -> None:
        self._crew, self._name = crew, name

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """One number for each label, [B, T] per batch."""
        dealt = deal(batches, self._crew.count)
        shares = [(self._name, "score", [cut(batches[p.source], p) for p in mine]) for mine in dealt.pieces]
        return gather(batches, dealt.pieces, self._crew.call_each("part", shares))

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and weights, one at a time; copies."""
        return _WeightsOf(self._crew, self._name)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take other weights; those of another part of the same ranks do not leave them. Raises
        :class:`CheckpointError` when they do not fit."""
        if isinstance(weights, _WeightsOf) and weights.crew is self._crew:
            self._crew.call("copy", weights.name, self._name)
            return
        self._crew.call_each("part", [(self._name, "load_weights", Stream())] * self._crew.count, weights)

    def offload(self) -> None:
        """Leave the devices of all ranks until :meth:`reload`."""
        self._crew.call("part", self._name, "offload")

    def reload(self) -> None:
        """Be on the devices again."""
        self._crew.call("part", self._name, "reload")

    def move(self, *devices: str) -> None:
        """Be on other devices from now on, one for each rank, as that rank calls it."""
        self._crew.call_each("part", [(self._name, "move", device) for device in devices])


class _Trained(RankedScorer):
    def _step(self, batches: Sequence[Batch], denominators: Denominators, **named: Any) -> tuple[list[Any], Deal]:
        """What the ranks return for an optimiser step, and who ran what."""
        dealt = deal(batches, self._crew.count)
        # Ranks add theirs up; lengths are looked up by all.
        none = replace(denominators, tokens=0, sequences=0)
        shares = [
            (self._name, [cut(batches[p.source], p) for p in mine], none if rank else denominators, named)
            for rank, mine in enumerate(dealt.pieces)
        ]
        return self._crew.call_each("step", shares), dealt

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """The state of the optimiser: that of all ranks, whole, from rank 0; of it what this process is to ``keep``."""
        state: dict[str, Any] = self._crew.call("state", self._name)[0]
        return state if keep is None else kept_state(state, keep)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser back to a saved state, of as many ranks as it was. Raises :class:`CheckpointError`."""
        self._crew.call("part", self._name, "load_optimizer_state", state)


class RankedCritic(_Trained):
    """Stands for the critics of the ranks."""

    def step(self, batches: Sequence[Batch], denominators: Denominators, *, lr: float) -> Metrics:
        """One optimiser step of all ranks."""
        results, _ = self._step(batches, denominators, lr=lr)
        metrics: Metrics = results[0]
        return metrics


class RankedLearner(_Trained):
    """Stands for the learners of the ranks: a :class:`~trainer.learner.Learner`."""

    def __init__(self, crew: Crew, config: RunConfig, model: LanguageModel, *, warm_start: bool, threads: int) -> None:
        """A learner of the weights that ``model`` has now, which stay as they are; learners made before on these ranks
        are gone. Each rank runs ``threads`` micro-batches side by side."""
        super().__init__(crew, "learner")
        made = (dump_config(config), warm_start, model.network.config, threads, Stream())
        crew.call_each("make", [made] * crew.count, weights_of(model.network))
        self._adapted = not warm_start and getattr(config.learner, "lora_rank", 0) > 0

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and weights, one at a time; copies."""
        return _AdaptedWeightsOf(self._crew, self._name) if self._adapted else super().weights()

    def step(
        self, batches: Sequence[Batch], denominators: Denominators, *, lr: float, on_policy: bool = False
    ) -> tuple[Metrics, list[torch.Tensor]]:
        """One optimiser step of all ranks; metrics, and the log-probs before it. ``learner/rank_imbalance`` is the
        longest rank's work over the mean."""
        results, dealt = self._step(batches, denominators, lr=lr, on_policy=on_policy)
        metrics: Metrics = {**results[0][0], "learner/rank_imbalance": dealt.imbalance}
        return metrics, gather(batches, dealt.pieces, [before for _, before in results])

    def reference(self, *, fixed: bool = True) -> RankedScorer:
        """A scorer of every rank with the current weights."""
        self._crew.call("add_reference", fixed)
        return RankedScorer(self._crew, "reference")

    def critic(self, config: CriticConfig) -> RankedCritic:
        """A critic of every rank, with a copy of the current weights."""
        self._crew.call("add_critic", config.model_dump())
        return RankedCritic(self._crew, "critic")
