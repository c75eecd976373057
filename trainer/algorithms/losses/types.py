"""What a policy loss is given and what it gives: the contract between the learner and every loss.

All tensors are [B, T], aligned to the predicting position (see :mod:`trainer.data.batches`). A sequence stands whole in
one micro-batch, so that what is taken over a sequence or a turn does not depend on how a step was cut. torch is not
imported here, nor in the modules of losses, so that settings can be checked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roll_envs.settings import Part, Settings
from trainer.algorithms.rewards import LOG_RATIO_BOUND
from trainer.data.table import BoolArray, FloatArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "Level",
    "Loss",
    "LossInputs",
    "PolicyLoss",
    "RatioSettings",
    "Select",
    "StepTokens",
    "TokenMetrics",
    "log_ratio",
    "log_ratio_at",
    "mean_over",
    "ratio_metrics",
    "sum_over",
]

Level = Literal["token", "turn-mean", "turn-product", "sequence-mean", "sequence-product"]

TokenMetrics = dict[str, "torch.Tensor"]
"""Numbers of each token [B, T] (bool: counts). What is masked out is left out of the sums that are made of them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossInputs:
    """One micro-batch as a loss sees it. Where ``mask`` is False every number is 0, so that no loss has to mask."""

    logp: torch.Tensor
    """Log-probs of the labels under the policy being trained, at the sampling temperature; has the gradient."""
    old_logp: torch.Tensor
    """Under the proximal policy, the one the ratio is taken to; constant."""
    sampler_logp: torch.Tensor
    """Under the policy and engine that sampled; constant."""
    advantages: torch.Tensor
    """Weights of the section ``mask`` included."""
    mask: torch.Tensor
    """bool; True exactly where the label was sampled and is trained on."""
    sequence: torch.Tensor
    """int64; index of the sequence within the optimiser step, -1 for padding."""
    turn: torch.Tensor
    """int64; turn of the label within its episode, -1 where none was sampled."""
    reference_logp: torch.Tensor | None = None
    """Under the reference policy; None without a KL term."""
    selected: torch.Tensor | None = None
    """bool; what :data:`Select` chose; None where the loss has none."""
    entropy: torch.Tensor | None = None
    """Of the policy being trained, where the label was sampled; constant unless :attr:`Loss.entropy_gradient`."""
    episode_return: torch.Tensor | None = None
    """Undiscounted return of the label's episode, as the environment paid it."""
    success: torch.Tensor | None = None
    """bool; of the label's episode."""
    truncated: torch.Tensor | None = None
    """bool; whether the label's episode ended at the turn limit."""
    weights: torch.Tensor | None = None
    """The weights in ``advantages``."""

    def masked(self) -> LossInputs:
        """The same with 0 (False) wherever ``mask`` is False, whatever stood there."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("mask", "sequence", "turn")}
        return replace(self, **{n: v.where(self.mask, v.new_zeros(())) for n, v in kept.items() if v is not None})


PolicyLoss = Callable[[LossInputs, Any], "tuple[torch.Tensor, TokenMetrics]"]
"""(inputs, settings) -> (loss of each token [B, T], metrics of each token); what it gives where masked out is not
used."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTokens:
    """All tokens with a loss of one optimiser step [N], for choices over the whole step."""

    old_logp: FloatArray
    advantages: FloatArray


Select = Callable[[StepTokens, Any, np.random.Generator], BoolArray]
"""(tokens, settings, generator) -> chosen tokens [N], before the step and from the proximal log-probs, so that no cut
into micro-batches matters."""


@dataclass(frozen=True, kw_only=True)
class Loss(Part):
    """A loss and what may be done with its sequences."""

    loss: PolicyLoss
    select: Select | None = None
    only_advantages: bool = False
    """Sequences whose advantages are all 0 have no gradient, so that they need not be run."""
    linear_on_policy: bool = False
    """Where the ratio is 1 the gradient is linear in the advantages, and depends on nothing else but the ids, so that
    sequences of the same ids can be run as one with the sum of their advantages."""
    entropy_gradient: bool = False
    """``LossInputs.entropy`` has a gradient."""
    anchored_at_sampler: bool = False
    """Its ratio is to the sampler, whatever ``loss.proximal`` says."""

    def problems(self, config: Any) -> list[str]:
        if self.anchored_at_sampler and config.correction.name != "none":
            return [
                f"loss {config.loss.name!r} takes its ratio to the sampler itself; correction.name "
                f"{config.correction.name!r} would weigh it twice, take 'none'"
            ]
        return []


class RatioSettings(Settings):
    ratio: Literal["token", "turn-mean", "sequence-mean", "sequence-product"] = "token"
    """The ratio of each token, the geometric mean of its turn's or sequence's, or the product of its sequence's.
    Default: PPO's and ROLL's; sequence-mean is GSPO's ratio, sequence-product TOPR's paper's."""


def log_ratio(logp: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``logp - other``, cut to +-20."""
    return (logp - other).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def log_ratio_at(log_ratios: torch.Tensor, inputs: LossInputs, level: Level) -> torch.Tensor:
    """The logarithm of each token's ratio [B, T] at a level, from the logarithms of the tokens' own.

    ``token``: its own; ``turn-mean`` and ``sequence-mean``: the geometric mean over the masked-in tokens of its turn or
    sequence; ``turn-product`` and ``sequence-product``: their product, its logarithm cut to +-20. Logarithms 0.1, -0.2
    and 0.3 in one sequence: sequence-mean 0.0667, sequence-product 0.2.
    """
    over, _, kind = level.partition("-")
    if over == "token":
        return log_ratios
    if kind == "mean":
        return mean_over(log_ratios, inputs, over)
    return sum_over(log_ratios, inputs, over).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def ratio_metrics(log_r: torch.Tensor) -> TokenMetrics:
    """``loss/ratio`` and ``loss/old_kl`` (k3 of the ratio) from the logarithms of ratios."""
    log_r = log_r.detach()
    ratio = log_r.exp()
    return {"loss/ratio": ratio, "loss/old_kl": ratio - 1.0 - log_r}


def sum_over(values: torch.Tensor, inputs: LossInputs, over: str) -> torch.Tensor:
    """Sum of ``values`` [B, T] over the masked-in tokens of each token's "sequence" or "turn" [B, T].

    0 where masked out. Turns of one sequence are told apart by their number.
    """
    zero = values.new_zeros(())
    keys = inputs.sequence.flatten() + 1
    if over == "turn":
        turns = inputs.turn.flatten() + 1
        keys = keys * (turns.max() + 1) + turns
    kept = values.where(inputs.mask, zero).flatten()
    sums = values.new_zeros(int(keys.max()) + 1).index_add(0, keys, kept)
    return sums[keys].view(values.shape).where(inputs.mask, zero)


def mean_over(values: torch.Tensor, inputs: LossInputs, over: str) -> torch.Tensor:
    """Mean of ``values`` over the masked-in tokens of each token's sequence or turn, as :func:`sum_over`."""
    counts = sum_over(values.new_ones(values.shape), inputs, over)
    return sum_over(values, inputs, over) / counts.clamp(min=1.0)
